"""Strategies: which design is tried next; one file each."""
