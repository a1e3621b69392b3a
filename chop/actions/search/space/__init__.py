"""Search spaces: the possible designs, and the network of each."""
