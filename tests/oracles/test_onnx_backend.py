"""ONNX judges our reader: the backend tests of its wheel are computed as it says, or refused.

`python tests/oracles/test_onnx_backend.py [WORD]` prints the result of each case with a word.
"""

from __future__ import annotations

import math
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx", "1.23", reason="needs onnx 1.23: run `make test-all`")

from onnx import TensorProto, numpy_helper  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402

from chop.onnx.reading import UnreadableModel, read_network  # noqa: E402

ALL_CASES, MIN_EQUAL = 1884, 1420
LIGHT_RTOL = 1e-3
# types that torch has no arithmetic of are read as wider ones
WIDER = {"uint16": "int32", "uint32": "int64", "int4": "int8", "int2": "int8"}
WIDER |= {"uint4": "uint8", "uint2": "uint8"}


@dataclass(frozen=True)
class Verdict:
    """`equal`, `refused`, or what went wrong; and how."""

    word: str
    reason: str = ""


@cache
def node_cases() -> list[Any]:
    """Return the cases of single nodes, whose inputs are drawn by numpy when they are loaded."""
    state = np.random.get_state()
    np.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    np.random.set_state(state)
    return sorted(cases, key=lambda case: str(case.name))


def judge(case: Any, folder: Path) -> Verdict:
    """Return the verdict on a case as it is, or else with constants for all but the first input.

    Nodes take axes, shapes and weights as inputs, which a network has as constants.
    """
    ((inputs, outputs),) = case.data_sets
    verdict = compared(case.model, inputs, outputs, (case.rtol, case.atol), folder)
    if verdict.word != "refused" or not is_tensors(inputs) or len(inputs) < 2:
        return verdict
    second = compared(with_constants(case.model, inputs), inputs[:1], outputs,
                      (case.rtol, case.atol), folder)  # fmt: skip
    return verdict if second.word == "refused" else second


def is_tensors(values: Sequence[Any]) -> bool:
    return all(isinstance(value, np.ndarray | np.generic | TensorProto) for value in values)


def with_constants(model: Any, inputs: Sequence[Any]) -> Any:
    """Return a model whose inputs are constants, except for the first."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    names = [each.name for each in changed.graph.input]
    for name, value in list(zip(names, inputs, strict=True))[1:]:
        tensor = value if isinstance(value, TensorProto) else numpy_helper.from_array(value, name)
        changed.graph.initializer.append(tensor)
        changed.graph.initializer[-1].name = name
    del changed.graph.input[1:]
    return changed


def compared(
    model: Any, inputs: Sequence[Any], outputs: Sequence[Any], limits: Any, folder: Path
) -> Verdict:
    """Read a model, run it, and compare all outputs: their number, types, shapes and numbers."""
    file = folder / "case.onnx"
    file.write_bytes(model.SerializeToString())
    try:
        network = read_network(file).model
    except UnreadableModel as error:
        text = str(error)
        is_sentence = "\n" not in text and len(text.split()) > 3
        return Verdict("refused" if is_sentence else "refused without a sentence", text)
    except Exception as error:
        return Verdict("traceback in reading", repr(error))
    if not is_tensors([*inputs, *outputs]):
        return Verdict("read without its sequences")
    try:
        with torch.no_grad():
            results = network(*map(in_torch, inputs))
    except Exception as error:
        return Verdict("traceback in running", repr(error))
    results = results if isinstance(results, tuple) else (results,)
    if len(results) != len(outputs):
        return Verdict("wrong", f"{len(results)} outputs for {len(outputs)}")
    reasons = [differs(ours, in_torch(wanted), *limits)
               for ours, wanted in zip(results, outputs, strict=True)]  # fmt: skip
    found = next(filter(None, reasons), "")
    return Verdict("wrong" if found else "equal", found)


def in_torch(value: Any) -> torch.Tensor:
    """Return a tensor of a case in the type in which it is read."""
    array = numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array.astype(WIDER.get(array.dtype.name, array.dtype))))


def differs(ours: torch.Tensor, wanted: torch.Tensor, rtol: float, atol: float) -> str:
    """Return how a result differs; "" if it does not.

    ONNX computes 16-bit cases step by step: two units of their last place are allowed.
    """
    if (ours.dtype, ours.shape) != (wanted.dtype, wanted.shape):
        return f"{ours.dtype} {list(ours.shape)} for {wanted.dtype} {list(wanted.shape)}"
    if not ours.is_floating_point():
        return "" if torch.equal(ours, wanted) else "other numbers"
    if ours.dtype.itemsize == 2:
        rtol = max(rtol, 2 * torch.finfo(ours.dtype).eps)
    a, b = ours.double(), wanted.double()
    return "" if torch.allclose(a, b, rtol, atol, equal_nan=True) else "other numbers"


def test_every_twentieth_case_is_equal_or_refused(tmp_path: Path) -> None:
    verdicts = {case.name: judge(case, tmp_path) for case in node_cases()[::20]}
    others = {k: v for k, v in verdicts.items() if v.word not in ("equal", "refused")}
    assert not others
    assert sum(v.word == "equal" for v in verdicts.values()) > len(verdicts) / 2


@pytest.mark.slow
def test_all_cases_are_equal_or_refused_and_most_are_equal(tmp_path: Path) -> None:
    verdicts = {case.name: judge(case, tmp_path) for case in node_cases()}
    others = {k: v for k, v in verdicts.items() if v.word not in ("equal", "refused")}
    assert not others
    assert len(verdicts) >= ALL_CASES
    assert sum(v.word == "equal" for v in verdicts.values()) >= MIN_EQUAL


LIGHT = ["bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
         "squeezenet", "vgg19", "zfnet512"]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LIGHT[-3:] + LIGHT[:-3])
def test_whole_networks_of_the_wheel_are_equal(name: str) -> None:
    """Their weights are constants, as the wheel would be too large otherwise."""
    file = Path(onnx.backend.test.__file__).parent / "data" / "light" / f"light_{name}.onnx"
    wanted = TensorProto()
    wanted.ParseFromString(file.with_name(f"light_{name}_output_0.pb").read_bytes())
    network = read_network(file)
    shape = [size if isinstance(size, int) else 1 for size in network.inputs[0].shape]
    count = math.prod(shape)
    x = torch.from_numpy((np.arange(count).reshape(shape) / count).astype(np.float32))
    with torch.no_grad():
        result = network.model(x)
    assert differs(result, in_torch(wanted), LIGHT_RTOL, 1e-7) == ""


def main(word: str = "") -> None:
    """Print the verdict of each case with a word in its name, and how many there are of each."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in node_cases():
            if word in case.name:
                found[case.name] = judge(case, Path(folder))
    for name, verdict in found.items():
        print(name, verdict.word, verdict.reason.rpartition("case.onnx")[2][:160])
    print(dict(Counter(verdict.word for verdict in found.values())), len(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
