"""The files, tables and pages of a search."""
