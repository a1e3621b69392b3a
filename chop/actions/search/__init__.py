"""`ch search`: spaces, strategies, runners and engines that do not know each other."""
