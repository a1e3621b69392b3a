"""`python -m chop`: the command line, which can repair a damaged `.venv`."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# `python -m` puts the current directory first, where a random.py would hide Python's
if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] == os.getcwd() != ROOT:
    del sys.path[0]

import re  # noqa: E402
from importlib import metadata  # noqa: E402
from pathlib import Path  # noqa: E402


def main() -> None:
    """Run the command line; if a core dependency is broken, run the set-up to repair it first."""
    open_closed_streams()
    try:
        from chop.cli import main as command_line
    except ImportError as error:
        if is_core_dependency(error):
            repair()
        raise
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        command_line()
    except SystemExit as end:
        if isinstance(end.code, int):
            from chop.system.processes import end_process

            end_process(end.code)
        raise


def open_closed_streams() -> None:
    """Let output go nowhere if the shell has closed it, as by `>&-`, and not into the next file."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            # its number is that of the closed one, which the next file would have had
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def is_core_dependency(error: BaseException | None) -> bool:
    """Return whether the error, or one of its causes, is about a package that MASE requires."""
    if error is None:
        return False
    broken = (getattr(error, "name", None) or "").partition(".")[0]
    needed = [need for mase in metadata.distributions(name="mase") for need in mase.requires or []]
    core = [need for need in needed if "extra ==" not in need]
    names = {re.split(r"[^\w-]", need)[0].replace("-", "_") for need in core}
    return broken in names or is_core_dependency(error.__cause__ or error.__context__)


def repair() -> None:
    """Replace this process by the set-up, once, and only in the `.venv` that the set-up created."""
    clone = Path(__file__).resolve().parents[1]
    script = clone / "scripts" / "bootstrap.py"
    if Path(sys.prefix).resolve() != (clone / ".venv").resolve() or not script.exists():
        return
    if "MASE_REPAIRED" in os.environ:
        return
    os.environ["MASE_REPAIRED"] = "1"
    command = [sys.executable, str(script), "--repair", "-P", "-m", "chop", *sys.argv[1:]]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
