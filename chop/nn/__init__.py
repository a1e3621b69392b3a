"""Layers and quantizers at the import paths of newer scripts."""
