"""How each integer op is written in symbolic numbers: one file per family, found by itself."""
