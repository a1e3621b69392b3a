"""Metadata of nodes (op, inputs, results), shared by analyses and transforms and below both."""
