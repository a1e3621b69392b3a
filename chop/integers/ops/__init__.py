"""One file per op of an integer graph."""
