"""The table of MASE ops: how each is recognised, its name, and its operands."""

from __future__ import annotations

import torch
from torch import nn

from chop.ir.op_spec import _BY_NAME
from chop.ir.op_spec import MASE_TYPES as MASE_TYPES
from chop.ir.op_spec import NAMESPACES as NAMESPACES
from chop.ir.op_spec import OPS as OPS
from chop.ir.op_spec import MaseType as MaseType
from chop.ir.op_spec import OpSpec as OpSpec
from chop.ir.op_spec import StandIn as StandIn
from chop.ir.op_spec import Trait as Trait
from chop.ir.op_spec import define as define
from chop.ir.op_spec import has_trait as has_trait
from chop.ir.op_spec import identify as identify
from chop.ir.op_spec import is_seq_blocks_parameter as is_seq_blocks_parameter
from chop.ir.op_spec import is_tensor_constant as is_tensor_constant
from chop.ir.op_spec import module_op as module_op
from chop.ir.op_spec import ops_with as ops_with


class TrainingMode(nn.Module):
    """Returns whether the model is in train mode: `self.training` in a graph."""

    def forward(self) -> bool:
        return self.training


def _define_all(mase_type: MaseType, rows: str, params: str = "", traits: str = "") -> None:
    """Define an op for each word; `add/iadd` is the op add, which is spelt iadd as well."""
    for name, *spellings in (row.split("/") for row in rows.split()):
        define(name, mase_type, names=" ".join((name, *spellings)), params=params, traits=traits)


WEIGHTED = "data_in weight bias"
BINARY = "input other"
POINTWISE = "pointwise"
MOVES = "no_arithmetic"
COPIES = "pointwise no_arithmetic"
RESHAPES = "reshape no_arithmetic"
SCALAR = "pointwise activation"

# --- the graph itself
define("placeholder", "placeholder", names="", traits=MOVES)
define("get_attr", "get_attr", names="", traits=MOVES)
define("output", "output", names="", traits=MOVES)
define("constant", "implicit_func", names="", traits=MOVES)
define("training_mode", "implicit_func", TrainingMode, names="", traits=MOVES)
define("user_defined_module", "module", names="")
define("lora_linear", "module_related_func", names="")
define("user_defined_function", "patched_func", names="")
define("user_defined_method", "patched_func", names="")
define("patched_custom_layers", "patched_func", names="")

# --- layers with weights
define("linear", "module_related_func", nn.Linear, quantized=WEIGHTED, traits="weighted_sum")
define("bilinear", "module_related_func", nn.Bilinear)
for _d in (1, 2, 3):
    define(
        f"conv{_d}d",
        "module_related_func",
        getattr(nn, f"Conv{_d}d"),
        quantized=WEIGHTED,
        traits="weighted_sum convolution",
    )
for _d in (1, 2, 3):
    define(
        f"convtranspose{_d}d",
        "module_related_func",
        getattr(nn, f"ConvTranspose{_d}d"),
        names=f"conv_transpose{_d}d",
        quantized=WEIGHTED,
        traits="weighted_sum convolution transposed",
    )
define("convolution", "builtin_func", names="convolution _convolution")
define("embedding", "module_related_func", nn.Embedding, quantized="weight", traits=MOVES)
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
_SPELLINGS = {
    "sigmoid": "sigmoid expit",
    "logsigmoid": "logsigmoid log_sigmoid",
    "softmax": "softmax _softmax _safe_softmax",
    "log_softmax": "log_softmax _log_softmax",
}
for _name, _classes, _traits in (
    ("relu", (nn.ReLU,), f"{SCALAR} signed idempotent"),
    ("relu6", (nn.ReLU6,), f"{SCALAR} signed idempotent"),
    ("rrelu", (nn.RReLU,), POINTWISE),  # draws random numbers in train mode
    ("leaky_relu", (nn.LeakyReLU,), f"{SCALAR} signed"),
    ("prelu", (nn.PReLU,), ""),  # has a weight for each channel
    ("elu", (nn.ELU,), f"{SCALAR} signed"),
    ("selu", (nn.SELU,), f"{SCALAR} signed"),
    ("celu", (nn.CELU,), f"{SCALAR} signed"),
    ("gelu", (nn.GELU,), f"{SCALAR} signed"),
    ("silu", (nn.SiLU,), f"{SCALAR} signed"),
    ("mish", (nn.Mish,), SCALAR),
    ("sigmoid", (nn.Sigmoid,), SCALAR),
    ("logsigmoid", (nn.LogSigmoid,), SCALAR),
    ("hardsigmoid", (nn.Hardsigmoid,), SCALAR),
    ("tanh", (nn.Tanh,), SCALAR),
    ("hardtanh", (nn.Hardtanh,), SCALAR),
    ("hardswish", (nn.Hardswish,), f"{SCALAR} signed"),
    ("hardshrink", (nn.Hardshrink,), SCALAR),
    ("softshrink", (nn.Softshrink,), SCALAR),
    ("tanhshrink", (nn.Tanhshrink,), SCALAR),
    ("softsign", (nn.Softsign,), SCALAR),
    ("softplus", (nn.Softplus,), SCALAR),
    ("threshold", (nn.Threshold,), SCALAR),
    ("glu", (nn.GLU,), ""),
    ("softmax", (nn.Softmax, nn.Softmax2d), ""),
    ("softmin", (nn.Softmin,), ""),
    ("log_softmax", (nn.LogSoftmax,), ""),
    ("gumbel_softmax", (), ""),
):
    define(
        _name,
        "module_related_func",
        *_classes,
        names=_SPELLINGS.get(_name),
        quantized="data_in",
        traits=_traits,
    )

# --- pooling and resizing
for _d in (1, 2, 3):
    for _pool, _camel, _traits in (
        ("adaptive_avg_pool", "AdaptiveAvgPool", "pool"),
        ("adaptive_max_pool", "AdaptiveMaxPool", "pool"),
        ("avg_pool", "AvgPool", "pool"),
        ("max_pool", "MaxPool", "pool"),
        ("lp_pool", "LPPool", "pool"),
        ("max_unpool", "MaxUnpool", MOVES),
    ):
        _op = f"{_pool}{_d}d"
        define(
            _op,
            "module_related_func",
            getattr(nn, f"{_camel}{_d}d"),
            names=f"{_op} {_op}_with_indices _{_op}",
            traits=_traits,
        )
# no pools: their windows are drawn at random
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
define("pixel_shuffle", "module_related_func", nn.PixelShuffle, traits=MOVES)
define("pixel_unshuffle", "module_related_func", nn.PixelUnshuffle, traits=MOVES)
define("channel_shuffle", "module_related_func", nn.ChannelShuffle, traits=MOVES)
define("fold", "module_related_func", nn.Fold)
define("unfold", "module_related_func", nn.Unfold, traits=MOVES)
define(
    "pad",
    "module_related_func",
    *(
        getattr(nn, f"{how}Pad{_d}d")
        for how in ("Zero", "Constant", "Reflection", "Replication", "Circular")
        for _d in (1, 2, 3)
    ),
    names="pad constant_pad_nd",
    traits=MOVES,
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
    "attention", "module_related_func", nn.MultiheadAttention, names="multi_head_attention_forward"
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
define("triplet_margin_with_distance_loss", "module_related_func", nn.TripletMarginWithDistanceLoss)
define("adaptive_log_softmax", "module", nn.AdaptiveLogSoftmaxWithLoss, names="")
define("cosine_similarity", "module_related_func", nn.CosineSimilarity)
define("pairwise_distance", "module_related_func", nn.PairwiseDistance)

# --- arithmetic on two tensors
for _name, _names in (
    ("add", "add iadd"),
    ("sub", "sub isub subtract"),
    ("mul", "mul imul multiply"),
):
    define(
        _name,
        "builtin_func",
        names=_names,
        params=BINARY,
        quantized="data_in data_in",
        traits=POINTWISE,
    )
define("matmul", "builtin_func", names="matmul imatmul", params=BINARY, quantized="data_in weight")
define("bmm", "builtin_func", params="input mat2", quantized="data_in weight")
define("mm", "builtin_func", params="input mat2", quantized="data_in weight")
_define_all(
    "builtin_func",
    "div/divide/true_divide/truediv/itruediv floor_divide/floordiv/ifloordiv "
    "remainder/fmod/mod/imod",
    BINARY,
    POINTWISE,
)
_define_all("builtin_func", "pow/ipow/float_power", "input exponent", POINTWISE)
define("not", "builtin_func", names="not_ logical_not", params="input", traits=POINTWISE)
_define_all("builtin_func", "invert/bitwise_not", "input", POINTWISE)
_define_all(
    "builtin_func",
    "bitwise_and/and_/iand/logical_and bitwise_or/or_/ior/logical_or "
    "bitwise_xor/xor/ixor/logical_xor gt greater lt less le less_equal greater_equal",
    BINARY,
    POINTWISE,
)
_define_all(
    "builtin_func",
    "bitwise_left_shift/lshift/ilshift bitwise_right_shift/rshift/irshift",
    traits=POINTWISE,
)
_define_all(
    "builtin_func",
    "atan2/arctan2 maximum minimum hypot fmax fmin logaddexp xlogy isclose",
    BINARY,
    POINTWISE,
)
_define_all("builtin_func", "allclose equal", BINARY)
_define_all("builtin_func", "addcmul addcdiv lerp rsub", traits=POINTWISE)
_define_all("builtin_func", "addmm baddbmm addbmm addmv addr")
define("einsum", "builtin_func", params="equation *operands")
_define_all("builtin_func", "tensordot outer inner dot vdot mv cross kron cdist multi_dot det")
define("inverse", "builtin_func", functions=(torch.linalg.inv,))

# --- arithmetic on one tensor
_define_all(
    "builtin_func",
    "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p erf erfc erfinv sin cos tan sinh cosh square "
    "reciprocal sign sgn floor ceil frac logit nan_to_num sinc lgamma digamma signbit angle conj",
    traits=POINTWISE,
)
_define_all("builtin_func", "cumsum cumprod cummax cummin logcumsumexp diff")
_define_all(
    "builtin_func",
    "asin/arcsin acos/arccos atan/arctan asinh/arcsinh acosh/arccosh atanh/arctanh trunc/fix round",
    traits=POINTWISE,
)
_define_all("builtin_func", "neg/negative", "input", POINTWISE)
_define_all("builtin_func", "pos/positive", "input", COPIES)

# --- reductions and order
_define_all(
    "builtin_func",
    "sum mean prod max min amax amin aminmax argmax argmin var std var_mean std_mean median "
    "nanmean nansum nanmedian quantile logsumexp any all topk sort argsort kthvalue mode "
    "count_nonzero trace bincount histc norm/vector_norm/matrix_norm",
)

# --- making tensors
_define_all("builtin_func", "arange range cat concat/concatenate", traits=MOVES)
define("zeros", "builtin_func", params="*size", traits=MOVES)
_define_all("implicit_func", "ones empty rand randn", "*size", MOVES)
_define_all("implicit_func", "new_zeros new_ones new_empty", "input *size", MOVES)
_define_all("implicit_func", "tensor as_tensor", "data", MOVES)
_define_all(
    "implicit_func",
    "full eye linspace logspace randint randperm multinomial normal zeros_like ones_like full_like "
    "empty_like rand_like randn_like randint_like new_full new_tensor meshgrid one_hot "
    "scalar_tensor tril_indices triu_indices uniform random exponential",
    traits=MOVES,
)
define("bernoulli", "implicit_func")

# --- shapes, indices, bookkeeping
define("getattr", "implicit_func", names="", functions=(getattr,), params="a b", traits=MOVES)
define("getitem", "implicit_func", params="in select", traits=MOVES)
define("setitem", "builtin_func", params="in select value", traits=MOVES)
define("_assert", "implicit_func", names="_assert", params="condition message", traits=MOVES)
define(
    "assert_metadata",
    "implicit_func",
    names="_assert_tensor_metadata _assert_scalar _assert_async",
    traits=MOVES,
)
_define_all("implicit_func", "view/_unsafe_view reshape", "input *shape", RESHAPES)
define("expand", "implicit_func", params="input *shape", traits=MOVES)
define("repeat", "implicit_func", params="input *repeats", traits=MOVES)
_define_all("implicit_func", "tile permute flip", "input *dims", MOVES)
_define_all("implicit_func", "transpose swapdims", "input dim_0=dim0 dim_1=dim1", MOVES)
_define_all("implicit_func", "swapaxes", "input dim_0=axis0 dim_1=axis1", MOVES)
define("split", "implicit_func", params="input split_size_or_sections dim", traits=MOVES)
_define_all("implicit_func", "abs/absolute clamp/clip/clamp_min/clamp_max", traits=POINTWISE)
define("type", "implicit_func", params="input dtype", traits=MOVES)
_define_all(
    "implicit_func",
    "size/sym_size dim/ndimension numel/nelement/sym_numel movedim/moveaxis",
    traits=MOVES,
)
_define_all("implicit_func", "finfo iinfo", "dtype=type", MOVES)
define("masked_fill_", "implicit_func", names="masked_fill_", traits=MOVES)
_define_all("implicit_func", "masked_fill to/_to_copy", traits=COPIES)
define("flatten", "implicit_func", nn.Flatten, traits=RESHAPES)
define("unflatten", "implicit_func", nn.Unflatten, traits=RESHAPES)
define(
    "identity", "module_related_func", nn.Identity, names="", traits=f"{COPIES} no_op idempotent"
)
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
    traits="pointwise no_op idempotent",
)
_define_all("implicit_func", "eq ge ne/not_equal", BINARY, POINTWISE)
_define_all(
    "implicit_func",
    "contiguous where long type_as bool int detach clone float half double bfloat16 short char "
    "byte cpu cuda",
    traits=COPIES,
)
_define_all("implicit_func", "squeeze unsqueeze view_as reshape_as ravel", traits=RESHAPES)
_define_all("implicit_func", "isnan isinf isfinite", traits=POINTWISE)
_define_all(
    "implicit_func",
    "t stack cast shape gather slice index_select chunk unbind narrow select expand_as "
    "broadcast_to repeat_interleave roll rot90 fliplr flipud tril triu diag diagonal diag_embed "
    "item tolist scatter index_copy index_fill index_put index masked_select masked_scatter take "
    "take_along_dim hstack vstack dstack column_stack split_with_sizes tensor_split hsplit vsplit "
    "is_floating_point is_complex is_contiguous is_nonzero fill zero copy requires_grad "
    "broadcast_tensors atleast_1d atleast_2d atleast_3d nonzero argwhere view_as_real "
    "view_as_complex real imag alias lift_fresh_copy as_strided stride get_device adjoint "
    "select_scatter slice_scatter",
    traits=MOVES,
)
_define_all(
    "implicit_func",
    "gemm scatter_add scatter_reduce index_add isin bucketize searchsorted unique "
    "unique_consecutive",
)
define("numpy", "implicit_func", pure=False, traits=MOVES)  # arrays have methods that write files
define("df_split", "builtin_func", names="", traits=MOVES)

# for chop.ir.pure: later rows are the user's
TABLE = tuple(OPS.values())
PURE_SPELLINGS = frozenset(spelling for spelling, op in _BY_NAME.items() if op.pure)
