"""Search spaces: which designs there are, and the network of each."""
