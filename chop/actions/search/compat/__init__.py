"""The names and import paths of the labs and of earlier versions."""
