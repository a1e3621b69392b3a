"""Run a Python command in an environment that has MASE; the first call makes that environment.

    python3 scripts/bootstrap.py [--repair] [--extra NAME]... ARGUMENTS-OF-PYTHON...

`./ch` and the Makefile call this. It only sees to it that a recent Python goes on, and has to parse
under any Python, even Python 2, to say so there; `environment.py` does the work.
"""
# ruff: noqa: RUF005, UP032 -- the newer spelling is a syntax error under an older Python

import os
import subprocess
import sys

OLDEST = (3, 11)
NEWER = ["python3.14", "python3.13", "python3.12", "python3.11"]
PROBE = "import ensurepip, sys, venv; sys.exit(sys.version_info < {})".format(OLDEST)


def main(arguments):
    """Go on under this Python, or under a newer one that is on the PATH or named by $PYTHON."""
    if sys.version_info >= OLDEST:
        import environment

        sys.exit(environment.main(arguments))
    python = find([os.environ.get("PYTHON")] + NEWER)
    if python is None:
        sys.exit(refusal())
    here = os.path.dirname(os.path.realpath(__file__))
    os.execv(python, [python, os.path.join(here, "bootstrap.py")] + arguments)


def find(names):
    """The first of these interpreters, named or by absolute path, that is there and suitable."""
    for name in filter(None, names):
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
            python = os.path.join(folder, name)
            if is_suitable(python):
                return python
    return None


def is_suitable(python):
    """Whether that interpreter answers and will do; a pyenv shim may exist and yet not answer."""
    if not os.access(python, os.X_OK):
        return False
    with open(os.devnull, "w") as nowhere:
        try:
            return subprocess.call([python, "-c", PROBE], stdout=nowhere, stderr=nowhere) == 0
        except OSError:
            return False


def refusal():
    """One sentence: what is needed, what is here, and what to do."""
    return (
        "ch: MASE needs Python {}.{} or newer with its venv module, and this is Python {}.{} ({}): "
        "install a newer one, or name it, as in PYTHON=/path/to/python3.12 ./ch"
    ).format(*(OLDEST + tuple(sys.version_info[:2]) + (sys.executable,)))


if __name__ == "__main__":
    main(sys.argv[1:])
