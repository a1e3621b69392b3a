"""Training and testing: one short loop, and what stands around it."""
