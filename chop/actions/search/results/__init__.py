"""What a search writes and shows."""
