"""Networks in whole numbers, against their float simulation."""
