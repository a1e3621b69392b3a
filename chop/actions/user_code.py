"""Import users' files that register models, data sets or passes."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from chop.system.processes import Terminated


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
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, Terminated):
            raise
        where, what = _where(error, path), _what(error)
        if isinstance(error, SystemExit):
            raise UserCodeExited(
                f"{where}: it would end the program ({what}); a file that registers models, "
                f"data sets or passes must not call exit()"
            ) from error
        raise UserCodeError(f"{where}: {what}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _where(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _what(error: BaseException) -> str:
    message = error.msg if isinstance(error, SyntaxError) else str(error).partition("\n")[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
