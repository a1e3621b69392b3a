"""What a search knows of populations: nothing, until its file asks for them."""

import subprocess
import sys

# what the searches of most users look up
SEARCH = """
import sys
import chop.actions.search.search
from chop.actions.search.metrics.base import RUNNERS

assert RUNNERS["basic_train"] and RUNNERS["bitops"]
print(*[name for name in sys.modules if name.startswith("chop.methods.population")])
"""


def test_a_search_without_populations_imports_nothing_of_them():
    done = subprocess.run([sys.executable, "-c", SEARCH], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
