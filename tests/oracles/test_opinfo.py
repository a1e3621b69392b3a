"""torch judges what becomes of a call of each of its ops: captured, described, saved, exported.

The calls are those of PyTorch's own tests (OpInfo). A call is right at every stage, or refused in
a sentence.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime", reason="needs the extra onnx: run `make test-all`")

from . import stages

# torch warns of some of its own calls
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

PARTS = 120  # of the table, one for each test
CALLS = 4  # of each op with each dtype
DTYPES = (torch.float32, torch.int64, torch.bool)
LEFT_OUT = {
    "memory as it was found": "empty empty_like empty_permuted empty_strided new_empty "
    "new_empty_strided",
    "reads beside its tensor": "as_strided.partial_views",
    "vectors of a null space, which last bits decide": "pca_lowrank svd_lowrank",
    "CUDA only": "jiterator_unary jiterator_binary jiterator_4inputs_with_extra_args "
    "jiterator_binary_return_by_ref jiterator_2inputs_2outputs",
}
SKIPPED = {name for names in LEFT_OUT.values() for name in names.split()}
# which of equal numbers comes first
UNORDERED = ("topk",)
_NEVER_REFUSED = """
    add addmm clamp div.floor_rounding einsum exp expand fmod lerp masked_fill matmul maximum
    nn.functional.adaptive_avg_pool2d nn.functional.conv1d nn.functional.conv2d nn.functional.gelu
    nn.functional.group_norm nn.functional.interpolate.bilinear nn.functional.layer_norm
    nn.functional.linear nn.functional.pad.constant nn.functional.relu6 nn.functional.softplus pow
    remainder repeat reshape sigmoid slice stack where
"""
NEVER_REFUSED = tuple(_NEVER_REFUSED.split())


@pytest.fixture(scope="module")
def ops(torch_tests) -> list[Any]:
    invocations = torch_tests("common_methods_invocations")
    # seeds inside of a call, which a graph does not hold
    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return [op for op in invocations.op_db if name_of(op) not in SKIPPED]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_call_of_an_op_is_right_at_every_stage_or_refused(part, ops, tmp_path):
    wrong = [f"{name}: {said}" for op in ops[part::PARTS] for name, said in failures(op, tmp_path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NEVER_REFUSED)
def test_common_ops_come_out_right(name, ops, tmp_path):
    (op,) = (op for op in ops if name_of(op) == name)
    for dtype, _, sample in calls(op):
        if dtype == DTYPES[0]:
            model, given = stages.network(op.op, (sample.input, *sample.args), sample.kwargs)
            assert stages.check_stages(model, given, "auto", tmp_path / "graph") == ""


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}".strip(".")


def failures(op: Any, folder: Path) -> list[tuple[str, str]]:
    found = []
    for dtype, number, sample in calls(op):
        model, given = stages.network(op.op, (sample.input, *sample.args), sample.kwargs)
        first = dtype == DTYPES[0] and not number
        for front_end in ("auto", "export") if first else ("auto",):
            try:
                stages.check_stages(
                    model, given, front_end, folder / "graph", exact="linalg" not in op.name
                )  # LAPACK computes in an order that depends on addresses
            except stages.Wrong as error:
                found.append((f"{name_of(op)} {dtype} {number} {front_end}", str(error)))
    return found


def calls(op: Any) -> Iterator[tuple[torch.dtype, int, Any]]:
    for dtype in DTYPES:
        if not op.supports_dtype(dtype, "cpu") or (op.name in UNORDERED and dtype != DTYPES[0]):
            continue
        torch.default_generator.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # none is drawn while another one is traced
            samples = list(itertools.islice(op.sample_inputs("cpu", dtype), CALLS))
        for number, sample in enumerate(samples):
            yield dtype, number, sample
