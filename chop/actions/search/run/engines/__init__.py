"""Engines: where trials run; here, in other processes, on a cluster."""
