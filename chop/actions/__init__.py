"""What `ch` does: train, test, transform, search; one file each.

`from chop.actions import train` gives something to call: the file `train.py`, which, when called,
calls its function of that name. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableFile(ModuleType):
    """A file `train.py` that can be called like its function `train`."""

    __test__ = False  # for pytest, which would collect `from chop.actions import test`

    @property
    def __wrapped__(self) -> Any:
        """The function, whose signature is then this file's."""
        return getattr(self, self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


class _Actions(ModuleType):
    """A package whose files become callable as they are imported, which sets them here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and hasattr(value, name):
            value.__class__ = _CallableFile
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Actions
