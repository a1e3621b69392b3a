"""Each stage that a network goes through, from capture to a file, against torch itself."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

import chop
from chop.ir import MaseGraph
from chop.ir.graph.saving import load_graph, save_graph
from chop.onnx.runtime import Runtime
from chop.passes import run_pass
from chop.passes.graph.interface.export_onnx import onnx_model

PRODUCT = str(Path(chop.__file__).parent)
REFUSALS = (ValueError, TypeError, KeyError, RuntimeError, NotImplementedError, OSError)
LONGEST = 1000  # letters of a refusal


class Refused(Exception):
    """A stage refuses a network in a sentence."""


class Wrong(AssertionError):
    """A stage gives something else than torch, or fails without a reason."""


def network(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[nn.Module, list[Tensor]]:
    """Return a network that makes one call, and its inputs: the tensors among the arguments."""
    leaves, form = tree_flatten((args, kwargs))
    given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def call(*tensors: Any) -> Any:
        values = iter(tensors)
        filled = [next(values) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(filled, form)
        return function(*args, **kwargs)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if isinstance(function, nn.Module):
                self.layer = function

    names = ", ".join(f"x{place}" for place in range(len(given)))
    scope: dict[str, Any] = {"call": call}
    exec(f"def forward(self, {names}):\n    return call({names})", scope)  # torch.fx reads names
    Network.forward = scope["forward"]  # type: ignore[method-assign]
    return Network().eval(), given


def check_stages(
    model: nn.Module, inputs: list[Tensor], front_end: str, folder: Path, *, exact: bool = True
) -> str:
    """Compare all stages with torch; return "" or the first refusal that a stage gave.

    Without `exact`, torch itself may give other last bits for the same numbers elsewhere in memory.
    """
    assert_equal = assert_same if exact else assert_close
    by_name = {f"x{place}": tensor for place, tensor in enumerate(inputs)}
    expected = eager(model, inputs)
    try:
        with stage("capture"):
            graph = MaseGraph(model, front_end=front_end, dummy_in=copies(by_name))
        with stage("run"):
            assert_equal(eager(graph.model, inputs), expected)
        with stage("metadata"):
            graph, _ = run_pass("init_metadata", graph, {})
            graph, _ = run_pass("add_common_metadata", graph, {"dummy_in": copies(by_name)})
            run_pass("verify_metadata", graph, {"strict": True})
        with stage("cost"):
            run_pass("cost", graph, {})
        with stage("save"):
            save_graph(graph, folder)
            assert_equal(eager(load_graph(folder).model, inputs), expected)
        with stage("export"):
            file = onnx_model(graph)
        if all(tensor.numel() for tensor in inputs):  # kernels of onnxruntime differ on nothing
            with stage("onnxruntime"):
                assert_close(run(file, inputs), expected)
            with stage("onnxruntime, twice the batch"):
                assert_right_for_two_batches(file, model, inputs)
    except Refused as refusal:
        return str(refusal)
    return ""


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Name the stage that fails; a failure that is one sentence of ours is a refusal."""
    try:
        yield
    except Exception as error:
        said = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
        if is_refusal(error, said):
            raise Refused(f"{name}: {said}") from error
        raise Wrong(f"{name}: {type(error).__name__}: {said[:300]}") from error


def is_refusal(error: Exception, said: str) -> bool:
    frame = traceback.extract_tb(error.__traceback__)[-1].filename
    ours = frame.startswith(PRODUCT) or type(error).__module__.startswith("chop")
    return ours and isinstance(error, REFUSALS) and "\n" not in said and len(said) < LONGEST


def copies(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in inputs.items()}


def eager(model: Callable[..., Any], inputs: list[Tensor]) -> list[Any]:
    """Return the results of a call on copies, as many write to their inputs, and some draw."""
    torch.default_generator.manual_seed(0)
    with torch.no_grad():
        return tree_flatten(model(*(tensor.detach().clone() for tensor in inputs)))[0]


def run(file: Any, inputs: list[Tensor]) -> list[Tensor]:
    """Return what onnxruntime gives, with its optimisations."""
    runtime = Runtime(file)
    given = {f"x{place}": tensor.detach().numpy() for place, tensor in enumerate(inputs)}
    found = runtime.run({name: given[name] for name in runtime.inputs})
    return [torch.from_numpy(np.asarray(array)) for array in found.values()]


def assert_right_for_two_batches(file: Any, model: nn.Module, inputs: list[Tensor]) -> None:
    """Compare with torch for two batches in one, where the file says that it takes any."""
    free = [i.type.tensor_type.shape.dim[:1] for i in file.graph.input]
    names = {
        i.name for i, dims in zip(file.graph.input, free, strict=True) if dims and dims[0].dim_param
    }
    if not names:
        return
    doubled = [
        torch.cat([tensor, tensor]) if f"x{place}" in names else tensor
        for place, tensor in enumerate(inputs)
    ]
    try:
        expected = eager(model, doubled)
    except Exception:
        return  # the call is for its own sizes
    assert_close(run(file, doubled), expected)


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected), f"{len(found)} results instead of {len(expected)}"
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        else:
            assert one == other or one != one, f"{one} instead of {other}"


def assert_close(found: list[Tensor], expected: list[Any]) -> None:
    """Compare what two programs compute, each in its own order of float32 additions."""
    expected = [each for each in expected if isinstance(each, Tensor)]
    assert len(found) == len(expected), f"{len(found)} results instead of {len(expected)}"
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape, f"shape {one.shape} instead of {other.shape}"
        assert one.dtype == other.dtype, f"{one.dtype} instead of {other.dtype}"
        if other.is_floating_point():
            finite = other[other.isfinite()].abs()
            largest = finite.max().item() if finite.numel() else 0.0
            near = torch.isclose(one, other, 1e-4, 1e-5 * max(1.0, largest), equal_nan=True)
        else:
            near = one == other
        assert near.all(), f"{one[~near][:4].tolist()} instead of {other[~near][:4].tolist()}"
