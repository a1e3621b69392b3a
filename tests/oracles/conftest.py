"""The tables of torch's own tests: a call of every op and of every layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.fixture(scope="session")
def torch_tests(package: Callable[[str], Any]) -> Callable[[str], Any]:
    """`torch_tests("common_modules")` is a module of torch's tests."""
    package("expecttest")

    def imported(name: str) -> Any:
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # otherwise no later test could set a flag
            patch.setattr(torch.backends, "disable_global_flags", lambda: None)
            return package(f"torch.testing._internal.{name}")

    return imported
