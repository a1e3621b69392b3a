"""What has no meaning in integers is refused by name, with a fix, and nothing is changed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.passes import Pipeline
from chop.passes.graph import to_integer_graph_transform_pass

from .checking import Calls, quantised

INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INTEGER |= {"weight_width": 8, "weight_frac_width": 4}
LINEAR = {"by": "type", "linear": {"config": INTEGER}}
ALL = {"by": "type", "default": {"config": INTEGER}}
BLOCKS = {"name": "block_fp", "data_in_width": 8, "data_in_exponent_width": 8}
BLOCKS |= {"data_in_exponent_bias": None, "data_in_block_size": [1, 4]}
BLOCKS |= {key.replace("data_in", "weight"): v for key, v in BLOCKS.items() if key != "name"}
FLOATS = {"name": "minifloat_ieee", "data_in_width": 8, "data_in_exponent_width": 4}
FLOATS |= {"data_in_exponent_bias": 7}
FLOATS |= {key.replace("data_in", "weight"): v for key, v in FLOATS.items() if key != "name"}
WIDE = {**INTEGER, "data_in_width": 44, "weight_width": 30, "weight_frac_width": 28}


def net(forward, **layers):
    return Calls(forward, **layers), (4,)


def fc(seed=0):
    """Return a layer with weights of its own, the same in every run."""
    layer = nn.Linear(4, 4)
    draws = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.data.uniform_(-0.5, 0.5, generator=draws)
    return layer


class Drifting(nn.Module):
    """A network whose result depends on how often it was called."""

    def __init__(self):
        super().__init__()
        self.one = fc()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        y = self.one(x) + self.calls
        self.calls.add_(1)
        return y


def written_through_a_view(m, x):
    y = m["one"](x)
    y.view(-1, 2, 2).relu_()
    return y


def below_zero(layer):
    layer.bias.data = -layer.bias.data.abs()
    return layer


REFUSED = {
    "a layer in float": (
        net(lambda m, x: m["two"](m["one"](x)), one=fc(), two=fc()),
        {"by": "name", "layers_one": {"config": INTEGER}},
        "node 'layers_two' is a linear that is still in float; quantise it first",
    ),
    "a block format": (
        net(lambda m, x: m["one"](x), one=fc()),
        {"by": "type", "linear": {"config": BLOCKS}},
        "node 'layers_one' rounds data_in to block_fp, which has one exponent or scale for each",
    ),
    "a float format": (
        net(lambda m, x: m["one"](x), one=fc()),
        {"by": "type", "linear": {"config": FLOATS}},
        "node 'layers_one' rounds data_in to minifloat_ieee, which is not a format of integers",
    ),
    "an unknown op": (
        net(lambda m, x: m["one"](x).cumsum(1), one=fc()),
        LINEAR,
        "node 'cumsum' is cumsum, which has no integer meaning; replace or remove it",
    ),
    "a sigmoid of an accumulator": (
        net(lambda m, x: m["two"](torch.sigmoid(m["one"](x))), one=fc(), two=fc()),
        {"by": "type", "linear": {"config": {**INTEGER, "data_in_width": 14}}},
        "node 'sigmoid' is sigmoid of codes of .* bits; quantise its input to at most 16",
    ),
    "a float result": (
        net(lambda m, x: torch.sigmoid(m["one"](x)), one=fc()),
        ALL,
        "node 'sigmoid' returns the result of sigmoid without rounding it; give it data_out_width",
    ),
    "an input in float": (
        net(lambda m, x: m["one"](x * x), one=fc()),
        LINEAR,
        "node 'mul' takes the input of the network in float; quantise this node",
    ),
    "a softmax inside": (
        net(lambda m, x: m["two"](m["one"](x).softmax(1)), one=fc(), two=fc()),
        LINEAR,
        "node 'softmax' is softmax within the network; only one at the end .*; use another",
    ),
    "a softmax over another dimension than argmax": (
        (Calls(lambda m, x: m["one"](x).softmax(1).argmax(2), one=fc()), (3, 4)),
        LINEAR,
        "node 'softmax' normalises over dimension 1, and 'argmax' looks along 2; use the same",
    ),
    "a softmax over the batch": (
        net(lambda m, x: m["one"](x).softmax(0), one=fc()),
        LINEAR,
        "node 'softmax' normalises over the batch; give it the dimension of the classes",
    ),
    "a dropout that draws": (
        net(lambda m, x: m["two"](F.dropout(m["one"](x))), one=fc(), two=fc()),
        LINEAR,
        "node 'dropout' drops values at random in evaluation too; pass training=False",
    ),
    "a slope per channel": (
        (nn.Sequential(fc(), nn.PReLU(4), fc()), (4,)),
        ALL,
        "node '_1' has one slope per channel; use one slope, so that it becomes a table",
    ),
    "a batch that is moved": (
        net(lambda m, x: m["one"](x).t(), one=fc()),
        LINEAR,
        "node 't' moves the batch to another dimension; keep it the first",
    ),
    "a batch that is reshaped": (
        net(lambda m, x: m["one"](x).flatten(), one=fc()),
        LINEAR,
        "node 'flatten' reshapes the batch as well; keep the first dimension",
    ),
    "joined batches": (
        net(lambda m, x: torch.cat([m["one"](x), m["one"](x)]), one=fc()),
        LINEAR,
        "node 'cat' joins batches; join channels instead",
    ),
    "padding with infinity": (
        net(lambda m, x: F.pad(m["one"](x), (1, 1), value=float("-inf")), one=fc()),
        LINEAR,
        "node 'pad' pads with -inf, which has no code; use a finite number",
    ),
    "padding without a code": (
        net(lambda m, x: F.pad(m["one"](x), (1, 1), value=0.3), one=fc()),
        LINEAR,
        "node 'pad' pads with 0.3, which is not a multiple of 0.00390625, its input's step; use",
    ),
    "padding of the batch": (
        net(lambda m, x: F.pad(m["one"](x), (0, 0, 1, 1)), one=fc()),
        LINEAR,
        "node 'pad' pads the batch, or not all dimensions after the channels; pad only those",
    ),
    "an accumulator of too many bits": (
        net(lambda m, x: m["one"](x), one=fc()),
        {"by": "type", "linear": {"config": WIDE}},
        "node 'layers_one' needs an accumulator of 7. bits; at most 63 are allowed; use narrower",
    ),
    "a word of too many bits": (
        net(lambda m, x: m["one"](x), one=fc()),
        {"by": "type", "linear": {"config": {**INTEGER, "data_in_width": 60}}},
        "node 'layers_one' cannot hold data_in: 60 bits are more than the 48 that a rounded value",
    ),
    "a product of too many bits": (
        net(lambda m, x: m["one"](x) * m["one"](x), one=fc()),
        {"by": "type", "linear": {"config": {**INTEGER, "data_in_width": 30}}},
        "node 'mul' needs a product of .* bits; at most 63 are allowed; use narrower formats",
    ),
    "a bias on a far finer grid": (
        net(lambda m, x: m["one"](x), one=fc()),
        {
            "by": "type",
            "linear": {"config": {**INTEGER, "bias_width": 30, "bias_frac_width": 90}},
        },
        "node 'layers_one' needs an accumulator of .* bits for the sum of its products and its",
    ),
    "negative biases on a far finer grid": (
        net(lambda m, x: m["one"](x), one=below_zero(fc())),
        {
            "by": "type",
            "linear": {"config": {**INTEGER, "bias_width": 30, "bias_frac_width": 90}},
        },
        "node 'layers_one' needs an accumulator of 6. bits for the sum of its products and its",
    ),
    "a state": (
        (Drifting(), (4,)),
        ALL,
        "node 'add_' changes the tensor 'calls' of the model, .*; an integer graph has no state",
    ),
    "a write that another name sees": (
        net(written_through_a_view, one=fc()),
        ALL,
        "node 'relu_' writes to the memory of 'layers_one', which is read later; compute a new",
    ),
    "a dict": (
        (Calls(lambda m, x: m["one"](x["a"]) + m["one"](x["b"]), one=fc()), {"a": (4,), "b": (4,)}),
        LINEAR,
        "node 'getitem' takes 'a' out of the input 'x'; let forward take tensors instead of a dict",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_in_one_sentence_and_nothing_changes(case):
    (model, shape), tables, message = REFUSED[case]
    graph = quantised(model, shape, tables)
    with pytest.raises(TypeError, match=message) as refusal:
        to_integer_graph_transform_pass(graph)
    assert str(refusal.value).count(". ") == 0
    assert "; " in str(refusal.value)  # the fix
    assert "integers" not in graph.meta
    assert all("integers" not in node.meta["mase"].parameters for node in graph.nodes)


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_a_softmax_without_a_dimension_that_takes_the_batch_is_refused():
    graph = quantised(nn.Sequential(fc(), nn.Softmax()), (3, 4), LINEAR)
    with pytest.raises(TypeError, match="node '_1' normalises over the batch; give it"):
        graph.to_integers()


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("scaled", [False, True])
def test_parameters_with_nan_are_named(name, scaled):
    model, shape = net(lambda m, x: m["one"](x), one=fc())
    affine = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.3, "weight_width": 8}
    config = {**affine, "weight_scale": 0.3} if scaled else INTEGER
    graph = quantised(model, shape, {"by": "type", "linear": {"config": config}})
    getattr(graph.model.layers.one, name).data.view(-1)[0] = torch.nan
    said = rf"^node 'layers_one' has a {name} with NaN \(one value\); train or load it again$"
    with pytest.raises(TypeError, match=said):
        graph.to_integers()


def test_a_layer_with_hooks_is_refused():
    graph = quantised(*net(lambda m, x: m["one"](x), one=fc()), LINEAR)
    graph.model.layers.one.register_forward_pre_hook(lambda layer, x: (x[0] * 2,))
    with pytest.raises(TypeError, match="node 'layers_one' has hooks, which may change its values"):
        graph.to_integers()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("eps", [1e-5], r"has eps = \[1e-05\], which is not a number; make the layer again"),
        (
            "running_var",
            torch.ones(1),
            r"normalises 4 channels with tensors of the shapes .*; give",
        ),
    ],
)
def test_a_norm_with_damaged_numbers_is_refused(key, value, said):
    norm = nn.BatchNorm1d(4)
    graph = quantised(nn.Sequential(fc(), norm, fc()), (4,), LINEAR)
    setattr(graph.model.get_submodule("1"), key, value)
    with pytest.raises(TypeError, match=f"node '_1' {said}"):
        graph.to_integers()


@pytest.mark.parametrize("shape", [(2, 2, 2), (8, 1, 1)])
def test_scales_per_channel_of_moved_values_are_refused(shape):
    scales = [0.1 + 0.1 * place for place in range(8)]
    config = {"name": "affine", "data_in_width": 8, "data_in_scale": scales, "data_in_axis": 1}
    config |= {"weight_width": 8}
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(8))
    graph = quantised(model, shape, {"by": "type", "batch_norm1d": {"config": config}})
    with pytest.raises(TypeError, match="node '_0' moves values before they are rounded to one"):
        graph.to_integers()


def test_a_layer_variant_without_a_meaning_is_refused():
    config = {f"{operand}_width": 1 for operand in ("data_in", "weight")}
    config |= {f"{operand}_stochastic": False for operand in ("data_in", "weight")}
    config |= {f"{operand}_bipolar": True for operand in ("data_in", "weight")}
    config |= {"name": "binary_scaling"}
    model = nn.Sequential(nn.Linear(4, 2))
    graph = quantised(model, (4,), {"by": "type", "linear": {"config": config}})
    with pytest.raises(TypeError, match="node '_0' is a binary_scaling layer, which has no"):
        graph.to_integers()


def test_a_graph_without_metadata_is_refused_by_to_integers_too():
    with pytest.raises(TypeError, match="run add_common_metadata_analysis_pass first"):
        MaseGraph(nn.Sequential(nn.Linear(2, 2))).to_integers()


def test_bad_inputs_of_the_interpreter_are_refused():
    integers = quantised(*net(lambda m, x: m["one"](x), one=fc()), LINEAR).to_integers()
    with pytest.raises(ValueError, match="the input contains NaN, which has no code"):
        integers.run(torch.full((1, 4), torch.nan))
    with pytest.raises(TypeError, match=r"takes a tensor of floats, not torch\.int64"):
        integers.run(torch.ones(1, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="the graph has the input x; give one tensor, not 2"):
        integers.run(torch.ones(1, 4), torch.ones(1, 4))


def two_inputs():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = fc(), nn.Linear(3, 4)

        def forward(self, x, y):
            return self.one(x) + self.two(y)

    dummy = {"x": torch.zeros(2, 4), "y": torch.zeros(2, 3)}
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": dummy}), ("quantize", LINEAR)]
    return Pipeline(steps)(MaseGraph(Both().eval()))[0].to_integers()


def test_inputs_are_given_in_order_or_by_name():
    integers = two_inputs()
    x, y = torch.randn(5, 4), torch.randn(5, 3)
    for found in (integers.run(x, y=y), integers.run(y=y, x=x)):
        assert torch.equal(found, integers.run(x, y))
    assert torch.equal(integers(y=y, x=x), integers(x, y))
    assert torch.equal(integers.trace(y=y, x=x)["add"], integers.trace(x, y)["add"])


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((torch.ones(1, 4),), {}, "the graph has the inputs x, y; 'y' is missing"),
        ((), {}, "the graph has the inputs x, y; 'x' is missing"),
        ((torch.ones(1, 4),) * 3, {}, "the graph has the inputs x, y; give 2 tensors, not 3"),
        ((torch.ones(1, 4),), {"z": 1}, "the graph has the inputs x, y; 'z' is not one of them"),
        ((torch.ones(1, 4),), {"x": 1}, "the graph has the inputs x, y; 'x' is given twice"),
        (({"x": 1},), {"y": 1}, r"the input 'x' takes a tensor of floats, not dict; .*run\(\*\*"),
        ((torch.ones(1, 4), torch.ones(1, 4)), {}, r"'y' has the shape \[batch, 3\], not \[1, 4\]"),
        ((torch.ones(4), torch.ones(3)), {}, r"'x' has the shape \[batch, 4\], not \[4\]"),
        ((torch.ones(3, 4), torch.ones(2, 3)), {}, "the inputs have batches of 3 and 2 samples"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_in_one_sentence(args, kwargs, said):
    with pytest.raises((TypeError, ValueError), match=said):
        two_inputs().run(*args, **kwargs)


def test_an_unknown_node_is_refused_by_name():
    with pytest.raises(ValueError, match="the graph has no node 'ad'; did you mean 'add'"):
        two_inputs().codes("ad")
