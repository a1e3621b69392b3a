"""The components of streaming circuits, one per file."""
