"""Training and testing: one short loop and its helpers."""
