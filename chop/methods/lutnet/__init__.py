"""LUTNet: a look-up table in place of each product."""
