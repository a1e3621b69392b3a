"""Import users' files that register models, data sets or passes."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from chop.processes import Terminated


class UserCodeError(ImportError):
    """A user's file that cannot be imported; the message says where and why."""


class UserCodeExited(UserCodeError):
    """A user's file that exits the program instead of registering something."""


def import_user_file(file: str | Path) -> ModuleType:
    """Import a Python file by its path, once; it may import its neighbours by name."""
    path = Path(file).expanduser().resolve()
    if path.suffix != ".py":
        raise UserCodeError(f"{str(file)!r} is not a Python file; its name must end in .py")
    if not path.is_file():
        raise UserCodeError(f"there is no file {str(file)!r}")
    # equally named files in different directories are separate modules, and hide no package
    name = f"mase_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _importable(path.parent):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserCodeError(f"{_where(error, path)}: {_what(error)}") from error
    except SystemExit as end:
        del sys.modules[name]
        if isinstance(end, Terminated):
            raise
        raise UserCodeExited(
            f"{_where(end, path)}: it would end the program ({_what(end)}); a file that registers "
            f"models, data sets or passes must not call exit()"
        ) from end
    return module


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _where(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _what(error: BaseException) -> str:
    message = error.msg if isinstance(error, SyntaxError) else str(error).partition("\n")[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
