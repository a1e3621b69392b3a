"""`ch search`: spaces, samplers, metrics and engines that do not know each other."""

from chop.actions.search.compat import old_paths

old_paths.install()
