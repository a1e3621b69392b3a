"""Runners, which measure candidates; one file each."""
