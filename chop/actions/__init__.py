"""What `ch` does: train, test, transform, search; one file each."""
