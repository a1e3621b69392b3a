"""Deployed layers: linear layers that run on the 8-bit kernels of torch."""
