"""Methods: each folder holds all of one, and adds to rooms by modules with their names."""
