"""The table of MASE ops: how each is recognised, its name, and its operands."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.registry import Registry

MaseType = Literal[
    "module_related_func",  # exists both as nn.Module and as function
    "module",  # an nn.Module without a functional form
    "builtin_func",  # arithmetic of Python and torch
    "implicit_func",  # shapes and bookkeeping: no hardware
    "patched_func",  # user-defined: not in the table
    "placeholder",
    "get_attr",
    "output",
]
MASE_TYPES: tuple[MaseType, ...] = get_args(MaseType)

# Where the functions of an op are looked up by name. Tensor comes last: its methods are call_method
# targets, and `torch.Tensor.add` itself may be called as a function.
NAMESPACES = (torch, F, torch.special, torch.linalg, operator, math, torch._C._nn, Tensor)


@dataclass(frozen=True)
class OpSpec:
    """One op. `functions` are compared by identity, `modules` by nearest base class."""

    name: str
    mase_type: MaseType
    modules: tuple[type[nn.Module], ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    methods: tuple[str, ...] = ()
    params: tuple[str, ...] = ()  # argument names in metadata where torch's differ; dim_0=dim0
    quantized: tuple[str, ...] = ()  # operands that a format applies to, in argument order
    given: tuple[Callable[..., Any], ...] = ()  # functions that were not looked up by name
    # whether it only maps tensors and plain values and has no side effects, such as on files;
    # a graph that was loaded from a file may call only pure ops
    pure: bool = True

    @property
    def origin(self) -> list[tuple[str, str]]:
        """Where its modules and functions were defined."""
        things: tuple[Any, ...] = (*self.modules, *self.functions)
        return [(str(thing.__module__), str(thing.__qualname__)) for thing in things]


class StandIn:
    """A function that computes another one's op, such as its quantized form."""

    target: Callable[..., Any]
    spec: OpSpec
    own_arguments: frozenset[str]  # arguments that only the stand-in takes


OPS: Registry[OpSpec] = Registry("op")
_BY_MODULE: dict[type, OpSpec] = {}
_BY_FUNCTION: dict[Any, OpSpec] = {}
_BY_NAME: dict[str, OpSpec] = {}  # spellings of functions and methods


class TrainingMode(nn.Module):
    """Returns whether the model is in train mode: `self.training` in a graph."""

    def forward(self) -> bool:
        return self.training


def _spelt(name: str) -> list[Callable[..., Any]]:
    found = (getattr(space, name, None) for space in NAMESPACES)
    return [thing for thing in found if callable(thing)]


def define(
    name: str,
    mase_type: MaseType,
    *modules: type[nn.Module],
    names: str | None = None,
    functions: tuple[Callable[..., Any], ...] = (),
    params: str = "",
    quantized: str = "",
    pure: bool = True,
) -> OpSpec:
    """Add an op. `names` are the spellings of its functions and methods, by default the op's name.

    A name means the functions of `NAMESPACES` and the Tensor method of that name, with their
    in-place forms, unless such a form is an op itself. Your own op lists its `modules` and
    `functions`. Saved graphs may call them, unless it is not `pure`.
    """
    spellings = (name if names is None else names).split()
    inplace = (f"{spelling}_" for spelling in spellings if not spelling.endswith("_"))
    spellings += [spelling for spelling in inplace if spelling not in OPS]
    callables = [*functions, *(fn for spelling in spellings for fn in _spelt(spelling))]
    methods = tuple(spelling for spelling in spellings if hasattr(Tensor, spelling))
    unique = tuple({id(fn): fn for fn in callables}.values())
    spec = OpSpec(
        name,
        mase_type,
        modules,
        unique,
        methods,
        tuple(params.split()),
        tuple(quantized.split()),
        functions,
        pure,
    )
    again = name in OPS and OPS[name].origin == spec.origin  # a notebook cell that is run again
    claimed = [_BY_MODULE.get(cls) for cls in modules] + [_BY_FUNCTION.get(fn) for fn in functions]
    for other in claimed:
        if other is not None and other.name != name:
            raise ValueError(f"op {name!r} claims a function or module of op {other.name!r}")
    OPS.register(name, replace=again)(spec)
    _BY_MODULE.update(dict.fromkeys(modules, spec))
    # if two rows have the same name, such as sum in torch and in Python, the first row wins
    for fn in unique:
        _BY_FUNCTION.setdefault(fn, spec)
    for spelling in spellings:
        _BY_NAME.setdefault(spelling, spec)
    module_op.cache_clear()
    return spec


@cache
def module_op(cls: Any) -> OpSpec | None:
    """Find an op by the nearest known base class: ReLU6 is not Hardtanh, LinearInteger is linear.

    A composed layer of MASE names its row itself, as the table contains only torch's layers.
    """
    named = getattr(cls, "mase_op", None)
    if isinstance(named, str):
        return OPS[named]
    return next((_BY_MODULE[base] for base in cls.__mro__ if base in _BY_MODULE), None)


def _function_op(target: Any) -> OpSpec | None:
    """Find an op by identity; torch's operators, as torch.ops.aten.add.Tensor, by exact name."""
    if isinstance(target, StandIn):
        return target.spec
    if isinstance(target, torch._ops.OpOverload):
        target = target.overloadpacket
    if isinstance(target, torch._ops.OpOverloadPacket):
        qualified = target._qualified_op_name
        aten = qualified.startswith("aten::")
        return _BY_NAME.get(qualified.removeprefix("aten::")) if aten else None
    return _BY_FUNCTION.get(target)


_TENSOR_CONSTANT = re.compile(r"_tensor_constant\d+")
_LAB_PARAMETER = re.compile(
    r"(block|seq_blocks|linear|conv2d)(_\d+)?(_\d+)?_(weight|bias|gamma|means|pruning_masks)"
)


def is_tensor_constant(s: str) -> bool:
    """Return whether fx gave this name to a tensor constant in forward().

    >>> is_tensor_constant("_tensor_constant0"), is_tensor_constant("x")
    (True, False)
    """
    return _TENSOR_CONSTANT.fullmatch(s) is not None


def is_seq_blocks_parameter(s: str) -> bool:
    """Return whether functional layers of the labs' models read a parameter of this name.

    >>> is_seq_blocks_parameter("seq_blocks_2_weight"), is_seq_blocks_parameter("head_weight")
    (True, False)
    """
    return _LAB_PARAMETER.fullmatch(s) is not None


def identify(node: fx.Node, module: nn.Module | None = None) -> OpSpec:
    """Return the op of a node; unknown ones are user-defined ops, never an error."""
    if node.op == "call_module":
        cls: Any = type(module)
        return module_op(cls) or OPS["user_defined_module"]
    if node.op == "call_function":
        return _function_op(node.target) or OPS["user_defined_function"]
    if node.op == "call_method":
        return _BY_NAME.get(str(node.target)) or OPS["user_defined_method"]
    if node.op == "get_attr" and (
        is_tensor_constant(node.name) or is_seq_blocks_parameter(node.name)
    ):
        return OPS["constant"]
    return OPS[node.op]


def _define_all(mase_type: MaseType, names: str, params: str = "") -> None:
    for name in names.split():
        define(name, mase_type, params=params)


WEIGHTED = "data_in weight bias"
BINARY = "input other"

# --- the graph itself
define("placeholder", "placeholder", names="")
define("get_attr", "get_attr", names="")
define("output", "output", names="")
define("constant", "implicit_func", names="")
define("training_mode", "implicit_func", TrainingMode, names="")
define("user_defined_module", "module", names="")
define("lora_linear", "module_related_func", names="")
define("user_defined_function", "patched_func", names="")
define("user_defined_method", "patched_func", names="")
define("patched_custom_layers", "patched_func", names="")

# --- layers with weights
define("linear", "module_related_func", nn.Linear, quantized=WEIGHTED)
define("bilinear", "module_related_func", nn.Bilinear)
define("conv1d", "module_related_func", nn.Conv1d, quantized=WEIGHTED)
define("conv2d", "module_related_func", nn.Conv2d, quantized=WEIGHTED)
define("conv3d", "module_related_func", nn.Conv3d, quantized=WEIGHTED)
for _d in (1, 2, 3):
    define(
        f"convtranspose{_d}d",
        "module_related_func",
        getattr(nn, f"ConvTranspose{_d}d"),
        names=f"conv_transpose{_d}d",
        quantized=WEIGHTED,
    )
define("convolution", "builtin_func", names="convolution _convolution")
define("embedding", "module_related_func", nn.Embedding, quantized="weight")
define("embedding_bag", "module_related_func", nn.EmbeddingBag, quantized="weight")

# --- norms
define("batch_norm1d", "module", nn.BatchNorm1d, names="", quantized=WEIGHTED)
define("batch_norm2d", "module", nn.BatchNorm2d, names="", quantized=WEIGHTED)
define("batch_norm3d", "module", nn.BatchNorm3d, names="", quantized=WEIGHTED)
define("sync_batch_norm", "module", nn.SyncBatchNorm, names="")
define("instance_norm1d", "module", nn.InstanceNorm1d, names="", quantized=WEIGHTED)
define("instance_norm2d", "module", nn.InstanceNorm2d, names="", quantized=WEIGHTED)
define("instance_norm3d", "module", nn.InstanceNorm3d, names="", quantized=WEIGHTED)
define(
    "batch_norm",
    "module_related_func",
    names="batch_norm native_batch_norm _native_batch_norm_legit_no_training",
    quantized=WEIGHTED,
)
define("instance_norm", "module_related_func", quantized=WEIGHTED)
define(
    "layer_norm",
    "module_related_func",
    nn.LayerNorm,
    names="layer_norm native_layer_norm",
    quantized=WEIGHTED,
)
define(
    "group_norm",
    "module_related_func",
    nn.GroupNorm,
    names="group_norm native_group_norm",
    quantized=WEIGHTED,
)
define("rms_norm", "module_related_func", nn.RMSNorm, quantized="data_in weight")
define("local_response_norm", "module_related_func", nn.LocalResponseNorm, nn.CrossMapLRN2d)
define("normalize", "builtin_func")

# --- activations
for _name, _classes, _names in (
    ("relu", (nn.ReLU,), "relu"),
    ("relu6", (nn.ReLU6,), "relu6"),
    ("rrelu", (nn.RReLU,), "rrelu"),
    ("leaky_relu", (nn.LeakyReLU,), "leaky_relu"),
    ("prelu", (nn.PReLU,), "prelu"),
    ("elu", (nn.ELU,), "elu"),
    ("selu", (nn.SELU,), "selu"),
    ("celu", (nn.CELU,), "celu"),
    ("gelu", (nn.GELU,), "gelu"),
    ("silu", (nn.SiLU,), "silu"),
    ("mish", (nn.Mish,), "mish"),
    ("sigmoid", (nn.Sigmoid,), "sigmoid expit"),
    ("logsigmoid", (nn.LogSigmoid,), "logsigmoid log_sigmoid"),
    ("hardsigmoid", (nn.Hardsigmoid,), "hardsigmoid"),
    ("tanh", (nn.Tanh,), "tanh"),
    ("hardtanh", (nn.Hardtanh,), "hardtanh"),
    ("hardswish", (nn.Hardswish,), "hardswish"),
    ("hardshrink", (nn.Hardshrink,), "hardshrink"),
    ("softshrink", (nn.Softshrink,), "softshrink"),
    ("tanhshrink", (nn.Tanhshrink,), "tanhshrink"),
    ("softsign", (nn.Softsign,), "softsign"),
    ("softplus", (nn.Softplus,), "softplus"),
    ("threshold", (nn.Threshold,), "threshold"),
    ("glu", (nn.GLU,), "glu"),
    ("softmax", (nn.Softmax, nn.Softmax2d), "softmax _softmax _safe_softmax"),
    ("softmin", (nn.Softmin,), "softmin"),
    ("log_softmax", (nn.LogSoftmax,), "log_softmax _log_softmax"),
    ("gumbel_softmax", (), "gumbel_softmax"),
):
    define(_name, "module_related_func", *_classes, names=_names, quantized="data_in")

# --- pooling and resizing
for _d in (1, 2, 3):
    for _pool, _camel in (
        ("adaptive_avg_pool", "AdaptiveAvgPool"),
        ("adaptive_max_pool", "AdaptiveMaxPool"),
        ("avg_pool", "AvgPool"),
        ("max_pool", "MaxPool"),
        ("lp_pool", "LPPool"),
        ("max_unpool", "MaxUnpool"),
    ):
        _op = f"{_pool}{_d}d"
        define(
            _op,
            "module_related_func",
            getattr(nn, f"{_camel}{_d}d"),
            names=f"{_op} {_op}_with_indices _{_op}",
        )
define("fractional_max_pool2d", "module_related_func", nn.FractionalMaxPool2d)
define("fractional_max_pool3d", "module_related_func", nn.FractionalMaxPool3d)
define(
    "upsample",
    "module_related_func",
    nn.Upsample,
    names="upsample upsample_nearest upsample_bilinear",
)
define(
    "interpolate",
    "builtin_func",
    names="interpolate upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d "
    "upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d",
)
define("pixel_shuffle", "module_related_func", nn.PixelShuffle)
define("pixel_unshuffle", "module_related_func", nn.PixelUnshuffle)
define("channel_shuffle", "module_related_func", nn.ChannelShuffle)
define("fold", "module_related_func", nn.Fold)
define("unfold", "module_related_func", nn.Unfold)
define(
    "pad",
    "module_related_func",
    *(
        getattr(nn, f"{how}Pad{_d}d")
        for how in ("Zero", "Constant", "Reflection", "Replication", "Circular")
        for _d in (1, 2, 3)
    ),
    names="pad constant_pad_nd",
)
_define_all("builtin_func", "grid_sample affine_grid")

# --- attention, transformers, recurrence
define(
    "scaled_dot_product_attention",
    "builtin_func",
    names="scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention",
    quantized="data_in data_in data_in",
)
define(
    "attention",
    "module_related_func",
    nn.MultiheadAttention,
    names="multi_head_attention_forward",
)
define("transformer", "module", nn.Transformer, names="")
define("transformer_encoder", "module", nn.TransformerEncoder, names="")
define("transformer_encoder_layer", "module", nn.TransformerEncoderLayer, names="")
define("transformer_decoder", "module", nn.TransformerDecoder, names="")
define("transformer_decoder_layer", "module", nn.TransformerDecoderLayer, names="")
define("rnn", "module", nn.RNN, names="")
define("lstm", "module", nn.LSTM, names="lstm")
define("gru", "module", nn.GRU, names="gru")
define("rnn_cell", "module", nn.RNNCell, names="")
define("lstm_cell", "module", nn.LSTMCell)
define("gru_cell", "module", nn.GRUCell)
define("grouped_query_attention", "module", names="")

# --- losses and distances
define("crossentropyloss", "module_related_func", nn.CrossEntropyLoss, names="cross_entropy")
define("nll_loss", "module_related_func", nn.NLLLoss)
define("mse_loss", "module_related_func", nn.MSELoss)
define("l1_loss", "module_related_func", nn.L1Loss)
define("smooth_l1_loss", "module_related_func", nn.SmoothL1Loss)
define("huber_loss", "module_related_func", nn.HuberLoss)
define("kl_div", "module_related_func", nn.KLDivLoss)
define("binary_cross_entropy", "module_related_func", nn.BCELoss)
define("binary_cross_entropy_with_logits", "module_related_func", nn.BCEWithLogitsLoss)
define("poisson_nll_loss", "module_related_func", nn.PoissonNLLLoss)
define("gaussian_nll_loss", "module_related_func", nn.GaussianNLLLoss)
define("ctc_loss", "module_related_func", nn.CTCLoss)
define("hinge_embedding_loss", "module_related_func", nn.HingeEmbeddingLoss)
define("cosine_embedding_loss", "module_related_func", nn.CosineEmbeddingLoss)
define("margin_ranking_loss", "module_related_func", nn.MarginRankingLoss)
define("soft_margin_loss", "module_related_func", nn.SoftMarginLoss)
define("multi_margin_loss", "module_related_func", nn.MultiMarginLoss)
define("multilabel_margin_loss", "module_related_func", nn.MultiLabelMarginLoss)
define("multilabel_soft_margin_loss", "module_related_func", nn.MultiLabelSoftMarginLoss)
define("triplet_margin_loss", "module_related_func", nn.TripletMarginLoss)
define(
    "triplet_margin_with_distance_loss",
    "module_related_func",
    nn.TripletMarginWithDistanceLoss,
)
define("adaptive_log_softmax", "module", nn.AdaptiveLogSoftmaxWithLoss, names="")
define("cosine_similarity", "module_related_func", nn.CosineSimilarity)
define("pairwise_distance", "module_related_func", nn.PairwiseDistance)

# --- arithmetic on two tensors
define("add", "builtin_func", names="add iadd", params=BINARY, quantized="data_in data_in")
define("sub", "builtin_func", names="sub isub subtract", params=BINARY, quantized="data_in data_in")
define("mul", "builtin_func", names="mul imul multiply", params=BINARY, quantized="data_in data_in")
define("matmul", "builtin_func", names="matmul imatmul", params=BINARY, quantized="data_in weight")
define("bmm", "builtin_func", params="input mat2", quantized="data_in weight")
define("mm", "builtin_func", params="input mat2", quantized="data_in weight")
define("div", "builtin_func", names="div divide true_divide truediv itruediv", params=BINARY)
define("floor_divide", "builtin_func", names="floor_divide floordiv ifloordiv", params=BINARY)
define("remainder", "builtin_func", names="remainder fmod mod imod", params=BINARY)
define("pow", "builtin_func", names="pow ipow float_power", params="input exponent")
define("not", "builtin_func", names="not_ logical_not", params="input")
define("invert", "builtin_func", names="invert bitwise_not", params="input")
define("bitwise_and", "builtin_func", names="bitwise_and and_ iand logical_and", params=BINARY)
define("bitwise_or", "builtin_func", names="bitwise_or or_ ior logical_or", params=BINARY)
define("bitwise_xor", "builtin_func", names="bitwise_xor xor ixor logical_xor", params=BINARY)
_define_all("builtin_func", "gt greater lt less le less_equal greater_equal", params=BINARY)
define("bitwise_left_shift", "builtin_func", names="bitwise_left_shift lshift ilshift")
define("bitwise_right_shift", "builtin_func", names="bitwise_right_shift rshift irshift")
define("atan2", "builtin_func", names="atan2 arctan2", params=BINARY)
_define_all("builtin_func", "maximum minimum hypot fmax fmin logaddexp xlogy", params=BINARY)
_define_all("builtin_func", "isclose allclose equal", params=BINARY)
_define_all("builtin_func", "addmm baddbmm addbmm addmv addr addcmul addcdiv lerp rsub")
define("einsum", "builtin_func", params="equation *operands")
_define_all("builtin_func", "tensordot outer inner dot vdot mv cross kron cdist multi_dot det")
define("inverse", "builtin_func", functions=(torch.linalg.inv,))

# --- arithmetic on one tensor
_define_all(
    "builtin_func",
    "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p erf erfc erfinv sin cos tan sinh cosh square "
    "reciprocal sign sgn floor ceil frac cumsum cumprod cummax cummin logcumsumexp diff logit "
    "nan_to_num sinc lgamma digamma signbit angle conj",
)
for _name in ("asin", "acos", "atan", "asinh", "acosh", "atanh"):
    define(_name, "builtin_func", names=f"{_name} {_name.replace('a', 'arc', 1)}")
define("trunc", "builtin_func", names="trunc fix")
define("neg", "builtin_func", names="neg negative", params="input")
define("pos", "builtin_func", names="pos positive", params="input")
define("round", "builtin_func")

# --- reductions and order
_define_all(
    "builtin_func",
    "sum mean prod max min amax amin aminmax argmax argmin var std var_mean std_mean median "
    "nanmean nansum nanmedian quantile logsumexp any all topk sort argsort kthvalue mode "
    "count_nonzero trace bincount histc",
)
define("norm", "builtin_func", names="norm vector_norm matrix_norm")

# --- making tensors
_define_all("builtin_func", "arange range cat")
define("concat", "builtin_func", names="concat concatenate")
define("zeros", "builtin_func", params="*size")
_define_all("implicit_func", "ones empty rand randn", params="*size")
_define_all("implicit_func", "new_zeros new_ones new_empty", params="input *size")
_define_all("implicit_func", "tensor as_tensor", params="data")
_define_all(
    "implicit_func",
    "full eye linspace logspace randint randperm bernoulli multinomial normal zeros_like ones_like "
    "full_like empty_like rand_like randn_like randint_like new_full new_tensor meshgrid one_hot "
    "scalar_tensor tril_indices triu_indices uniform random exponential",
)

# --- shapes, indices, bookkeeping
define("getattr", "implicit_func", names="", functions=(getattr,), params="a b")
define("getitem", "implicit_func", params="in select")
define("setitem", "builtin_func", params="in select value")
define("_assert", "implicit_func", names="_assert", params="condition message")
define(
    "assert_metadata",
    "implicit_func",
    names="_assert_tensor_metadata _assert_scalar _assert_async",
)
define("view", "implicit_func", names="view _unsafe_view", params="input *shape")
define("reshape", "implicit_func", params="input *shape")
define("expand", "implicit_func", params="input *shape")
define("repeat", "implicit_func", params="input *repeats")
define("tile", "implicit_func", params="input *dims")
define("permute", "implicit_func", params="input *dims")
define("flip", "implicit_func", params="input *dims")
define("transpose", "implicit_func", names="transpose", params="input dim_0=dim0 dim_1=dim1")
define("swapaxes", "implicit_func", names="swapaxes", params="input dim_0=axis0 dim_1=axis1")
define("swapdims", "implicit_func", names="swapdims", params="input dim_0=dim0 dim_1=dim1")
define("split", "implicit_func", params="input split_size_or_sections dim")
define("size", "implicit_func", names="size sym_size")
define("abs", "implicit_func", names="abs absolute")
define("clamp", "implicit_func", names="clamp clip clamp_min clamp_max")
define("type", "implicit_func", params="input dtype")
define("dim", "implicit_func", names="dim ndimension")
define("numel", "implicit_func", names="numel nelement sym_numel")
_define_all("implicit_func", "finfo iinfo", params="dtype=type")
define("masked_fill_", "implicit_func", names="masked_fill_")
define("masked_fill", "implicit_func")
define("to", "implicit_func", names="to _to_copy")
define("flatten", "implicit_func", nn.Flatten)
define("unflatten", "implicit_func", nn.Unflatten)
define("identity", "module_related_func", nn.Identity, names="")
define(
    "dropout",
    "implicit_func",
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    names="dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout "
    "feature_dropout native_dropout",
)
_define_all("implicit_func", "eq ge", params=BINARY)
define("ne", "implicit_func", names="ne not_equal", params=BINARY)
_define_all(
    "implicit_func",
    "t contiguous where long type_as stack bool int squeeze unsqueeze gemm cast shape gather slice "
    "index_select detach chunk unbind narrow select view_as expand_as reshape_as broadcast_to "
    "repeat_interleave roll rot90 fliplr flipud tril triu diag diagonal diag_embed item tolist "
    "clone float half double bfloat16 short char byte cpu cuda ravel scatter scatter_add "
    "scatter_reduce index_add index_copy index_fill index_put index masked_select masked_scatter "
    "take take_along_dim hstack vstack dstack column_stack split_with_sizes tensor_split hsplit "
    "vsplit is_floating_point is_complex is_contiguous is_nonzero isnan isinf isfinite isin fill "
    "zero copy requires_grad broadcast_tensors atleast_1d atleast_2d atleast_3d bucketize "
    "searchsorted unique unique_consecutive nonzero argwhere view_as_real view_as_complex real "
    "imag alias lift_fresh_copy as_strided stride get_device adjoint select_scatter slice_scatter",
)
define("movedim", "implicit_func", names="movedim moveaxis")
define("numpy", "implicit_func", pure=False)  # array methods can write files
define("df_split", "builtin_func", names="")

# for chop.ir.pure: later rows are the user's
TABLE = tuple(OPS.values())
PURE_SPELLINGS = frozenset(spelling for spelling, op in _BY_NAME.items() if op.pure)
