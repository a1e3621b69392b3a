"""Independent checks for tests and documentation; the product does not depend on them."""
