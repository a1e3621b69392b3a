"""Private names of other libraries that MASE needs: each still exists, and there are no others.

A name is here only if the library has no public way. When a test fails after an update, the reason
says what to replace.
"""

import ast
import functools
import re
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from torch import fx, nn
from torch.nn.modules import batchnorm, conv, instancenorm
from torch.nn.utils import parametrizations, parametrize
from torch.utils import _python_dispatch, _pytree

CHOP = Path(__file__).parents[1] / "chop"

TABLES = "the layers and tensors of one module, None included, which named_modules() leaves out"
HOOKS = "hooks that others registered, which torch does not list"
BLOCKS = "the parts of torch's transformers, which subclasses may replace"
FLAT = "the parameters of a recurrent layer in the order of its kernel"
BASE = "the base class of torch's layers of all dimensions"
PARAMETRIZED = "norms of weights in a saved graph, rebuilt without computing them"
OPERATORS = "an operator that torch.export records"
# expression -> what it is needed for; `x` and the like are in `examples`
NAMES = {
    "layer._parameters": TABLES,
    "layer._buffers": TABLES,
    "layer._modules": TABLES,
    "layer._non_persistent_buffers_set": "which buffers are not saved",
    "layer._forward_hooks": HOOKS,
    "layer._forward_pre_hooks": HOOKS,
    "layer._forward_hooks_with_kwargs": HOOKS,
    "layer._forward_pre_hooks_with_kwargs": HOOKS,
    "layer._backward_hooks": HOOKS,
    "layer._backward_pre_hooks": HOOKS,
    "layer.weight._backward_hooks": HOOKS,
    "layer._call_impl": "to replace the call of a layer with its hooks, for torch.export",
    "lstm._init_flat_weights": FLAT,
    "lstm._flat_weights_names": FLAT,
    "lstm._all_weights": FLAT,
    "lstm._flat_weights": FLAT,
    "lstm._flat_weight_refs": FLAT,
    "filter._conv_forward": "a convolution with a rounded weight, padded as torch does it",
    "filter._reversed_padding_repeated_twice": "the padding of a convolution in the order of F.pad",
    "decoder._sa_block": BLOCKS,
    "decoder._mha_block": BLOCKS,
    "decoder._ff_block": BLOCKS,
    "batchnorm._BatchNorm": BASE,
    "batchnorm._NormBase": BASE,
    "conv._ConvNd": BASE,
    "conv._ConvTransposeNd": BASE,
    "instancenorm._InstanceNorm": BASE,
    "parametrizations._WeightNorm": PARAMETRIZED,
    "parametrizations._SpectralNorm": PARAMETRIZED,
    "parametrizations._SpectralNorm(x.view(2, 1))._u": PARAMETRIZED,
    "parametrizations._SpectralNorm(x.view(2, 1))._v": PARAMETRIZED,
    "parametrizations._Orthogonal": PARAMETRIZED,
    "parametrizations._OrthMaps": PARAMETRIZED,
    "parametrize._inject_new_class": PARAMETRIZED,
    "parametrize._inject_property": PARAMETRIZED,
    "x._is_view()": "whether a write in place is refused by autograd",
    "x._version": "whether a parameter was written to",
    "x.untyped_storage()._cdata": "which tensors share memory, on the meta device too",
    "torch._int_mm": "products of int8 in int32, of which torch has no public function",
    "torch._assert": "checks in a graph, as torch.fx documents them",
    "torch._C._nn.gelu": "functions of C++ that torch.nn.functional shows",
    "torch._C.DisableTorchFunction": "to run a layer inside torch.export unrecorded",
    "torch._C._functorch.peek_interpreter_stack": "whether vmap or grad is active",
    "torch._C._len_torch_dispatch_stack": "whether a mode is active, such as fake tensors",
    "torch._C._jit_get_schemas_for_operator('aten::add')": "the overloads of a method by name",
    "torch._jit_internal.boolean_dispatched": "the Python function behind F.max_pool2d",
    "torch.ops.aten.add.Tensor._schema.arguments": "the names of an operator's arguments",
    "torch.ops.aten._assert_scalar": OPERATORS,
    "torch.ops.aten._assert_async": OPERATORS,
    "torch.ops.aten._assert_tensor_metadata": OPERATORS,
    "torch.ops.aten._adaptive_avg_pool2d": OPERATORS,
    "torch.ops.aten._log_softmax": OPERATORS,
    "torch.ops.aten._prelu_kernel": OPERATORS,
    "torch.ops.aten._safe_softmax": OPERATORS,
    "torch.ops.aten._weight_norm": OPERATORS,
    "torch.ops.aten._weight_norm_interface": OPERATORS,
    "torch.ops.aten._unsafe_view": OPERATORS,
    "fx._symbolic_trace._wrapped_fns_to_patch": "functions that torch.fx.wrap keeps whole",
    "fx.Tracer()._autowrap_search": "functions of torch that torch.fx takes for constants",
    "graph._codegen": "whether a graph has inputs nested in lists",
    "node._rename": "the names of nodes in a file",
    "type(traced)._wrapped_call": "errors of a graph without the traceback that torch.fx prints",
    "_pytree.tree_leaves": "tensors in nested values; torch.utils has no public module for it",
    "_python_dispatch.TorchDispatchMode": "the audit of costs; torch has no public module for it",
    "Pair._asdict": "results in a named tuple, as Python documents",
}
SLOW = {
    "compiled._orig_mod": "whether a model is compiled",
    "program._guards_code": "what torch.export assumed of the sizes of its inputs",
    "program.module()._guards_fn": "whether a module is of an exported program",
}
OPTUNA = {
    "optuna.samplers.TPESampler()._search_space": "keys that trials share, computed once",
    "optuna.samplers.CmaEsSampler()._search_space": "keys that trials share, computed once",
    "optuna.samplers.GPSampler()._intersection_search_space": "the same, of another sampler",
}


@functools.cache
def examples():
    layer, pair = nn.Linear(2, 2), namedtuple("Pair", "a b")
    traced = fx.symbolic_trace(nn.Sequential(layer))
    node = next(iter(traced.graph.nodes))
    return {
        "torch": torch,
        "fx": fx,
        "conv": conv,
        "parametrize": parametrize,
        "parametrizations": parametrizations,
        "Pair": pair,
        "layer": layer,
        "node": node,
        "batchnorm": batchnorm,
        "instancenorm": instancenorm,
        "graph": traced.graph,
        "traced": traced,
        "_pytree": _pytree,
        "_python_dispatch": _python_dispatch,
        "x": torch.ones(2),
        "lstm": nn.LSTM(2, 2),
        "filter": nn.Conv2d(1, 1, 3),
        "decoder": nn.TransformerDecoderLayer(4, 2, 8),
    }


def check(expression, reason, library, values):
    try:
        eval(expression, dict(values))
    except AttributeError as error:
        pytest.fail(
            f"{library.__name__} {library.__version__} has no {expression} ({error}), which MASE "
            f"needs for: {reason}"
        )


def test_every_private_name_of_torch_exists():
    for expression, reason in NAMES.items():
        check(expression, reason, torch, examples())


@pytest.mark.slow
def test_those_of_torch_export_and_compile_exist():
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(3, 2),))
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    for expression, reason in SLOW.items():
        check(expression, reason, torch, {"program": program, "compiled": compiled})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of experimental samplers
def test_those_of_optuna_exist(package):
    optuna = package("optuna")
    for expression, reason in OPTUNA.items():
        check(expression, reason, optuna, {"optuna": optuna})


def test_without_the_assumptions_of_torch_export_a_capture_is_refused():
    from chop.ir.graph.size_checks import guards
    from chop.ir.graph.trace_errors import UnsupportedTorch

    with pytest.raises(UnsupportedTorch, match=r"has no ExportedProgram\._guards_code"):
        guards(object())


# what starts with an underscore and is not a name of another library
OURS = re.compile(r"_(transform|analysis|interface)_pass|_(quantizer|hooks|change|grad)|_sym_\w+")
OURS_TOO = """
    _adapters _adaptive_avg_pool _address _clip _constant _dataloader _dataset _enable _epoch _exit
    _finer _frac_width _getframe _l _l0 _lower _mask _metadata _movement _narrow _proj_weight
    _reverse _tensor_constant _transformed_layers _upper _valid _wrap _zero_fraction
"""


def private_names(tree):
    """Yield the names in a file that start with an underscore, and are attributes or strings."""
    parts = {
        part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in ast.walk(tree):
        if node in parts:  # f"{port}_enable" makes a name of ours
            continue
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and not str(node.module).startswith("chop"):
            yield from (part for part in str(node.module).split("."))
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value if node.value.islower() else ""


def defined_names(tree):
    """Yield the names that a file defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


@pytest.mark.slow
def test_there_are_no_others():
    trees = {file: ast.parse(file.read_text("utf-8")) for file in sorted(CHOP.rglob("*.py"))}
    known = {name for tree in trees.values() for name in defined_names(tree)}
    known |= set(OURS_TOO.split())
    known |= set(re.findall(r"\b_\w+", " ".join((*NAMES, *SLOW, *OPTUNA))))
    others = {
        f"{file.relative_to(CHOP.parent)}: {name}"
        for file, tree in trees.items()
        for name in set(private_names(tree)) - known
        if re.fullmatch(r"_[A-Za-z]\w*", name) and not OURS.fullmatch(name)
    }
    assert not others, "use public names, or add these with the reason"
