"""Passes that save graphs and load them again."""
