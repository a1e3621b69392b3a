"""The classes of the labs."""
