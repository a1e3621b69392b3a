"""What is said when a model cannot be captured: where, why, and what to do."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import fx

# frames of these are not the user's code
LIBRARIES = (
    str(Path(torch.__file__).parent) + os.sep,
    str(Path(__file__).parents[1]) + os.sep,
    "<eval_with_key>",
    "<frozen",
)
STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep

# these come from a mistake in forward(), not from the limits of tracing
ORDINARY = (NameError, AttributeError, ImportError, ZeroDivisionError, LookupError)
BY_VALUE = ("GuardOnDataDependentSymNode", "DataDependentOutputException")


ADVICE = "give example inputs with MaseGraph(model, dummy_in={name: tensor}), "


class TraceError(RuntimeError):
    """A model that cannot be captured; the message says where, why, and what to do."""


class UnsupportedTorch(RuntimeError):
    """A version of torch without a name that a correct graph needs."""


def explained(error: Exception, name: str, module: object, inputs_advice: str = ADVICE) -> str:
    """Return the message for a model that torch.fx cannot trace; `module` was running."""
    subject = _subject(name, module)
    # the first sentence of fx's explanation is about the model, the rest about fx
    reason = first_sentence(error)
    if "co_varnames" in reason:
        reason = "torch.fx cannot read its arguments, as it is decorated or takes *args"
    frames = traceback.extract_tb(error.__traceback__)
    users_error = isinstance(error, ORDINARY) or not is_library(frames[-1].filename)
    if users_error and "Proxy" not in str(error):
        kind = type(error).__name__
        return f"cannot trace {subject}{users_line(error)}: {kind}: {reason}; fix forward()"
    return (
        f"cannot trace {subject}{users_line(error)}: {reason}; "
        f"{inputs_advice}{_frozen(error)}{_kept_whole(name, module)}, "
        f"or use module passes, which work on the model itself"
    )


def _frozen(error: BaseException) -> str:
    """Return the advice to freeze an argument that decides: one in the line that has a default."""
    users = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not is_library(frame.f_code.co_filename)
    ]
    if not users:
        return ""
    frame, line = users[-1]
    words = re.findall(r"\w+", linecache.getline(frame.f_code.co_filename, line))
    for word in words:
        node = getattr(frame.f_locals.get(word), "node", None)
        if isinstance(node, fx.Node) and node.op == "placeholder" and node.args:
            freeze = f"MaseGraph(model, cf_args={{{str(node.target)!r}: value}})"
            return f"freeze the argument that decides with {freeze}, "
    return ""


def names_a_line(error: TraceError) -> bool:
    """Return whether a message names the line of the user's code that failed."""
    return re.search(r" line \d+: `", str(error)) is not None


def explained_export(error: BaseException, name: str, module: object) -> str:
    """Return the message for a model that torch.export cannot capture; `module` was running."""
    cause = next((each for each in chain_of(error) if users_line(each)), error)
    begin = f"cannot trace {_subject(name, module)}{users_line(cause)}"
    whole = f"{_kept_whole(name, module)}, or use module passes, which work on the model itself"
    if is_about_values(error):
        return (
            f"{begin}: it decides by the values of a tensor, which a graph cannot; "
            f"compute both ways and choose with torch.where, {whole}"
        )
    reason = f"{type(cause).__name__}: {first_sentence(cause)}"
    frames = traceback.extract_tb(cause.__traceback__)
    if isinstance(cause, ORDINARY) or (frames and not is_library(frames[-1].filename)):
        return f"{begin}: {reason}; fix forward()"
    return f"{begin}: torch.export gives up with {reason}; {whole}"


def is_about_values(error: BaseException) -> bool:
    """Return whether forward() decides by the values of tensors."""
    return any(type(each).__name__ in BY_VALUE for each in chain_of(error))


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that caused it."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__ or each.__context__


def first_sentence(error: BaseException) -> str:
    """Return what an error says first, or its kind."""
    text = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    return text or type(error).__name__


def _subject(name: str, module: object) -> str:
    cls = type(module).__name__
    return f"module {name!r} ({cls})" if name else f"{cls}.forward"


def _kept_whole(name: str, module: object) -> str:
    as_leaf = f'custom_ops={{"modules": {{{type(module).__name__}: {{}}}}}}'
    if name:
        return f"keep the module whole with MaseGraph(model, {as_leaf})"
    return f"keep it whole in another module with MaseGraph({_wrapped(module)}, {as_leaf})"


def _wrapped(model: object) -> str:
    """Return code for a module that calls `model`; nn.Sequential suffices for one input."""
    forward = getattr(model, "forward", None)
    params = inspect.signature(forward).parameters.values() if forward else ()
    required = [p for p in params if p.default is p.empty]
    return "nn.Sequential(model)" if len(required) == 1 else "outer"


def is_installed(filename: str) -> bool:
    """Return whether code of this file is of a package that pip or the system installed."""
    return "site-packages" in filename or "dist-packages" in filename


def is_library(filename: str) -> bool:
    """Return whether code of this file is not the user's."""
    # the code of models from installed packages is shown
    return filename.startswith(LIBRARIES) or (
        filename.startswith(STANDARD_LIBRARY) and not is_installed(filename)
    )


def users_line(error: BaseException) -> str:
    """Return `, file.py line 12: if x.sum() > 0:` for the innermost frame outside libraries."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not is_library(frame.filename)]
    return f", {written(users[-1])}" if users else ""


def written(frame: traceback.FrameSummary) -> str:
    """Return the file, line and code of a frame."""
    text = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
    return f"{frame.filename} line {frame.lineno}: `{text}`"
