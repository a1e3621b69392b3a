"""Movement: what training moves towards zero goes first."""

import copy
import logging
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_movement_metadata_analysis_pass,
    hook_inspection_analysis_pass,
    init_metadata_analysis_pass,
    prune_channels_transform_pass,
    prune_detach_hook_transform_pass,
    prune_transform_pass,
)
from chop.passes.graph.transforms.pruning import masks_of

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def ready(model):
    mg, _ = init_metadata_analysis_pass(MaseGraph(model))
    return add_common_metadata_analysis_pass(mg, {"dummy_in": {"input": X}})[0]


@pytest.fixture
def graph():
    torch.manual_seed(0)
    mg = ready(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    return add_movement_metadata_analysis_pass(mg)[0]


def backward(model):
    model(X).square().mean().backward()


def test_scores_add_up_over_backward_passes_whatever_is_in_grad(graph):
    layer = graph.modules["0"]
    expected = torch.zeros_like(layer.weight)
    for _ in range(3):  # gradients pile up in .grad, as with accumulation
        before = layer.weight.grad.clone() if layer.weight.grad is not None else 0.0
        backward(graph.model)
        expected -= layer.weight.detach() * (layer.weight.grad - before)
        layer.weight.data *= 0.9
    torch.testing.assert_close(layer.weight_movement, expected)


@pytest.mark.parametrize("way", ["clone", "pickle"])
def test_copies_go_on_by_themselves(graph, way):
    backward(graph.model)
    layer = graph.modules["0"]
    pickled = pickle.loads(pickle.dumps(copy.deepcopy(layer)))
    new = graph.clone().modules["0"] if way == "clone" else pickled
    kept = layer.weight_movement.clone()
    assert torch.equal(new.weight_movement, kept)
    new(X).sum().backward()
    assert not torch.equal(new.weight_movement, kept)
    assert torch.equal(layer.weight_movement, kept)


def test_weights_that_move_towards_zero_are_pruned_though_they_are_large():
    mg = ready(nn.Sequential(nn.Linear(4, 1, bias=False)))
    add_movement_metadata_analysis_pass(mg)
    layer = mg.modules["0"]
    layer.weight.data[:] = torch.tensor([[9.0, 0.1, 8.0, 0.2]])
    # descent shrinks the large and grows the small
    (layer(torch.tensor([[1.0, -1, 1, -1]]))).sum().backward()
    prune_transform_pass(mg, weight={"sparsity": 0.5, "method": "movement"})
    assert masks_of(mg.modules["0"])["weight"].tolist() == [[False, True, False, True]]


def test_scores_are_cut_with_their_channels(graph):
    backward(graph.model)
    scores = graph.modules["0"].weight_movement.mean(1)
    _, info = prune_channels_transform_pass(graph, sparsity=0.5, method="movement")
    assert info["removed"] == {"0": sorted(scores.argsort()[:3].tolist())}
    assert graph.modules["0"].weight_movement.shape == (3, 4)


def test_nothing_is_followed_without_gradients_and_outputs_are_the_same(graph):
    plain = ready(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    state = {k: v for k, v in graph.model.state_dict().items() if "movement" not in k}
    plain.model.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(graph.model(X), plain.model(X))
    assert not graph.modules["0"].weight_movement.any()


def test_detaching_forgets_the_movement(graph):
    backward(graph.model)
    prune_transform_pass(graph, weight={"sparsity": 0.5, "method": "movement"})
    prune_detach_hook_transform_pass(graph)
    assert hook_inspection_analysis_pass(graph)[1] == {}
    assert list(graph.modules["0"].state_dict()) == ["weight", "bias"]
    backward(graph.model)


def test_without_movement_there_is_nothing_to_prune_by():
    mg = ready(nn.Sequential(nn.Linear(4, 6)))
    with pytest.raises(ValueError, match=r"layer '0' has no movement; run add_movement_metadata"):
        prune_transform_pass(mg, weight={"sparsity": 0.5, "method": "movement"})
    with pytest.raises(ValueError, match="'movement' is for weights"):
        prune_transform_pass(mg, activation={"sparsity": 0.5, "method": "movement"})


def test_weights_that_have_not_moved_are_not_pruned_by_chance(graph):
    with pytest.raises(ValueError, match=r"weights of layer '0' have not moved; train after"):
        prune_transform_pass(graph, weight={"sparsity": 0.5, "method": "movement"})


GO_ON = """
import sys
import torch
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import prune_transform_pass

graph = MaseGraph.from_checkpoint(sys.argv[1])
before = graph.modules["0"].weight_movement.clone()
graph.model(torch.ones(8, 4)).square().mean().backward()
assert before.any() and not torch.equal(before, graph.modules["0"].weight_movement)
prune_transform_pass(graph, weight={"sparsity": 0.5, "method": "movement"})
graph.export(sys.argv[2])
"""


@pytest.mark.parametrize("where", ["here", pytest.param("elsewhere", marks=pytest.mark.slow)])
def test_a_saved_graph_goes_on_following(graph, tmp_path, caplog, monkeypatch, where):
    logging.getLogger("chop").propagate = True
    backward(graph.model)
    graph.export(tmp_path / "before")
    assert "hooks" not in caplog.text
    files = [str(tmp_path / name) for name in ("before", "after")]
    if where == "elsewhere":
        subprocess.run([sys.executable, "-c", GO_ON, *files], check=True)
    else:
        monkeypatch.setattr(sys, "argv", ["", *files])
        exec(GO_ON, {})
    graph.model(torch.ones(8, 4)).square().mean().backward()
    prune_transform_pass(graph, weight={"sparsity": 0.5, "method": "movement"})
    after = MaseGraph.from_checkpoint(tmp_path / "after")
    for name in ("0", "2"):
        here, there = graph.modules[name], after.modules[name]
        assert torch.equal(here.weight_movement, there.weight_movement)
        assert torch.equal(masks_of(here)["weight"], masks_of(there)["weight"])


LOAD = """
import sys
from chop.ir.graph.mase_graph import MaseGraph
assert "chop.passes" not in sys.modules
print((MaseGraph.from_checkpoint(sys.argv[1]).modules["0"].weight == 0).sum().item())
"""


def test_a_saved_graph_imports_what_its_layers_need(graph, tmp_path):
    prune_transform_pass(graph, weight={"sparsity": 0.5})
    graph.export(tmp_path / "pruned")
    command = [sys.executable, "-c", LOAD, str(tmp_path / "pruned")]
    zeros = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(zeros) == (graph.modules["0"].weight == 0).sum() > 0


def test_hooks_of_others_are_said_not_to_be_saved(graph, tmp_path, caplog):
    logging.getLogger("chop").propagate = True
    graph.modules["0"].register_forward_hook(lambda *_: None)
    graph.export(tmp_path / "saved")
    assert "the hooks of module '0' are not saved" in caplog.text


def test_scores_that_are_no_longer_added_up_are_refused(graph):
    backward(graph.model)
    graph.modules["0"]._forward_pre_hooks.clear()
    message = r"movement of layer '0' is no longer accumulated.*train aga"
    with pytest.raises(ValueError, match=message):
        prune_transform_pass(graph, weight={"sparsity": 0.5, "method": "movement"})


def test_a_file_with_a_follower_and_no_scores_is_refused(graph, tmp_path):
    graph.export(tmp_path / "saved")
    file = tmp_path / "saved" / "graph.json"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"weight_movement": {', '"weight_moved": {'), encoding="utf-8")
    with pytest.raises(ValueError, match="has no 'weight_movement' of its weight's shape"):
        MaseGraph.from_checkpoint(tmp_path / "saved")
