"""Binary layers with trained scales."""
