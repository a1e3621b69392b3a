#!/usr/bin/env python3
"""Run MASE from a clone, as in `./ch --help`; the first call sets everything up."""

import os
import sys

# In the place of this folder, whose chop would pass for an installed one.
sys.path[0] = os.path.join(os.path.dirname(os.path.realpath(__file__)), "scripts")

import bootstrap  # noqa: E402

os.environ["MASE_COMMAND"] = sys.argv[0]  # what hints shall call it
bootstrap.main(["-P", "-m", "chop"] + sys.argv[1:])  # noqa: RUF005 -- parses under any Python
