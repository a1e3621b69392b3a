"""How a model becomes a graph, and what is said when it cannot."""

import logging
import math
import operator
import re
import sys
from collections import Counter
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn

from chop.ir import MaseGraph, MaseTracer
from chop.ir.graph.trace_errors import TraceError
from chop.ir.graph.tracer import Leaf
from chop.nn.quantizers import integer_quantizer
from chop.passes import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)


class Calls(nn.Module):
    def __init__(self, fn, **layers):
        super().__init__()
        self.fn = fn
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.fn(self, x)


def names(model, **options):
    return [node.name for node in MaseGraph(model, **options).nodes]


def helper(x):
    return x * 2


class Inner(nn.Module):
    def forward(self, x):
        return x + 1


class TestLeaves:
    def test_layers_of_torch_are_leaves_and_containers_are_not(self):
        tracer = MaseTracer()
        assert tracer.is_leaf_module(nn.Linear(1, 1), "a")
        assert not tracer.is_leaf_module(nn.Sequential(), "a")
        assert not tracer.is_leaf_module(Inner(), "a")

    def test_a_class_says_that_it_is_a_leaf(self):
        class Whole(Leaf, Inner):
            pass

        assert names(nn.Sequential(Whole(), Inner())) == ["input_1", "_0", "add", "output"]

    def test_the_three_kinds_of_leaves_are_given_and_duplicates_removed(self):
        tracer = MaseTracer(
            custom_leaf_modules=(re, re),
            custom_leaf_layers=(Inner, Inner),
            custom_leaf_functions=(helper, helper),
            param_shapes_constant=True,
        )
        assert tracer.custom_leaf_modules == (re,)
        assert tracer.custom_leaf_layers == (Inner,)
        assert tracer.custom_leaf_functions == (helper,)
        graph = tracer.trace(Calls(lambda m, x: helper(m.inner(x)), inner=Inner()))
        assert [node.name for node in graph.nodes] == ["x", "inner", "helper", "output"]

    def test_a_function_is_a_leaf_where_it_is_called_through_its_module_too(self, monkeypatch):
        library = ModuleType("a_library")
        monkeypatch.setitem(sys.modules, "a_library", library)
        exec("def scaled(x): return x * 2\ndef outer(x): return scaled(x)", vars(library))
        options = {"custom_ops": {"functions": {library.scaled: {}}}}
        assert "scaled" in names(Calls(lambda m, x: library.scaled(x)), **options)
        assert "scaled" in names(Calls(lambda m, x: library.outer(x)), **options)

    def test_a_function_can_be_traced(self):
        assert [node.name for node in MaseTracer().trace(helper).nodes] == ["x", "mul", "output"]


class Flagged(nn.Module):
    def forward(self, x, flag=True):
        return x if flag else -x


def test_an_argument_that_decides_is_named():
    with pytest.raises(TraceError, match=r"MaseGraph\(model, cf_args=\{'flag': value\}\)"):
        MaseGraph(Flagged())


class TestWhatFxAloneCannotTrace:
    @pytest.mark.parametrize(
        ("fn", "name"),
        [
            (lambda m, x: x + torch.arange(x.size(1), device=x.device), "arange"),
            (lambda m, x: x + torch.ones(x.size(0), 1), "ones"),
            (lambda m, x: x + torch.zeros((x.size(0), 1)), "zeros"),
            (lambda m, x: x + torch.full((x.size(0), 1), 2.0), "full"),
            (lambda m, x: x @ torch.eye(x.size(1)), "eye"),
            (lambda m, x: x + torch.linspace(0, 1, x.size(1)), "linspace"),
            (lambda m, x: x + torch.tensor(x.size(1)), "tensor"),
            (lambda m, x: x * torch.finfo(x.dtype).min, "finfo"),
            (lambda m, x: x * torch.iinfo(x.long().dtype).max, "iinfo"),
            (lambda m, x: x / math.sqrt(x.size(1)), "sqrt"),
        ],
    )
    def test_constructors_and_python_mathematics_on_traced_values(self, fn, name):
        x = torch.randn(2, 3)
        graph = MaseGraph(Calls(fn))
        assert name in [node.name for node in graph.nodes]
        assert torch.equal(graph.model(x), fn(None, x))

    @pytest.mark.parametrize(
        "fn",
        [
            lambda m, x: torch.rand(x.size(0)),
            lambda m, x: torch.randn(x.shape),
            lambda m, x: torch.randint(0, 1000, (x.size(0),)),
            lambda m, x: torch.randperm(x.size(0)),
        ],
    )
    def test_random_numbers_of_a_traced_shape_are_drawn_at_each_run(self, fn):
        model = MaseGraph(Calls(fn)).model
        x = torch.zeros(100)
        assert not torch.equal(model(x), model(x))

    def test_a_traced_constructor_does_not_spoil_later_traces(self):
        # fx writes `wrap("torch.arange")` into the generated code, which fails at the next trace
        for _ in range(3):
            graph = MaseGraph(Calls(lambda m, x: x + torch.arange(x.size(0))))
            graph.model.recompile()
            graph.clone()
        assert fx.symbolic_trace(nn.Sequential(nn.ReLU())).graph.nodes

    def test_buffers_are_cut_to_a_traced_length(self):
        class Positions(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.randn(1, 10, 4))
                self.register_buffer("absent", None)

            def forward(self, x):
                if self.absent is not None:
                    x = x + self.absent
                return x + self.table[:, : x.size(1)]

        model = Positions()
        graph = MaseGraph(model)
        for length in (3, 7):
            x = torch.randn(2, length, 4)
            assert torch.equal(graph.model(x), model(x))

    def test_no_grad_inside_forward_is_no_obstacle(self):
        def quiet(m, x):
            with torch.no_grad():
                y = x * 2
            return y + x

        assert names(Calls(quiet)) == ["x", "mul", "add", "output"]

    def test_an_input_called_input_is_found_by_its_target(self):
        (placeholder,) = MaseGraph(nn.Sequential(nn.ReLU())).inputs
        assert (placeholder.name, placeholder.target) == ("input_1", "input")


class Decides(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


class Assigns(nn.Module):
    def forward(self, x):
        x[:, 0] = 0
        return x


def loops(x):
    return sum(row for row in x)


class TestRefusals:
    def test_a_mistake_in_forward_is_shown_as_one(self):
        with pytest.raises(TraceError) as caught:
            MaseGraph(Calls(lambda m, x: m.absent(x)))
        text = str(caught.value)
        assert "m.absent(x)" in text
        assert "AttributeError: 'Calls' object has no attribute 'absent'; fix forward()" in text
        assert "cf_args" not in text

    @pytest.mark.parametrize(
        ("model", "line", "reason"),
        [
            (Decides(), "if x.sum() > 0:", "variables cannot be used as inputs to control flow"),
            (Assigns(), "x[:, 0] = 0", "'Proxy' object does not support item assignment"),
            (Calls(lambda m, x: x * len(x)), "x * len(x)", "'len' is not supported"),
            (Calls(lambda m, x: loops(x)), "return sum(row for row in x)", "cannot be iterated"),
            (Calls(lambda m, x: range(x.size(0))), "range(x.size(0))", "interpreted as an integer"),
        ],
    )
    def test_it_is_one_sentence_with_the_line_the_reason_and_what_to_do(self, model, line, reason):
        with pytest.raises(TraceError) as refused:
            MaseGraph(model)
        text = str(refused.value)
        cls = type(model).__name__
        assert text.startswith(f"cannot trace {cls}.forward, {__file__} line ")
        assert line in text
        assert reason in text
        assert "MaseGraph(model, dummy_in={name: tensor})" in text
        assert "cf_args" not in text
        assert f'custom_ops={{"modules": {{{cls}: {{}}}}}}' in text
        assert text.endswith("or use module passes, which work on the model itself")
        assert "\n" not in text
        assert ". " not in text
        assert refused.value.__cause__ is not None

    def test_the_innermost_module_is_named(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), Decides()))
        with pytest.raises(TraceError, match=r"cannot trace module '1\.1' \(Decides\), .*: `if x"):
            MaseGraph(model)

    def test_what_it_advises_works(self):
        model = nn.Sequential(nn.Linear(4, 4), Decides())
        x = torch.randn(2, 4)
        graph = MaseGraph(model, custom_ops={"modules": {Decides: {}}})
        assert torch.equal(graph.model(x), model(x))
        alone = MaseGraph(nn.Sequential(Decides()), custom_ops={"modules": {Decides: {}}})
        assert torch.equal(alone.model(x), Decides()(x))

    @pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.LSTM(4, 4)])
    def test_a_layer_that_is_itself_the_model_goes_into_a_container(self, layer):
        with pytest.raises(TraceError, match=r"MaseGraph\(nn\.Sequential\(model\), custom_ops="):
            MaseGraph(layer)
        assert names(nn.Sequential(layer)) == ["input_1", "_0", "output"]

    def test_a_refusal_leaves_the_model_as_it_was(self):
        class Stores(nn.Module):
            def forward(self, x):
                self.last = x * 2
                return int(self.last)

        model = Stores()
        with pytest.raises(TraceError):
            MaseGraph(model)
        assert "last" not in vars(model)


class Accumulates(nn.Module):
    def forward(self, x):
        total, first = torch.zeros(3), torch.zeros(3)
        first[0] = x[0]
        total += x
        return total + first


def test_a_tensor_that_forward_makes_and_changes_is_made_anew_in_each_run():
    model, graph = Accumulates(), MaseGraph(Accumulates())
    for i in range(3):
        x = torch.full((3,), float(i))
        assert torch.equal(graph.model(x), model(x))


class Drops(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8))

    def forward(self, x):
        return F.dropout(self.inner(x), 0.5, training=self.training)


@pytest.mark.parametrize("traced_in_train_mode", [True, False])
def test_self_training_as_an_argument_follows_the_mode_of_the_graph(traced_in_train_mode):
    model = Drops().train(traced_in_train_mode)
    graph = MaseGraph(model).clone()
    x = torch.ones(64, 8)
    assert (graph.model.train()(x) == 0).any()
    assert torch.equal(graph.model.eval()(x), model.eval()(x))
    assert [name for name, _ in model.named_modules()] == ["", "inner", "inner.0"]
    assert type(model.training) is bool


def test_a_branch_on_self_training_is_kept_with_a_warning_in_train_mode(caplog):
    class Branches(nn.Module):
        def forward(self, x):
            return 2 * x if self.training else x

    with caplog.at_level(logging.WARNING, "chop"):
        graph = MaseGraph(Branches().eval())
        assert not caplog.text
        MaseGraph(Branches())
    assert "the graph keeps the branch of train mode" in caplog.text
    assert "call model.eval() before MaseGraph(model)" in caplog.text
    assert torch.equal(graph.model.train()(torch.ones(2)), torch.ones(2))


def test_an_error_that_the_user_raises_is_shown_as_it_is():
    class Refuses(nn.Module):
        def forward(self, x):
            raise ValueError("not today")

    with pytest.raises(TraceError, match="ValueError: not today; fix forward"):
        MaseGraph(Refuses())


# --- a += b

STEPS = {
    "name": lambda x, y: y,
    "view": lambda x, y: y.view(-1).view(2, 3),
    "transpose": lambda x, y: y.transpose(0, 1).transpose(0, 1),
    "add": lambda x, y: x + y,
    "double": lambda x, y: 2 * y,
    "add_": lambda x, y: x.add_(y),
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "relu": lambda x, y: torch.relu(y),
}
variables = st.integers(0, 3)
programs = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), variables, variables, variables))


class Runs(nn.Module):
    """A program over four variables; those that are one tensor share what is written."""

    def __init__(self, program):
        super().__init__()
        self.program = program

    def forward(self, x):
        known = [x + 1, x * 2, x - 3, x * 0.5]
        for step, into, first, second in self.program:
            known[into] = STEPS[step](known[first], known[second])
        return known


@given(programs)
def test_whatever_is_written_is_read_under_every_name(program):
    x = torch.arange(6.0).view(2, 3) - 2
    graph = MaseGraph(Runs(program))
    for found, wanted in zip(graph.model(x.clone()), Runs(program)(x.clone()), strict=True):
        assert torch.equal(found, wanted)


def test_a_sum_that_nobody_reads_under_another_name_is_an_add():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x):
            y = self.norm(self.conv(x))
            y += x
            y *= 2
            return F.relu(y)

    targets = [n.target for n in MaseGraph(Residual()).fx_graph.nodes if n.op == "call_function"]
    assert targets == [operator.add, operator.mul, F.relu]


def test_thousands_of_sums_are_looked_at_once_each():
    class Long(nn.Module):
        def forward(self, x):
            y = 2 * x
            kept = y.view(-1)
            for _ in range(4000):
                y += x
            z = x + 1
            for _ in range(4000):
                z += x
            return kept, z

    x = torch.ones(2)
    graph = MaseGraph(Long())
    targets = Counter(node.target for node in graph.fx_graph.nodes)
    assert targets[operator.iadd] == 4000
    assert targets[operator.add] == 4001
    kept, z = graph.model(x)
    assert torch.equal(kept, torch.full((2,), 4002.0))
    assert torch.equal(z, torch.full((2,), 4002.0))


def test_a_sum_in_place_is_an_op_like_any_other():
    class Aliased(nn.Module):
        def forward(self, x):
            y = 2 * x
            rows = y.view(-1)
            rows += x.view(-1)
            return y

    x = torch.randn(2, 3)
    graph = MaseGraph(Aliased())
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x}})
    (node,) = [n for n in graph.fx_graph.nodes if n.target is operator.iadd]
    assert node.meta["mase"]["common"]["mase_op"] == "add"
    wanted = integer_quantizer(integer_quantizer(2 * x, 8, 4) + integer_quantizer(x, 8, 4), 8, 4)
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
    config |= {"data_out_width": 8, "data_out_frac_width": 4}
    graph, _ = quantize_transform_pass(graph, {"by": "type", "add": {"config": config}})
    assert torch.equal(graph.model(x), wanted)
    assert torch.equal(graph.clone().model(x), wanted)
