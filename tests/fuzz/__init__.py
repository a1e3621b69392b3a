"""Damaged, odd and hostile inputs for every kind of file that `ch` reads."""
