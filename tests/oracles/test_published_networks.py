"""Published networks are read as they are, and lose little in 8 bits: ResNet-20 and MLPerf Tiny."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chop.ir import MaseGraph
from chop.passes import Pipeline, run_pass

from .published import MLPERF, Published, resnet20, static_steps

pytestmark = [pytest.mark.slow]

TESTED, COMPARED, VERIFIED = 2500, 200, 20


@pytest.fixture(params=["resnet20", *MLPERF])
def published(request: Any, shared: Path, package: Any, tmp_path: Path) -> Published:
    package("onnx")
    package("onnxruntime")
    if request.param == "resnet20":
        return resnet20(shared)
    return MLPERF[request.param](shared, tmp_path)


def results(model: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.cat([model(batch) for batch in x.split(500)])


def share(outputs: Tensor, labels: Tensor) -> float:
    return 100 * float((outputs.argmax(1) == labels).float().mean())


def in_onnxruntime(file: Path, x: Tensor, *, optimize: bool) -> Tensor:
    from chop.onnx.runtime import Runtime

    runtime = Runtime(file, optimize=optimize)
    (name,) = runtime.inputs
    (output,) = runtime.run({name: x.numpy()}).values()
    return torch.from_numpy(output)


def test_a_network_is_read_scores_as_published_and_keeps_its_accuracy_in_8_bits(
    published: Published, tmp_path: Path
) -> None:
    from chop.onnx.fusion import fusion_report

    model, tested = published.model, published.tested[-TESTED:]
    labels = None if published.labels is None else published.labels[-TESTED:]
    few = tested[:COMPARED]
    wanted = results(model, tested)
    if published.file is not None:
        reference = in_onnxruntime(published.file, few, optimize=False)
        torch.testing.assert_close(wanted[:COMPARED], reference, rtol=1e-4, atol=1e-4)
    if labels is not None and published.published is not None:
        assert abs(share(wanted, labels) - published.published) < 1

    graph = MaseGraph(model)
    (name,) = (str(node.target) for node in graph.nodes if node.op == "placeholder")
    graph, _ = Pipeline(static_steps(published, name))(graph)
    found = results(graph.model, tested)
    if labels is not None:
        assert share(found, labels) > share(wanted, labels) - 0.3
    else:
        assert (found - wanted).norm() < 0.05 * wanted.norm()

    file = tmp_path / "quantised.onnx"
    run_pass("export_onnx", graph, {"save_path": file, "format": "qdq", "silent": True})
    assert not fusion_report(file).in_float
    _, verified = run_pass("verify_integers", graph, {"num_samples": VERIFIED, "silent": True})
    assert verified["mismatches"] == verified["output_mismatches"] == 0
    assert verified["findings"] == []
    integers = graph.to_integers()
    codes = integers(few)
    if not torch.equal(codes, found[:COMPARED]):  # a softmax at the end is left to the host
        codes = torch.softmax(codes, -1)
    torch.testing.assert_close(codes, found[:COMPARED], rtol=1e-5, atol=1e-6)
    for optimize in (True, False):  # as it is deployed, and as it is written
        output = in_onnxruntime(file, few, optimize=optimize)
        torch.testing.assert_close(output, found[:COMPARED], rtol=1e-5, atol=1e-6)
