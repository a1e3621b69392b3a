"""Every registered pass keeps the promises of a pass."""

import copy
import inspect
import tempfile
import typing
from pathlib import Path

import pytest
import torch
from torch import nn

from chop.actions.search.space.pass_spaces import pass_space
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import PASSES, Pipeline
from chop.passes.module.base import PASSES as MODULE_PASSES

X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


class Inputs:
    batch_size = 2

    def __iter__(self):
        while True:
            yield {"x": X.clone()}


INTEGER = {"config": {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}}
INTEGER["config"] |= {"weight_width": 8, "weight_frac_width": 4}
WIDTHS = {
    f"data_{way}_{key}": bits
    for way in ("in", "out")
    for key, bits in (("width", 8), ("frac_width", 4))
}

# what a pass is called with in these tests; a pass without a line here fails the first test
EXAMPLES = {
    "init_metadata": None,
    "add_common_metadata": {"dummy_in": {"x": X}, "add_value": False},
    "add_software_metadata": None,
    "add_hardware_metadata": {"parallelism": [1, 2]},
    "verify_metadata": {"strict": True},
    "verify_common_metadata": {"strict": True},
    "verify_software_metadata": {"strict": True},
    "verify_hardware_metadata": {"strict": True},
    "report_graph": {"style": "sections"},
    "report_node_type": None,
    "report_node_shape": None,
    "report_node_hardware_type": None,
    "report_node_meta_param": {"which": ["common"]},
    "hook_inspection": None,
    "profile_statistics": {
        "by": "type",
        "target_weight_nodes": ["conv2d", "linear"],
        "target_activation_nodes": ["relu", "add"],
        "weight_statistics": {"variance_precise": {}},
        "activation_statistics": {"range_min_max": {"dims": None}},
        "input_generator": Inputs(),
        "num_samples": 5,
    },
    "quantize": {"by": "type", "default": {"config": {"name": None}}, "conv2d": INTEGER},
    "quantize_static": {"weight_width": 6, "power_of_two": False},
    "calculate_avg_bits": {"legacy_sum": True},
    "calculate_flops": {"dummy_in": {"x": X}},
    "sensitivity": {"formats": {"int8": INTEGER}, "input_generator": Inputs(), "num_batches": 2},
    "calibrate": {"input_generator": Inputs(), "num_samples": 5, "method": "mse"},
    "cost": {"sparse": True, "per_sample": True},
    "prune": {
        "weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "global"},
        "activation": {"sparsity": 0.25},
    },
    "prune_detach_hook": None,
    "prune_channels": {"sparsity": 0.01},
    "redefine": {
        "conv": {"config": {"name": "output_only", "channel_multiplier": 2}},
        "weights": "inherit",
    },
    "redefine_conv": {"by": "type", "conv2d": {"config": {"name": "both", "width": 3}}},
    "redefine_linear": {"default": {"config": {"name": None}}, "fc": {"config": {"repeat": 1}}},
    "add_movement_metadata": None,
    "add_pruning_metadata": {"dummy_in": {"x": X}, "add_value": True},
    "add_natural_sparsity": {"dummy_in": {"x": X}, "add_meta": True},
    "conv_bn_fusion": None,
    "fold_batch_norm": {"side": "after"},
    "equalize": {"iterations": 5},
    "remove_dropout": None,
    "remove_identity": None,
    "replace": {"by": "type", "modules": {"relu": nn.GELU}},
    "raise_granularity": None,
    "insert_lora_adapter": {"rank": 2, "alpha": 1.0},
    "tables": {"function": "spline", "bits_in": [1.0, 2.0]},
    "fuse_lora_weights": None,
    "logicnets_fusion": {},
    "patch_metadata": {"q_config": WIDTHS},
    "gptq": {"input_generator": Inputs(), "num_samples": 4},
    "adaround": {"input_generator": Inputs(), "num_samples": 4, "iterations": 3},
    "smooth": {"input_generator": Inputs(), "num_samples": 4},
    "correct_bias": {"input_generator": Inputs(), "num_samples": 4},
    "deploy": {"target": "cuda-int8"},
    "learn_bits": {"by": "type", "nodes": ["conv2d"], "width": 6},
    "freeze_bits": None,
    "to_integer_graph": {"silent": True},
    "verify_integers": {"input_generator": Inputs(), "num_samples": 5, "silent": True},
}
LOGICNETS = {**WIDTHS, "name": "logicnets", "data_in_width": 4, "fan_in": 2}
LEARNING = INTEGER["config"] | {
    "name": "mixed_integer",
    "learn": True,
    "weight_granularity": "channel",
}
ALL_INTEGER = {"by": "type", "default": INTEGER}
# what the graph of a pass that works on a quantised one is quantised by
QUANTISED = {
    **dict.fromkeys(("gptq", "adaround", "correct_bias"), EXAMPLES["quantize"]),
    **dict.fromkeys(("to_integer_graph", "verify_integers"), ALL_INTEGER),
    "freeze_bits": {"by": "type", "conv2d": {"config": LEARNING}},
    "deploy": {"by": "type", "linear": INTEGER},
}
OURS = sorted(name for name, p in PASSES.items() if p.__module__.startswith("chop."))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        y = self.relu(self.bn(self.conv(x)))
        return self.fc((y + y).mean((2, 3)))


def ready_graph():
    mg = MaseGraph(Net())
    ready = ["init_metadata", "add_common_metadata", "add_software_metadata"]
    steps = [(name, EXAMPLES[name]) for name in (*ready, "add_hardware_metadata")]
    return Pipeline(steps)(mg)[0]


SAVED = Path(tempfile.mkdtemp())
ready_graph().export(SAVED / "graph")
EXAMPLES["save_mase_graph"] = {"save_dir": SAVED / "again"}
EXAMPLES["load_mase_graph"] = {"load_dir": SAVED / "graph"}
EXAMPLES["save_node_meta_param"] = {"save_path": SAVED / "meta.toml"}
EXAMPLES["load_node_meta_param"] = {"load_path": SAVED / "graph" / "node_meta_param.toml"}
EXAMPLES["export_onnx"] = {"save_path": SAVED / "net.onnx"}
EXAMPLES["metadata_value_type_cast"] = {"fn": copy.copy}
EXAMPLES["summarize_quantization"] = {"original_graph": ready_graph()}
EXAMPLES["emit_verilog_top"] = {"project_dir": SAVED / "circuit", "top_name": "net"}
EXAMPLES["emit_internal_rtl"] = EXAMPLES["emit_bram"] = {"project_dir": SAVED / "circuit"}
EXAMPLES["emit_cocotb"] = {"wait_time": 1, "wait_unit": "us", "batch_size": 2}
EXAMPLES["emit_vivado_project"] = {"part": "xc7a35tcpg236-1"}
EXAMPLES["emit_logicnets"] = {"project_dir": SAVED / "tables", "top_name": "net"}
# what runs before a pass that emits
EMITTED = ("emit_verilog_top", "emit_internal_rtl", "emit_bram")


class SmallNet(nn.Module):
    """A network that every backend emits."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3 * 8 * 8, 2)

    def forward(self, x):
        return torch.relu(self.fc(torch.flatten(x, 1)))


def emitted_graph(name):
    steps = ["init_metadata", "add_common_metadata", "quantize", "add_hardware_metadata"]
    options = EXAMPLES | {"quantize": ALL_INTEGER}
    if name == "emit_logicnets":
        options["quantize"] = {"by": "type", "linear": {"config": LOGICNETS}}
    else:
        steps += EMITTED if name not in EMITTED else EMITTED[: EMITTED.index(name)]
    return Pipeline([(step, options[step]) for step in steps])(MaseGraph(SmallNet()))[0]


@pytest.fixture
def graph(name, package):
    if name == "emit_logicnets":
        package("alkaid")
    if name == "export_onnx":
        package("onnx")
    if name.startswith("emit_"):
        return emitted_graph(name)
    ready = ready_graph()
    if name == "quantize_static":
        return PASSES["calibrate"](ready, EXAMPLES["calibrate"])[0]
    return PASSES["quantize"](ready, QUANTISED[name])[0] if name in QUANTISED else ready


def state_of(model):
    tensors = {k: v.clone() for k, v in model.state_dict().items()}
    modes = {name: m.training for name, m in model.named_modules()}
    grads = {n: (p.requires_grad, p.grad is None) for n, p in model.named_parameters()}
    return tensors, modes, grads, torch.get_rng_state()


def assert_same_state(before, after):
    for key, value in before[0].items():
        assert torch.equal(value, after[0][key]), key
    assert before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3])


def comparable(pass_args):
    return {
        key: value if not isinstance(value, Inputs | MaseGraph) else id(value)
        for key, value in (pass_args or {}).items()
    }


def test_every_pass_has_an_example():
    assert EXAMPLES.keys() == set(OURS)


@pytest.mark.parametrize("name", OURS)
class TestPass:
    def test_it_returns_the_graph_and_a_dict(self, name, graph):
        result, info = PASSES[name](graph, EXAMPLES[name])
        assert result is graph
        assert isinstance(info, dict)

    def test_it_never_changes_its_arguments(self, name, graph):
        given = EXAMPLES[name]
        before = copy.deepcopy(comparable(given))
        PASSES[name](graph, given)
        assert str(comparable(given)) == str(before)

    @pytest.mark.sampled(15)
    def test_it_can_run_twice_with_the_same_dict(self, name, graph):
        pristine = graph.clone()
        first = PASSES[name](graph, EXAMPLES[name])[1]
        again = PASSES[name](graph, EXAMPLES[name])[1]  # a transform may find nothing left to do
        if PASSES[name].kind == "transform":
            again = PASSES[name](pristine, EXAMPLES[name])[1]
        assert str(again) == str(first)

    @pytest.mark.sampled(15)
    def test_the_graph_stays_lintable(self, name, graph):
        PASSES[name](graph, EXAMPLES[name])
        graph.fx_graph.lint()

    @pytest.mark.sampled(22)
    def test_an_analysis_leaves_the_model_as_it_was(self, name, graph):
        if PASSES[name].kind != "analysis":
            return
        before = state_of(graph.model)
        expected = graph.clone().model.eval()(X)
        assert_same_state(before, state_of(graph.model))
        PASSES[name](graph, EXAMPLES[name])
        assert_same_state(before, state_of(graph.model))
        assert torch.equal(graph.clone().model.eval()(X), expected)

    def test_a_transform_keeps_the_metadata_true(self, name, graph):
        if PASSES[name].kind != "transform":
            return
        PASSES[name](graph, EXAMPLES[name])
        assert PASSES["verify_metadata"](graph)[1] == {}

    @pytest.mark.sampled(15)
    def test_a_misspelt_option_is_refused(self, name, graph):
        if PASSES[name].open_ended:  # its keys are names of nodes or ops
            with pytest.raises(TypeError, match=f"pass '{name}': 'misspelt' needs a table"):
                PASSES[name](graph, {**EXAMPLES[name], "misspelt": 1})
            return
        with pytest.raises(TypeError, match=f"pass '{name}' has no option 'misspelt'"):
            PASSES[name](graph, {"misspelt": 1})

    @pytest.mark.sampled(11)
    def test_it_works_on_graphs_only(self, name, graph):
        with pytest.raises(TypeError, match=f"pass '{name}' works on a MaseGraph, not Net"):
            PASSES[name](Net(), EXAMPLES[name])

    @pytest.mark.sampled(15)
    def test_what_it_needs_is_asked_for_by_name(self, name, graph):
        bare = MaseGraph(Net())
        needs = PASSES[name].needs
        if not needs:
            PASSES[name](bare, {k: v for k, v in (EXAMPLES[name] or {}).items() if k != "strict"})
            return
        with pytest.raises(TypeError, match=f"needs {needs[0]}.*run .*_analysis_pass first"):
            PASSES[name](bare, EXAMPLES[name])

    def test_it_is_documented_and_its_options_are_keywords(self, name, graph):
        assert inspect.getdoc(PASSES[name].fn)
        _, *options = inspect.signature(PASSES[name].fn).parameters.values()
        for option in options:
            assert option.kind in (option.KEYWORD_ONLY, option.VAR_KEYWORD)
            assert option.annotation is not option.empty


@pytest.mark.parametrize("run", [*PASSES.values(), *MODULE_PASSES.values()], ids=lambda p: p.name)
def test_options_that_name_files_say_whether_they_are_read_or_written(run):
    hints = typing.get_type_hints(run.fn, include_extras=True)
    words = {"file", "path", "dir", "folder", "picture"}
    named = {key for key in run.options if words & set(key.split("_"))}
    typed = {key for key in run.options if "Path" in str(hints.get(key))}
    assert named | typed <= run.paths.keys()


def test_of_the_transforms_only_those_that_emit_write_files():
    writing = {name for name, run in PASSES.items() if run.kind == "transform" and run.writes_files}
    assert {name for name in OURS if name.startswith("emit_")} == writing


def test_a_search_varies_no_pass_that_writes_files():
    with pytest.raises(ValueError, match="emit_bram writes files; a search varies a pass that"):
        pass_space(ready_graph(), "emit_bram", None, {}, "search_space")
