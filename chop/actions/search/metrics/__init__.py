"""Runners: what is measured of a candidate; one file each."""
