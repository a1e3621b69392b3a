"""Networks in integers, against their float simulation."""
