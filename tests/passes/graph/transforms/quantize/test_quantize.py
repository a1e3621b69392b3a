"""quantize_transform_pass: which nodes change, into what, and what is refused before."""

import copy
import logging
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.numerics.integer import Integer
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    verify_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass
from chop.passes.graph.transforms.quantize import QUANTIZEABLE_OP, quantized_module_map

X = torch.linspace(-2, 2, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


def integer(width=8, frac_width=4, *operands):
    operands = operands or ("data_in", "weight", "bias")
    keys = {"width": width, "frac_width": frac_width}
    return {"config": {"name": "integer", **{f"{o}_{k}": keys[k] for o in operands for k in keys}}}


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()


class Net(nn.Module):
    """Modules, functions, operators and methods; modules within modules."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(3), Block(4))
        self.act = nn.ReLU()
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        y = self.act(self.blocks(x))
        y = (y + y * 2).mean((2, 3))
        y = F.relu(self.fc(y))
        return torch.matmul(y, y.t()).sub(y.sum())


def graph_of(model, **inputs):
    graph, _ = init_metadata_analysis_pass(MaseGraph(model), None)
    dummy_in = inputs or {"x": X}
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": dummy_in, "add_value": False})
    return graph


@pytest.fixture
def graph():
    return graph_of(Net().eval())


def types(graph):
    """What each node calls, by name."""
    return {
        n.name: type(mase(n).module).__name__
        if n.op == "call_module"
        else getattr(n.target, "__name__", n.target)
        for n in graph.nodes
        if n.op.startswith("call")
    }


def changed(graph, before):
    now = types(graph)
    return {name: kind for name, kind in now.items() if kind != before[name]}


def snapshot(graph):
    """All that a refused config must leave as it was."""
    nodes = [(n.name, n.op, n.target, n.args, dict(n.kwargs)) for n in graph.nodes]
    modules = {name: id(module) for name, module in graph.modules.items()}
    meta = {n.name: repr(mase(n).parameters) for n in graph.nodes}
    return nodes, modules, meta


def formats(graph, name):
    """(args, results) of a node as "integer [8, 4]"."""
    common = next(mase(n).common for n in graph.nodes if n.name == name)
    return tuple(
        {key: f"{t.type} {t.precision}" for key, t in part.tensors()}
        for part in (common.args, common.results)
    )


class TestSelection:
    def test_by_type_takes_modules_functions_operators_and_methods(self, graph):
        before = types(graph)
        keys = ("conv2d", "relu", "add", "mul", "sub", "matmul")
        _, info = quantize_transform_pass(graph, {"by": "type", **{k: integer() for k in keys}})
        assert changed(graph, before) == {
            "blocks_0_conv": "Conv2dInteger",
            "blocks_1_conv": "Conv2dInteger",
            "act": "ReLUInteger",
            "relu": "relu_integer",
            "relu_1": "relu_integer",
            "relu_2": "relu_integer",
            "add": "add_integer",
            "mul": "mul_integer",
            "matmul": "matmul_integer",
            "sub": "sub_integer",
        }
        assert set(info["quantized"]) == set(changed(graph, before))

    def test_by_name_takes_the_nodes_that_are_named(self, graph):
        before = types(graph)
        quantize_transform_pass(graph, {"by": "name", "fc": integer(), "relu_1": integer(4, 2)})
        assert changed(graph, before) == {"fc": "LinearInteger", "relu_1": "relu_integer"}

    def test_by_regular_expression_the_first_that_matches_the_whole_name_wins(self, graph):
        before = types(graph)
        log = {"config": {"name": "log", "data_in_width": 5, "data_in_exponent_bias": 7}}
        log["config"] |= {"weight_width": 5, "weight_exponent_bias": 7}
        args = {"by": "regex_name", r"blocks_0_.*": log, r".*_conv": integer()}
        quantize_transform_pass(graph, args)
        assert changed(graph, before) == {
            "blocks_0_conv": "Conv2dLog",
            "blocks_0_norm": "BatchNorm2dLog",
            "blocks_1_conv": "Conv2dInteger",
        }

    def test_default_takes_all_others_that_can_be_quantized(self, graph):
        before = types(graph)
        args = {"by": "type", "default": integer(), "linear": {"config": {"name": None}}}
        quantize_transform_pass(graph, args)
        now = changed(graph, before)
        assert "fc" not in now
        assert now["blocks_0_norm"] == "BatchNorm2dInteger"
        kept = {name for name in before if name not in now}
        assert kept == {"fc", "mean", "t", "sum_1"}
        assert torch.isfinite(graph.model(X)).all()

    @pytest.mark.parametrize("nothing", [None, "NA"])
    def test_no_name_leaves_a_node_alone(self, graph, nothing):
        before = snapshot(graph)
        args = {"by": "type", "default": {"config": {"name": nothing}}}
        quantize_transform_pass(graph, args)
        assert snapshot(graph) == before
        del args["default"]
        quantize_transform_pass(graph, {**args, "linear": {"config": {"name": nothing}}})
        assert snapshot(graph) == before

    def test_na_in_a_config_stands_for_none(self, graph):
        config = {"name": "block_fp"}
        for operand in ("data_in", "weight", "bias"):
            config |= {f"{operand}_width": 8, f"{operand}_exponent_width": 8}
            config |= {f"{operand}_exponent_bias": "NA", f"{operand}_block_size": [4]}
        quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
        assert graph.modules["fc"].formats["weight"].exponent_bias == 127

    def test_a_plain_config_without_the_inner_table_counts_too(self, graph):
        quantize_transform_pass(graph, {"by": "type", "linear": integer()["config"]})
        assert types(graph)["fc"] == "LinearInteger"

    def test_the_same_dict_can_be_used_twice(self, graph):
        args = {"by": "type", "linear": integer(), "default": {"config": {"name": None}}}
        before = copy.deepcopy(args)
        quantize_transform_pass(graph, args)
        first = graph.model(X)
        quantize_transform_pass(graph, args)
        assert args == before
        assert torch.equal(graph.model(X), first)

    def test_sizes_and_indices_are_not_numbers_to_round(self):
        class Positions(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(16, 4)

            def forward(self, x):
                rows = x.size(0) * 2
                ids = torch.arange(8).reshape(2, 4) + 1
                return self.table(ids).reshape(rows, -1) * x.sum()

        graph = graph_of(Positions(), x=torch.randn(2, 3))
        _, info = quantize_transform_pass(graph, {"by": "type", "default": integer()})
        assert info["quantized"] == ["table", "mul_1"]
        rounded = {"data_in_0": "integer [64, 0]", "weight": "integer [8, 4]"}
        assert formats(graph, "table")[0] == rounded
        graph.model(torch.randn(2, 3))
        with pytest.raises(TypeError, match="node 'mul' takes no floating-point tensor"):
            quantize_transform_pass(graph, {"by": "name", "mul": integer()})


class TestWhatIsBuilt:
    def test_parameters_are_the_originals(self):
        model = Net().eval()
        graph = graph_of(model)
        quantize_transform_pass(graph, {"by": "type", "default": integer()})
        ours, theirs = (dict(m.named_parameters()) for m in (graph.model, model))
        assert [*ours] == [*theirs]
        assert all(ours[name] is theirs[name] for name in ours)

    def test_nested_layers_are_replaced_where_they_are_and_the_model_stays(self):
        model = Net().eval()
        expected = model(X)
        graph = graph_of(model)
        quantize_transform_pass(graph, {"by": "type", "conv2d": integer()})
        assert type(graph.modules["blocks.0.conv"]).__name__ == "Conv2dInteger"
        assert type(model.blocks[0].conv) is nn.Conv2d
        assert torch.equal(model(X), expected)

    def test_node_names_stay(self, graph):
        before = [node.name for node in graph.nodes]
        quantize_transform_pass(graph, {"by": "type", "default": integer()})
        assert [node.name for node in graph.nodes] == before

    def test_quantizing_again_replaces_the_format_of_every_kind_of_node(self, graph):
        fresh = graph.clone()
        log = {"config": {"name": "log"}}
        for operand in ("data_in", "weight", "bias"):
            log["config"] |= {f"{operand}_width": 5, f"{operand}_exponent_bias": 7}
        quantize_transform_pass(graph, {"by": "type", "default": integer(6, 2)})
        quantize_transform_pass(graph, {"by": "type", "default": log})
        quantize_transform_pass(fresh, {"by": "type", "default": log})
        assert types(graph) == types(fresh)
        assert types(graph)["matmul"] == "matmul_log"
        assert torch.equal(graph.model(X), fresh.model(X))
        for node in graph.nodes:
            assert formats(graph, node.name) == formats(fresh, node.name)

    def test_bypassed_nodes_compute_as_before(self, graph):
        expected = graph.model(X)
        bypass = {"config": {**integer()["config"], "bypass": True}}
        quantize_transform_pass(graph, {"by": "type", "default": bypass})
        assert torch.equal(graph.model(X), expected)
        assert formats(graph, "fc")[0]["weight"] == "float [32]"

    def test_a_bypass_after_a_quantisation_takes_the_formats_back(self, graph):
        before = {node.name: formats(graph, node.name) for node in graph.nodes}
        quantize_transform_pass(graph, {"by": "type", "default": integer(8, 4, *ALL)})
        bypass = {"config": {**integer()["config"], "bypass": True}}
        quantize_transform_pass(graph, {"by": "type", "default": bypass})
        assert {node.name: formats(graph, node.name) for node in graph.nodes} == before

    def test_it_computes_what_the_layers_and_functions_do_by_hand(self, graph):
        keys = {"linear": integer(), "relu": integer(), "add": integer(6, 3)}
        expected = self.by_hand(graph.clone().model)
        quantize_transform_pass(graph, {"by": "type", **keys})
        assert torch.equal(graph.model(X), expected)

    @staticmethod
    def by_hand(model):
        q, half, unsigned = Integer(8, 4), Integer(6, 3), Integer(8, 4, signed=False)
        h = X
        for block in (model.blocks.get_submodule("0"), model.blocks.get_submodule("1")):
            h = unsigned(block.norm(block.conv(h))).relu()
        h = unsigned(h).relu()
        h = (half(h) + half(h * 2)).mean((2, 3))
        h = unsigned(F.linear(q(h), q(model.fc.weight), q(model.fc.bias))).relu()
        return torch.matmul(h, h.t()).sub(h.sum())

    def test_mode_dtype_and_frozen_parameters_are_kept(self):
        model = Net().double()
        model.blocks[0].conv.weight.requires_grad_(False)
        model.blocks.eval()
        graph = graph_of(model, x=X.double())
        quantize_transform_pass(graph, {"by": "type", "default": integer()})
        conv, fc = graph.modules["blocks.0.conv"], graph.modules["fc"]
        assert (conv.training, fc.training) == (False, True)
        assert not conv.weight.requires_grad
        assert graph.model(X.double()).dtype == torch.float64

    def test_a_quantized_graph_can_be_trained(self, graph):
        quantize_transform_pass(graph, {"by": "type", "default": integer(8, 5)})
        graph.model.train()
        optimizer = torch.optim.SGD(graph.model.parameters(), 0.05)
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = (graph.model(X) - 1).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]

    def test_it_survives_clones_copies_and_pickles(self, graph):
        quantize_transform_pass(graph, {"by": "type", "default": integer()})
        expected = graph.model(X)
        copied = pickle.loads(pickle.dumps(graph.model))
        for model in (graph.clone().model, copy.deepcopy(graph.model), copied):
            assert torch.equal(model(X), expected)
        assert types(graph.clone()) == types(graph)
        names = [getattr(n.target, "__name__", None) for n in copied.graph.nodes]
        assert names.count("relu_integer") == 3
        assert names.count("mul_integer") == 1

    def test_a_clone_is_quantized_alone(self, graph):
        expected = graph.model(X)
        twin = graph.clone()
        quantize_transform_pass(twin, {"by": "type", "default": integer(4, 2)})
        assert torch.equal(graph.model(X), expected)
        assert not torch.equal(twin.model(X), expected)

    def test_the_model_that_was_unpickled_is_traced_with_its_functions_whole(self, graph):
        quantize_transform_pass(graph, {"by": "type", "default": integer()})
        again = graph_of(pickle.loads(pickle.dumps(graph.model)))
        ops = [mase(n).common.mase_op for n in again.nodes]
        assert ops == [mase(n).common.mase_op for n in graph.nodes]

    def test_it_runs_compiled(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4)).eval()
        x = torch.randn(2, 4)
        graph = graph_of(model, input=x)
        quantize_transform_pass(graph, {"by": "type", "default": integer()})
        compiled = torch.compile(graph.model, backend="eager")
        with torch.no_grad():
            assert torch.equal(compiled(x), graph.model(x))

    @pytest.mark.slow
    def test_so_do_functions(self, graph):
        quantize_transform_pass(graph, {"by": "type", "default": integer()})
        compiled = torch.compile(graph.model, backend="eager")
        with torch.no_grad():
            assert torch.equal(compiled(X), graph.model(X))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.alias = self.fc

    def forward(self, x):
        return self.alias(self.fc(x)) + self.fc(x)


class TestSharedModules:
    def test_a_module_that_is_called_often_is_quantized_once(self):
        graph = graph_of(Shared(), x=torch.randn(2, 4))
        quantize_transform_pass(graph, {"by": "type", "linear": integer()})
        calls = [n for n in graph.nodes if n.op == "call_module"]
        assert len(calls) == 3
        assert len({id(mase(n).module) for n in calls}) == 1
        assert {formats(graph, n.name)[0]["weight"] for n in calls} == {"integer [8, 4]"}

    @pytest.mark.parametrize("other", [{}, {"fc_1": integer(4, 2)}])
    def test_two_configs_for_one_module_are_refused(self, other):
        graph = graph_of(Shared(), x=torch.randn(2, 4))
        before = snapshot(graph)
        with pytest.raises(ValueError, match=r"nodes 'fc' and 'fc_1' call the same module 'fc'"):
            quantize_transform_pass(graph, {"by": "name", "fc": integer(), **other})
        assert snapshot(graph) == before


ALL = ("data_in", "weight", "bias", "data_out")
MIXED = {"config": {**integer()["config"], "weight_width": 6, "weight_frac_width": 3}}


class TestMetadata:
    def test_arguments_and_parameters_say_their_format(self, graph):
        config = {**MIXED["config"], "bias_width": 5, "bias_frac_width": 2}
        quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
        assert formats(graph, "fc") == (
            {"data_in_0": "integer [8, 4]", "weight": "integer [6, 3]", "bias": "integer [5, 2]"},
            {"data_out_0": "float [32]"},
        )

    def test_results_do_when_they_are_rounded(self, graph):
        quantize_transform_pass(graph, {"by": "type", "linear": integer(7, 3, *ALL)})
        assert formats(graph, "fc")[1] == {"data_out_0": "integer [7, 3]"}

    def test_the_result_of_relu_lies_on_the_grid_of_its_input(self, graph):
        quantize_transform_pass(graph, {"by": "type", "relu": integer()})
        for name in ("act", "relu", "relu_2"):
            both = ({"data_in_0": "integer [8, 4]"}, {"data_out_0": "integer [8, 4]"})
            assert formats(graph, name) == both

    def test_unless_that_grid_has_no_zero(self, graph):
        config = {"name": "log", "data_in_width": 5, "data_in_exponent_bias": 7}
        quantize_transform_pass(graph, {"by": "type", "relu": {"config": config}})
        assert formats(graph, "act") == ({"data_in_0": "log [5, 7]"}, {"data_out_0": "float [32]"})

    def test_operands_of_functions_do_too(self, graph):
        args = {"by": "type", "matmul": MIXED, "add": integer(), "mul": integer()}
        quantize_transform_pass(graph, args)
        assert [*formats(graph, "matmul")[0].values()] == ["integer [8, 4]", "integer [6, 3]"]
        assert [*formats(graph, "add")[0].values()] == ["integer [8, 4]"] * 2
        assert formats(graph, "mul")[0] == {"data_in_0": "integer [8, 4]"}

    def test_operands_that_are_given_by_keyword_are_told_apart(self):
        class Product(nn.Module):
            def forward(self, x):
                y = F.scaled_dot_product_attention(x, x, attn_mask=x @ x.mT, value=x)
                return torch.matmul(other=y.mT, input=x)

        graph = graph_of(Product(), x=torch.randn(2, 4, 4))
        quantize_transform_pass(graph, {"by": "regex_name", "matmul_1": MIXED, "scaled.*": MIXED})
        # as the metadata lists them: in the order of the call
        assert [*formats(graph, "matmul_1")[0].values()] == ["integer [6, 3]", "integer [8, 4]"]
        attention = formats(graph, "scaled_dot_product_attention")[0]
        assert sorted(attention.values()) == ["float [32]"] + 3 * ["integer [8, 4]"]

    @pytest.mark.parametrize("operands", [(), ALL])
    def test_the_metadata_is_accepted_afterwards(self, graph, operands):
        quantize_transform_pass(graph, {"by": "type", "default": integer(8, 4, *operands)})
        assert verify_metadata_analysis_pass(graph, {"strict": True})[1] == {}

    def test_noting_the_metadata_again_finds_the_formats_again(self, graph):
        quantize_transform_pass(graph, {"by": "type", "default": integer()})
        before = {node.name: formats(graph, node.name) for node in graph.nodes}
        add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": X}, "add_value": False})
        assert {node.name: formats(graph, node.name) for node in graph.nodes} == before


GOOD = integer()["config"]


def linear(**keys):
    return {"linear": {"config": {**GOOD, **keys}}}


REFUSED = [
    (
        linear(name="interger"),
        r"'linear': unknown number format 'interger'; did you mean 'integer'\?",
    ),
    (
        {"linear": {"config": {k: v for k, v in GOOD.items() if k != "weight_frac_width"}}},
        r"integer needs .* for 'weight'; missing \['weight_frac_width'\]",
    ),
    ({"linear": integer(8, 4, "data_in")}, r"node 'fc': integer needs .* for 'weight'; missing"),
    (
        linear(wieght_width=8),
        r"unknown key of a.? integer config 'wieght_width'; did you mean 'weight_width'\?",
    ),
    (linear(weight_exponnt_width=4), r"unknown key of a.? integer config 'weight_exponnt_width'"),
    (
        linear(weight_width=0),
        r"'linear': integer: weight_width must be an integer from 1 to 64 \(got .*t_width = 0",
    ),
    (linear(weight_width="8"), r"'linear': integer: weight_width must be an integer"),
    (linear(data_in_frac_width=0.5), r"'linear': integer: data_in_frac_width must be"),
    (
        linear(name=["integer"]),
        r"'linear': name must be one format, not a list; lists of choices belong in a search space",
    ),
    # the graph has no such op
    (
        {"conv1d": linear(weight_width=0)["linear"]},
        "'conv1d': integer: weight_width must be an integer",
    ),
    # no node needs the default
    ({"default": linear(wieght_width=0)["linear"], "linear": integer()}, r"'default': unknown key"),
    ({"liner": integer()}, r"unknown op 'liner'; did you mean 'linear'\?"),
    ({"mean": integer()}, r"op 'mean' cannot be quantised; these can: .*linear"),
    ({"by": "name", "fcc": integer()}, r"unknown node 'fcc'; did you mean 'fc'\?"),
    (
        {"by": "name", "mean": integer()},
        r"node 'mean' is mean, which cannot be quantised; these ops can: .*linear",
    ),
    ({"by": "regex_name", "fc(": integer()}, r"'fc\(' is not a regular expression"),
    ({"linear": 8}, r"'linear' needs a table \{'config': \{'name': a format, …\}\}, not 8"),
    ({"linear": {"config": {"width": 8}}}, r"'linear' needs a table"),
    ({"default": 3}, r"option 'default' is 3"),
    ({"by": "typ"}, r"option 'by' is 'typ', but it should be 'type'"),
    ({"by": None}, r"option 'by' is None"),
]


class TestRefusals:
    @pytest.mark.parametrize(("args", "sentence"), REFUSED)
    def test_a_config_is_refused_in_one_sentence_before_anything_is_touched(
        self, graph, args, sentence
    ):
        before = snapshot(graph)
        good = {"relu": integer()} if args.get("by", "type") == "type" else {}
        with pytest.raises((TypeError, ValueError), match=sentence) as error:
            quantize_transform_pass(graph, {"by": "type", **good, **args})
        assert str(error.value).startswith("pass 'quantize'")
        assert "\n" not in str(error.value)
        assert snapshot(graph) == before

    def test_an_expression_that_finds_nothing_is_refused(self, graph, caplog):
        with pytest.raises(TypeError, match=r"unknown node matching 'head\.\*'"):
            quantize_transform_pass(graph, {"by": "regex_name", "head.*": integer()})
        assert not caplog.messages  # the error says it all

    def test_an_op_that_this_graph_lacks_is_worth_a_warning(self, graph, caplog):
        with caplog.at_level(logging.WARNING, "chop"):
            quantize_transform_pass(graph, {"by": "type", "conv1d": integer()})
        assert "no node of the graph matches type 'conv1d'" in caplog.text

    def test_a_layer_that_computes_otherwise_is_refused(self):
        class Scaled(nn.Linear):
            def forward(self, input):
                return 2 * F.linear(input, self.weight)

        model = nn.Sequential(Scaled(4, 4))
        graph, _ = init_metadata_analysis_pass(MaseGraph(model, custom_ops=custom(Scaled)), None)
        args = {"dummy_in": {"input": torch.randn(2, 4)}, "add_value": False}
        add_common_metadata_analysis_pass(graph, args)
        with pytest.raises(TypeError, match="Scaled has a custom forward"):
            quantize_transform_pass(graph, {"by": "type", "linear": integer()})

    def test_older_keys_that_change_nothing_here_are_let_pass(self, graph):
        args = {"by": "type", "linear": integer(), "baseline_weight_path": "x", "load_type": "mz"}
        quantize_transform_pass(graph, args)
        assert types(graph)["fc"] == "LinearInteger"


class Equation(nn.Module):
    def forward(self, x):
        return torch.einsum("bij,bkj->bik", [x, x])


def test_a_quantized_equation_has_the_formats_of_a_product_and_is_saved(tmp_path):
    x = torch.randn(2, 4, 4)
    graph = graph_of(Equation(), x=x)
    quantize_transform_pass(graph, {"by": "type", "einsum": MIXED})
    assert [*formats(graph, "einsum")[0].values()] == ["integer [8, 4]", "integer [6, 3]"]
    graph.export(tmp_path / "graph")
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(loaded.model(x), graph.model(x))


def test_a_quantized_equation_is_saved_only_if_it_is_one(tmp_path):
    graph = graph_of(Equation(), x=torch.randn(2, 4, 4))
    quantize_transform_pass(graph, {"by": "type", "einsum": MIXED})
    node = next(node for node in graph.nodes if node.name == "einsum")
    node.args = ("__import__('os')", node.args[1])
    with pytest.raises(ValueError, match="cannot save node 'einsum': it is given the text"):
        graph.export(tmp_path / "graph")


def custom(cls):
    return {"modules": {cls: {}}, "functions": {}}


def test_the_ops_of_both_predecessors_can_be_quantized():
    older = "add bmm conv1d conv2d matmul mul linear relu sub"
    newer = (
        "convtranspose2d batch_norm2d layer_norm group_norm instance_norm2d rms_norm selu tanh "
        "gelu softsign softplus silu embedding scaled_dot_product_attention softmax"
    )
    assert set(f"{older} {newer}".split()) <= set(QUANTIZEABLE_OP)
    assert quantized_module_map["conv2d_fixed"].__name__ == "Conv2dInteger"


OPEN = {"width": 2, "scaling_factor": False, "mean": "NA", "median": "NA", "max": "NA"}
TERNARY = {"name": "ternary"} | {
    f"{operand}_{key}": value
    for operand in ("data_in", "weight", "bias")
    for key, value in OPEN.items()
}


class TestTernaryThresholds:
    """What a config leaves open is taken from profiled statistics, if there are any."""

    def graph(self):
        return graph_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), input=torch.ones(2, 4))

    def formats(self, graph, config):
        quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
        return graph.modules["0"].formats

    def note(self, graph, operand, stat):
        node = next(node for node in graph.nodes if node.op == "call_module")
        mase(node).software.setdefault("args", {}).setdefault(operand, {})["stat"] = stat

    def test_are_profiled(self):
        graph = self.graph()
        self.note(graph, "weight", {"abs_mean": {"abs_mean": 0.4, "count": 12}})
        self.note(graph, "data_in_0", {"range_min_max": {"max": 2.0}, "range_quantile": {"max": 1}})
        found = self.formats(graph, TERNARY)
        assert (found["weight"].mean, found["weight"].fixed_border) == (0.4, 0.75 * 0.4)
        assert (found["data_in"].max, found["data_in"].median) == (2.0, 1.0)
        assert found["bias"].fixed_border is None

    @pytest.mark.parametrize(
        ("profiled", "keys", "mean"),
        [(0.4, {"weight_mean": 0.1}, 0.1), ([0.4, 0.5, 0.6], {}, None)],
        ids=["given", "of each channel"],
    )
    def test_stay_as_they_are_if_given_or_not_a_single_number(self, profiled, keys, mean):
        graph = self.graph()
        self.note(graph, "weight", {"abs_mean": {"abs_mean": profiled}})
        assert self.formats(graph, TERNARY | keys)["weight"].mean == mean

    def test_are_those_of_the_data_otherwise(self):
        assert self.formats(self.graph(), TERNARY)["weight"].fixed_border is None


class Halved(nn.Module):
    def forward(self, weight):
        return weight / 2


def test_a_layer_whose_metadata_name_a_parametrized_weight_can_be_quantized():
    layer = nn.Linear(3, 3, bias=False)
    nn.init.ones_(layer.weight)
    nn.utils.parametrize.register_parametrization(layer, "weight", Halved())
    graph = MaseGraph(nn.Sequential(layer))
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"input": torch.ones(1, 3)}})
    quantize_transform_pass(graph, {"by": "type", "linear": integer(8, 4)})
    assert torch.equal(graph.model(torch.ones(1, 3)), torch.full((1, 3), 1.5))


def test_a_layer_variant_is_what_its_config_name_makes_of_an_op():
    from chop.passes.graph.transforms.quantize import variants
    from chop.passes.graph.transforms.quantize.quantized_modules.linear import QuantLinear

    class LinearHalved(QuantLinear):
        @classmethod
        def check_config(cls, config):
            if config.keys() != {"name"}:
                raise ValueError(f"halved takes no options, not {sorted(config)}")

        def configure(self, config):
            self.config, self.formats, self._kept = dict(config), {}, {}
            return self

        def forward(self, input):
            return torch.nn.functional.linear(input, self.weight / 2, self.bias)

    with pytest.raises(ValueError, match="'ternary' is a number format; give the layer variant"):
        variants.layer_variant("linear", "ternary")(LinearHalved)
    variants.layer_variant("linear", "cut_in_half")(LinearHalved)
    try:
        module = quantized_module_map["linear_cut_in_half"].from_float(nn.Linear(2, 2), {})
        assert isinstance(module, LinearHalved)
        assert variants.is_variant("cut_in_half")
        with pytest.raises(ValueError, match="cut_in_half is for linear, not for conv2d"):
            variants.variant_of("conv2d", "cut_in_half")
        with pytest.raises(ValueError, match="halved takes no options"):
            variants.check_variant({"name": "cut_in_half", "width": 3})
    finally:
        variants.LAYER_VARIANTS._items.pop("linear_cut_in_half")
