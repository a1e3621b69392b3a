"""The loop of a search, the workers that measure its trials, and the engines that run them."""
