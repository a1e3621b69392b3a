"""Adder graphs on disk: found by content, refused when damaged, never needed."""

import gzip
import json
import logging

import numpy as np
import pytest
import torch
from torch import nn

from chop import extensions
from chop.hardware.unrolled import layer_logic, layers_of, logic, logic_cache, unrolled_circuit
from chop.hardware.unrolled.ops.weighted import linear
from chop.hardware.unrolled.registry import unrolls
from chop.integers import LinearCodes, ReluCodes, Scale

from .graphs import of_input, perceptron, quantised

pytest.importorskip("alkaid")
SIZES = [12, 10, 8]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MASE_CACHE", str(tmp_path))
    monkeypatch.setattr(logic_cache, "FEWEST_OPS", 0)
    logic.forget_logic()
    yield tmp_path / "adders"
    logic.forget_logic()


@pytest.fixture
def traced(monkeypatch):
    """The layers that were traced."""
    names, original = [], logic._traced

    def noting(graph, layer):
        names.append(layer.name)
        return original(graph, layer)

    monkeypatch.setattr(logic, "_traced", noting)
    return names


def test_a_layer_is_traced_once_for_all_processes(folder, traced):
    first = unrolled_circuit(perceptron(SIZES))
    assert traced == ["fc1", "fc2"]
    logic.forget_logic()  # as a new process
    assert unrolled_circuit(perceptron(SIZES)) == first
    assert traced == ["fc1", "fc2"]
    unrolled_circuit(perceptron(SIZES, seed=1))
    assert traced == ["fc1", "fc2"] * 2


def test_tables_keep_which_entries_never_occur():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8))
    graph = quantised(model, (6,))
    entries = []
    for _ in range(2):
        logic.forget_logic()
        made = [layer_logic(graph, layer) for layer in layers_of(graph)]
        tables = [table for each in made for table in each.logic.lookup_tables or ()]
        entries.append([np.ma.masked_array(t.table, t.mask).tolist() for t in tables])
    assert entries[0] == entries[1] != []


@pytest.mark.parametrize(
    "damage",
    [
        lambda old: b"",
        lambda old: old[: len(old) // 2],
        lambda old: b"not compressed",
        lambda old: gzip.compress(b"{}"),
        lambda old: gzip.compress(b"[" * 100_000),
        lambda old: gzip.compress(json.dumps(inverted(json.loads(gzip.decompress(old)))).encode()),
    ],
    ids=["empty", "cut off", "other", "no logic", "nested", "wrong results"],
)
def test_a_damaged_entry_is_computed_and_written_again(folder, traced, caplog, damage):
    expected = unrolled_circuit(perceptron(SIZES))
    files = {file: file.read_bytes() for file in folder.iterdir()}
    assert len(files) == 2
    for file, old in files.items():
        file.write_bytes(damage(old))
    logic.forget_logic()
    traced.clear()
    with caplog.at_level(logging.WARNING):
        assert unrolled_circuit(perceptron(SIZES)) == expected
    assert traced == ["fc1", "fc2"]
    assert caplog.text.count("computing it again") == 2
    assert {file: file.read_bytes() for file in folder.iterdir()} == files


def inverted(told):
    """Logic whose results have the other sign."""
    negations = logic_cache.FIELDS.index("out_negs")
    told["logic"][negations] = [not is_negative for is_negative in told["logic"][negations]]
    return told


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch, traced):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MASE_CACHE", str(tmp_path / "file"))
    unrolled_circuit(perceptron(SIZES))
    assert traced == ["fc1", "fc2"]


def test_methods_that_are_added_have_other_entries(monkeypatch):
    before = logic_cache.entry_of("layer")
    monkeypatch.setattr(extensions, "METHODS", [*extensions.METHODS, "tests.methods"])
    assert logic_cache.entry_of("layer") != before
    assert "tests.methods." in logic_cache.packages_in_key()


def test_other_versions_of_alkaid_and_of_the_code_have_other_entries(monkeypatch):
    before = logic_cache.entry_of("layer")
    monkeypatch.setattr(logic_cache, "_code", lambda packages: "other")
    assert logic_cache.entry_of("layer") != before


def test_the_entries_used_last_are_kept(folder, monkeypatch):
    monkeypatch.setattr(logic_cache, "MAX_ENTRIES", 3)
    for seed in range(2):
        unrolled_circuit(perceptron(SIZES, seed=seed))
    assert len(list(folder.iterdir())) == 3


def test_small_logic_is_not_written(folder, monkeypatch):
    monkeypatch.setattr(logic_cache, "FEWEST_OPS", 10_000)
    unrolled_circuit(perceptron(SIZES))
    assert not folder.exists()


class OwnLinear(LinearCodes):
    """A linear op whose function is not part of MASE."""


@unrolls(OwnLinear, starts_layer=True)
def own_linear(op, inputs, codes):
    return linear(op, inputs, codes)


class OwnRelu(ReluCodes):
    """An op whose meaning is not part of MASE."""

    def meaning(self, b, *inputs):
        return b.max(b.add(*inputs, 1), 0)


WEIGHT = torch.randint(-8, 8, (10, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("op", [OwnLinear(WEIGHT, None, Scale.power(-2), 4), OwnRelu()])
def test_ops_of_ones_own_are_traced_by_each_process(op, folder, traced):
    graph = of_input(5, (12,))
    graph.add("own", op, ["x_codes"], "own")
    graph.outputs.append("own")
    for _ in range(2):
        logic.forget_logic()
        unrolled_circuit(graph)
    assert traced == ["own"] * 2
    assert not folder.exists()
