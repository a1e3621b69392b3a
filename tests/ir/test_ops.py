"""The contract of every row of the table of ops, and who is recognised as what."""

import inspect
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.ir import common
from chop.ir.common import MASE_TYPE_MAP, MASE_TYPES
from chop.ir.ops import OPS, define, has_trait, identify, ops_with
from chop.registry import UnknownName

# SPEC-2 §4, both trees
IMPLICIT = (
    "size view flatten t transpose reshape contiguous dropout eq ge where _assert getattr getitem "
    "long type_as clamp abs stack to bool int squeeze unsqueeze permute ne gemm cast shape gather "
    "slice split tile expand full ones dim finfo masked_fill masked_fill_ index_select detach "
    "tensor flip repeat"
)
MODULE_RELATED = (
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d avg_pool1d "
    "avg_pool2d batch_norm conv1d conv2d layer_norm linear max_pool1d max_pool2d relu identity "
    "hardshrink silu elu sigmoid softshrink logsigmoid softmax selu tanh gelu softplus softsign"
)
MODULES = "batch_norm1d batch_norm2d"
BUILTIN = (
    "mul sub add matmul bmm baddbmm addmm mean pow sqrt div max cumsum erf sin cos tan sinh cosh "
    "greater gt less le lt not min neg log arange range scaled_dot_product_attention df_split cat "
    "zeros setitem invert"
)
# HEAD lists these as builtin_func too; functions that have a module are module_related_func here
ALSO_BUILTIN = "softmax tanh sigmoid gelu embedding getitem"
OTHER_MODULES = (
    "hardtanh relu6 hardswish hardsigmoid attention convtranspose2d group_norm instance_norm2d "
    "crossentropyloss grouped_query_attention upsample user_defined_module patched_custom_layers "
    "constant placeholder get_attr output"
)


def op_of(target):
    if isinstance(target, nn.Module):
        return identify(fx.Graph().call_module("m"), target)
    graph, is_method = fx.Graph(), isinstance(target, str)
    return identify(graph.call_method(target) if is_method else graph.call_function(target))


def of_class(cls):
    """The op of a class of modules, for which no instance is needed."""
    return identify(fx.Graph().call_module("m"), object.__new__(cls))


def test_functions_methods_and_modules_are_recognised_as_their_row():
    wrong = []
    for spec in OPS.values():
        ops = [(thing, op_of(thing)) for thing in (*spec.functions, *spec.methods)]
        ops += [(cls, of_class(cls)) for cls in spec.modules]
        wrong += [(spec.name, thing) for thing, op in ops if op is not spec]
    assert wrong == []


def test_every_row_has_a_type_and_methods_that_exist():
    for name, noted in MASE_TYPE_MAP.items():  # other tests add rows of their own
        spec = OPS[name]
        assert spec.mase_type in MASE_TYPES
        assert noted == {"type": spec.mase_type}
        assert [name for name in spec.methods if not hasattr(Tensor, name)] == []


def test_no_function_method_or_class_belongs_to_two_rows():
    claims: dict[object, list[str]] = {}
    for spec in OPS.values():
        for thing in (*map(id, spec.functions), *spec.modules, *spec.methods):
            claims.setdefault(thing, []).append(spec.name)
    assert [rows for rows in claims.values() if len(rows) > 1] == []


@pytest.mark.parametrize(
    ("names", "mase_type", "listed"),
    [
        (IMPLICIT, "implicit_func", common.MASE_IMPLICIT_FUNCS),
        (MODULE_RELATED, "module_related_func", common.MASE_MODULE_RELATED_FUNCS),
        (MODULES, "module", common.MASE_MODULES),
        (BUILTIN, "builtin_func", common.MASE_BUILTIN_FUNCS),
    ],
)
def test_every_op_of_mase_is_there_under_its_type(names, mase_type, listed):
    assert {OPS[name].mase_type for name in names.split()} == {mase_type}
    assert set(names.split()) <= set(listed)


def test_ops_that_mase_calls_otherwise_are_there_too():
    assert [name for name in (ALSO_BUILTIN + " " + OTHER_MODULES).split() if name not in OPS] == []


def test_the_types_are_those_of_mase_and_patched_func():
    functions = {"module_related_func", "builtin_func", "implicit_func", "patched_func"}
    assert set(MASE_TYPES) == {"module", "placeholder", "get_attr", "output"} | functions
    assert common.MASE_HARDWARE_TOOLCHAIN[0] == "INTERNAL_RTL"


@pytest.mark.parametrize(
    ("target", "mase_type"),
    [
        (F.relu, "module_related_func"),
        (nn.ReLU(), "module_related_func"),
        (nn.BatchNorm2d(1), "module"),
        (torch.cat, "builtin_func"),
        (torch.bmm, "builtin_func"),
    ],
)
def test_the_statements_of_the_lab_sheet_are_true(target, mase_type):
    assert op_of(target).mase_type == mase_type


def test_a_scale_that_forward_reads_is_a_get_attr_and_ends_are_themselves():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return self.scale * x + torch.ones(3)

    ops = {node.name: identify(node).name for node in fx.symbolic_trace(Scaled()).graph.nodes}
    ends = {"x": "placeholder", "output": "output"}
    read = {"scale": "get_attr", "_tensor_constant0": "constant"}
    assert ops == {**ends, **read, "mul": "mul", "add": "add"}


@pytest.mark.parametrize(
    "name", ["seq_blocks_2_weight", "linear_bias", "conv2d_1_weight", "block_0_1_pruning_masks"]
)
def test_parameters_that_the_labs_functional_layers_read_are_constants(name):
    node = fx.Graph().create_node("get_attr", "anything", name=name)
    assert identify(node).name == "constant"


def test_the_nearest_class_decides():
    class MyLinear(nn.Linear):
        pass

    class MyNorm(nn.modules.batchnorm._BatchNorm):
        pass

    assert of_class(nn.ReLU6).name == "relu6"
    assert of_class(nn.Hardtanh).name == "hardtanh"
    assert of_class(nn.modules.linear.NonDynamicallyQuantizableLinear).name == "linear"
    assert of_class(MyLinear).name == "linear"
    assert of_class(MyNorm).name == "user_defined_module"
    assert of_class(nn.UpsamplingBilinear2d).name == "upsample"


def my_add_fn(x):
    return x


def add(x):
    return x


def test_what_the_table_does_not_know_is_user_defined_whatever_its_name():
    class Add(nn.Module):
        pass

    class Adder:
        __name__ = "add"

        def __call__(self, x):
            return x

    for function in (my_add_fn, add, Adder()):
        assert op_of(function) is OPS["user_defined_function"]
        assert op_of(function).mase_type == "patched_func"
    assert op_of(Add()) is OPS["user_defined_module"]
    assert op_of("my_method") is OPS["user_defined_method"]


@pytest.mark.parametrize(
    ("targets", "name"),
    [
        ((operator.add, operator.iadd, torch.add, Tensor.add, Tensor.add_, "add", "add_"), "add"),
        ((operator.matmul, torch.matmul, torch.linalg.matmul, "matmul"), "matmul"),
        ((operator.truediv, torch.div, torch.true_divide, "div_"), "div"),
        ((F.relu, torch.relu, torch.relu_, F.relu_, "relu_"), "relu"),
        ((F.softmax, torch.softmax, torch.special.softmax, "softmax"), "softmax"),
        ((torch.clamp, torch.clip, "clamp_min", "clip_"), "clamp"),
        ((operator.invert, torch.bitwise_not), "invert"),
        ((torch.linalg.inv, torch.inverse), "inverse"),
        ((torch.masked_fill, "masked_fill"), "masked_fill"),
        (("masked_fill_",), "masked_fill_"),
    ],
)
def test_all_spellings_of_an_op_are_one_op(targets, name):
    assert {op_of(target).name for target in targets} == {name}


ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("overload", "name"),
    [
        (ATEN.add.Tensor, "add"),
        (ATEN.add_.Tensor, "add"),
        (ATEN.linear.default, "linear"),
        (ATEN.conv2d.padding, "conv2d"),
        (ATEN._native_batch_norm_legit_no_training.default, "batch_norm"),
        (ATEN.native_layer_norm.default, "layer_norm"),
        (ATEN._softmax.default, "softmax"),
        (ATEN.max_pool2d_with_indices.default, "max_pool2d"),
        (ATEN._adaptive_avg_pool2d.default, "adaptive_avg_pool2d"),
        (ATEN._scaled_dot_product_flash_attention_for_cpu.default, "scaled_dot_product_attention"),
        (ATEN._unsafe_view.default, "view"),
        (ATEN._to_copy.default, "to"),
        (ATEN.upsample_nearest2d.vec, "interpolate"),
        (ATEN.sym_size.int, "size"),
        (ATEN._weight_norm.default, "weight_norm"),
        (ATEN.baddbmm.default, "baddbmm"),
        (ATEN.__and__.Tensor, "bitwise_and"),
        (ATEN.add, "add"),
    ],
    ids=str,
)
def test_overloads_of_aten_are_known_by_their_exact_name(overload, name):
    assert op_of(overload).name == name


@pytest.mark.parametrize(("method", "name"), [("__and__", "bitwise_and"), ("__add__", "add")])
def test_methods_of_python_operators_are_known(method, name):
    assert op_of(method).name == name


def test_operators_of_other_libraries_are_user_defined():
    assert op_of(torch.ops.quantized.add.default).name == "user_defined_function"


def test_an_exported_graph_is_of_known_ops_only(networks):
    model = networks.vit_small(image_size=8, patch_size=4, dim=8, depth=1, num_heads=2).eval()
    exported = torch.export.export(model, (torch.zeros(2, 3, 8, 8),)).graph
    unknown = {str(n.target) for n in exported.nodes if identify(n).mase_type == "patched_func"}
    assert unknown == set()


def torch_modules(*submodules):
    for submodule in submodules:
        space = getattr(nn.modules, submodule)
        for name, cls in vars(space).items():
            own = inspect.isclass(cls) and cls.__module__ == space.__name__
            # the lazy ones become what they stand for when they first see an input
            if own and issubclass(cls, nn.Module) and name[0] != "_" and "Lazy" not in name:
                yield cls


NEWER_THAN_MODELS = ("LinearCrossEntropyLoss",)
SUBMODULES = """
    activation batchnorm channelshuffle distance dropout flatten fold instancenorm loss
    normalization padding pixelshuffle pooling sparse transformer upsampling
"""
LAYERS = torch_modules(*SUBMODULES.split())


def test_every_layer_of_torch_is_known():
    layers = [cls for cls in LAYERS if cls.__name__ not in NEWER_THAN_MODELS]
    assert [cls for cls in layers if of_class(cls).name == "user_defined_module"] == []


@pytest.mark.parametrize("name", ["Linear", "Bilinear", "Conv3d", "ConvTranspose1d", "LSTM", "GRU"])
def test_every_layer_with_weights_is_known(name):
    assert of_class(getattr(nn, name)).name != "user_defined_module"


def test_a_misspelt_type_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match=r"unknown op 'liner'; did you mean 'linear'\?"):
        OPS["liner"]


class _Swish(nn.Module):
    pass


def _swish(x):
    return x * x.sigmoid()


@pytest.mark.usefixtures("own_op_table")
def test_an_op_of_your_own_is_one_line():
    spec = define("test_swish", "module_related_func", _Swish, names="", functions=(_swish,))
    assert op_of(_Swish()) is op_of(_swish) is OPS["test_swish"] is spec


def test_two_ops_of_one_name_are_refused():
    with pytest.raises(ValueError, match="op 'linear' registered twice"):
        define("linear", "builtin_func", names="")


def test_a_notebook_cell_that_defines_an_op_may_run_twice():
    try:
        for _ in range(2):

            class Doubled(nn.Module):
                def forward(self, x):
                    return 2 * x

            spec = define("doubled_in_a_notebook", "module", Doubled, names="")
        assert OPS["doubled_in_a_notebook"] is spec
        for name, modules, functions, owner in (
            ("linear", (Doubled,), (), "doubled_in_a_notebook"),
            ("my_linear", (nn.Linear,), (), "linear"),
            ("my_relu", (), (F.relu,), "relu"),
        ):
            message = f"op '{name}' claims a function or module of op '{owner}'"
            with pytest.raises(ValueError, match=message):
                define(name, "module", *modules, names="", functions=functions)
    finally:
        del OPS._items["doubled_in_a_notebook"]


@pytest.mark.usefixtures("own_op_table")
def test_traits_are_known_and_those_of_your_own_ops_are_found():
    define("swish_with_traits", "module", _Swish, names="", traits="pointwise")
    assert has_trait("swish_with_traits", "pointwise")
    assert ops_with("pointwise")[-1] == "swish_with_traits"
    assert not has_trait("softmax", "pointwise")
    assert not has_trait("no_such_op", "pointwise")
    with pytest.raises(UnknownName, match="unknown trait 'pointwize'; did you mean 'pointwise'"):
        define("swish_of_two", "module", names="", traits="pointwize")
