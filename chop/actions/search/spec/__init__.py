"""Everything that a search is about, checked and made once."""
