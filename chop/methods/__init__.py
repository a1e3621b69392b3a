"""One folder per method; registries import its modules that are named after their rooms."""
