"""The table of MASE ops: how each is recognised, its name, and its operands."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir.nested import named_output, named_tuple
from chop.ir.op_spec import _BY_NAME, _BY_PATH
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
from chop.ir.op_spec import is_named_in_table as is_named_in_table
from chop.ir.op_spec import is_seq_blocks_parameter as is_seq_blocks_parameter
from chop.ir.op_spec import is_tensor_constant as is_tensor_constant
from chop.ir.op_spec import module_op as module_op
from chop.ir.op_spec import ops_with as ops_with


class TrainingMode(nn.Module):
    """Returns whether the model is in train mode: `self.training` in a graph."""

    def forward(self) -> bool:
        return self.training


class TransposedLinear(nn.Module):
    """A linear layer that stores its weight with the inputs first, as transformers' Conv1D does."""

    def __init__(self, nf: int, nx: int) -> None:
        """Create a layer from `nx` features to `nf`."""
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.empty(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.T, self.bias)


def _define_all(
    mase_type: MaseType, rows: str, params: str = "", traits: str = "", quantized: str = ""
) -> None:
    """Define an op for each word of `rows`.

    `add/iadd` is the op add, which is spelt iadd as well; `a=b/c` is spelt b and c only, and `a=`
    not at all. Its classes in torch.nn follow, as in `relu:ReLU`.
    """
    for row in rows.split():
        spelt, *classes = row.split(":")
        name, only, spellings = spelt.partition("=")
        define(
            name.partition("/")[0],
            mase_type,
            *(getattr(nn, cls) for cls in classes),
            names=(spellings if only else name).replace("/", " "),
            params=params,
            quantized=quantized,
            traits=traits,
        )


WEIGHTED = "data_in weight bias"
BINARY = "input other"
POINTWISE = "pointwise"
MOVES = "no_arithmetic"
COPIES = "pointwise no_arithmetic"
RESHAPES = "reshape no_arithmetic"
FACTS = "sizes no_arithmetic"
SCALAR = "pointwise activation"
SIGNED = "pointwise activation signed"
DIMS = (1, 2, 3)

# --- the graph itself
_define_all("placeholder", "placeholder=", traits=MOVES)
_define_all("get_attr", "get_attr=", traits=MOVES)
_define_all("output", "output=", traits=MOVES)
_define_all("implicit_func", "constant=", traits=MOVES)
define(
    "named_output",
    "implicit_func",
    names="",
    functions=(named_output, named_tuple),
    traits=MOVES,
)
define("training_mode", "implicit_func", TrainingMode, names="", traits=MOVES)
_define_all("module", "user_defined_module=")
_define_all("module_related_func", "lora_linear=")
_define_all("patched_func", "user_defined_function= user_defined_method= patched_custom_layers=")

# --- layers with weights
_define_all("module_related_func", "linear:Linear", traits="weighted_sum", quantized=WEIGHTED)
_define_all("module_related_func", "bilinear:Bilinear")
define(
    "transposed_linear",
    "module",
    TransposedLinear,
    names="",
    traits="inner_products",
    quantized=WEIGHTED,
    paths=("transformers.pytorch_utils.Conv1D",),
)
for _rows, _traits in (
    ("conv{0}d:Conv{0}d", "weighted_sum convolution"),
    (
        "convtranspose{0}d=conv_transpose{0}d:ConvTranspose{0}d",
        "weighted_sum convolution transposed",
    ),
):
    for _d in DIMS:
        _define_all("module_related_func", _rows.format(_d), traits=_traits, quantized=WEIGHTED)
_define_all("builtin_func", "convolution/_convolution", quantized=WEIGHTED)
_define_all("module", "deployed_linear=")  # its layers name the row themselves, too
_define_all("module", "edge_table=")  # a sum of tables; its layers name the row themselves
_define_all("builtin_func", "weight_norm=_weight_norm/_weight_norm_interface")
_define_all("module_related_func", "embedding:Embedding", traits=MOVES, quantized="weight")
_define_all("module_related_func", "embedding_bag:EmbeddingBag", quantized="weight")

# --- norms
for _d in DIMS:
    _define_all("module", f"batch_norm{_d}d=:BatchNorm{_d}d", quantized=WEIGHTED)
_define_all("module", "sync_batch_norm=:SyncBatchNorm")
for _d in DIMS:
    _define_all("module", f"instance_norm{_d}d=:InstanceNorm{_d}d", quantized=WEIGHTED)
_define_all(
    "module_related_func",
    "batch_norm/native_batch_norm/_native_batch_norm_legit_no_training instance_norm "
    "layer_norm/native_layer_norm:LayerNorm group_norm/native_group_norm:GroupNorm",
    quantized=WEIGHTED,
)
_define_all("module_related_func", "rms_norm:RMSNorm", quantized="data_in weight")
_define_all("module_related_func", "local_response_norm:LocalResponseNorm:CrossMapLRN2d")
_define_all("builtin_func", "normalize")

# --- activations
for _rows, _traits in (
    ("relu:ReLU", f"{SIGNED} idempotent homogeneous"),
    ("relu6:ReLU6", f"{SIGNED} idempotent"),
    ("rrelu:RReLU", POINTWISE),  # draws random numbers in train mode
    ("leaky_relu:LeakyReLU", f"{SIGNED} homogeneous"),
    ("prelu:PReLU", "homogeneous"),  # has a weight for each channel
    ("elu:ELU selu:SELU celu:CELU gelu:GELU silu:SiLU", SIGNED),
    ("mish:Mish", SCALAR),
    ("sigmoid/expit:Sigmoid", f"{SCALAR} probabilities"),
    ("logsigmoid/log_sigmoid:LogSigmoid", SCALAR),
    ("hardsigmoid:Hardsigmoid tanh:Tanh hardtanh:Hardtanh", SCALAR),
    ("hardswish:Hardswish", SIGNED),
    ("hardshrink:Hardshrink softshrink:Softshrink tanhshrink:Tanhshrink", SCALAR),
    ("softsign:Softsign softplus:Softplus threshold:Threshold", SCALAR),
    ("glu:GLU", ""),
    ("softmax/_softmax/_safe_softmax:Softmax:Softmax2d", "probabilities"),
    ("softmin:Softmin", ""),
    ("log_softmax/_log_softmax:LogSoftmax", "probabilities"),
    ("gumbel_softmax", ""),
):
    _define_all("module_related_func", _rows, traits=_traits, quantized="data_in")

# --- pooling and resizing
for _d in DIMS:
    for _row, _traits in (
        ("adaptive_avg_pool AdaptiveAvgPool", "pool homogeneous"),
        ("adaptive_max_pool AdaptiveMaxPool", "pool homogeneous"),
        ("avg_pool AvgPool", "pool homogeneous"),
        ("max_pool MaxPool", "pool homogeneous"),
        ("lp_pool LPPool", "pool homogeneous"),
        ("max_unpool MaxUnpool", MOVES),
    ):
        _op, _class = (f"{_name}{_d}d" for _name in _row.split())
        _spelt = f"{_op}/{_op}_with_indices/_{_op}"
        _operands = "data_in" if _op in ("avg_pool2d", "adaptive_avg_pool2d") else ""
        _define_all(
            "module_related_func", f"{_spelt}:{_class}", traits=_traits, quantized=_operands
        )
# no pools: their windows are drawn at random
_define_all(
    "module_related_func",
    "fractional_max_pool2d:FractionalMaxPool2d fractional_max_pool3d:FractionalMaxPool3d "
    "upsample/upsample_nearest/upsample_bilinear:Upsample",
)
_define_all(
    "builtin_func",
    "interpolate/upsample_nearest1d/upsample_nearest2d/upsample_nearest3d/upsample_linear1d/"
    "upsample_bilinear2d/upsample_bicubic2d/upsample_trilinear3d",
)
_define_all(
    "module_related_func",
    "pixel_shuffle:PixelShuffle pixel_unshuffle:PixelUnshuffle channel_shuffle:ChannelShuffle",
    traits=MOVES,
)
_define_all("module_related_func", "fold:Fold")
_define_all("module_related_func", "unfold:Unfold", traits=MOVES)
_pads = [
    f":{_how}Pad{_d}d"
    for _how in ("Zero", "Constant", "Reflection", "Replication", "Circular")
    for _d in DIMS
]
_define_all("module_related_func", f"pad/constant_pad_nd{''.join(_pads)}", traits=MOVES)
_define_all("builtin_func", "grid_sample affine_grid")

# --- attention, transformers, recurrence
_define_all(
    "builtin_func",
    "scaled_dot_product_attention/_scaled_dot_product_flash_attention/"
    "_scaled_dot_product_flash_attention_for_cpu/_scaled_dot_product_efficient_attention/"
    "_scaled_dot_product_cudnn_attention",
    quantized="data_in data_in data_in",
)
_define_all(
    "module_related_func",
    "attention=multi_head_attention_forward:MultiheadAttention",
    traits="inner_products",
    quantized="data_in data_in data_in weight bias",  # query, key and value
)
_define_all(
    "module",
    "rnn=:RNN lstm:LSTM gru:GRU rnn_cell=:RNNCell lstm_cell:LSTMCell gru_cell:GRUCell",
    traits="inner_products",
    quantized="data_in data_in weight bias",  # the input and the hidden state
)
_define_all(
    "module",
    "transformer=:Transformer transformer_encoder=:TransformerEncoder "
    "transformer_encoder_layer=:TransformerEncoderLayer transformer_decoder=:TransformerDecoder "
    "transformer_decoder_layer=:TransformerDecoderLayer grouped_query_attention=",
)

# --- losses and distances
_define_all(
    "module_related_func",
    "crossentropyloss=cross_entropy:CrossEntropyLoss nll_loss:NLLLoss mse_loss:MSELoss "
    "l1_loss:L1Loss smooth_l1_loss:SmoothL1Loss huber_loss:HuberLoss kl_div:KLDivLoss "
    "binary_cross_entropy:BCELoss binary_cross_entropy_with_logits:BCEWithLogitsLoss "
    "poisson_nll_loss:PoissonNLLLoss gaussian_nll_loss:GaussianNLLLoss ctc_loss:CTCLoss "
    "hinge_embedding_loss:HingeEmbeddingLoss cosine_embedding_loss:CosineEmbeddingLoss "
    "margin_ranking_loss:MarginRankingLoss soft_margin_loss:SoftMarginLoss "
    "multi_margin_loss:MultiMarginLoss multilabel_margin_loss:MultiLabelMarginLoss "
    "multilabel_soft_margin_loss:MultiLabelSoftMarginLoss triplet_margin_loss:TripletMarginLoss "
    "triplet_margin_with_distance_loss:TripletMarginWithDistanceLoss",
)
_define_all("module", "adaptive_log_softmax=:AdaptiveLogSoftmaxWithLoss")
_define_all(
    "module_related_func",
    "cosine_similarity:CosineSimilarity pairwise_distance:PairwiseDistance",
)

# --- arithmetic on two tensors
_define_all(
    "builtin_func",
    "add/iadd sub/isub/subtract mul/imul/multiply",
    BINARY,
    POINTWISE,
    quantized="data_in data_in",
)
_define_all("builtin_func", "matmul/imatmul", BINARY, quantized="data_in weight")
_define_all("builtin_func", "bmm mm", "input mat2", quantized="data_in weight")
_define_all(
    "builtin_func",
    "div/divide/true_divide/truediv/itruediv floor_divide/floordiv/ifloordiv "
    "remainder/fmod/mod/imod",
    BINARY,
    POINTWISE,
)
_define_all("builtin_func", "pow/ipow/float_power", "input exponent", POINTWISE)
_define_all("builtin_func", "not=not_/logical_not invert/bitwise_not", "input", POINTWISE)
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
# a linear layer with its inputs first: the term that is added, the inputs, the weight
_define_all("builtin_func", "addmm baddbmm addbmm addmv", quantized="bias data_in weight")
# of any number of operands, those after the first are weights
define("einsum", "builtin_func", params="equation *operands", quantized="data_in weight")
_define_all("builtin_func", "tensordot inner dot vdot mv", quantized="data_in weight")
_define_all("builtin_func", "addr outer cross kron cdist multi_dot det")
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
define("getattr", "implicit_func", names="", functions=(getattr,), params="a b", traits=FACTS)
define("getitem", "implicit_func", params="in select", traits=MOVES)
define("setitem", "builtin_func", params="in select value", traits=MOVES)
define("_assert", "implicit_func", names="_assert", params="condition message", traits=MOVES)
_define_all(
    "implicit_func",
    "assert_metadata=_assert_tensor_metadata/_assert_scalar/_assert_async",
    traits=MOVES,
)
_define_all("implicit_func", "view/_unsafe_view reshape", "input *shape", RESHAPES)
_define_all("implicit_func", "expand", "input *shape", MOVES)
define("repeat", "implicit_func", params="input *repeats", traits=MOVES)
_define_all("implicit_func", "tile permute flip", "input *dims", MOVES)
_define_all("implicit_func", "transpose swapdims", "input dim_0=dim0 dim_1=dim1", MOVES)
_define_all("implicit_func", "swapaxes", "input dim_0=axis0 dim_1=axis1", MOVES)
define("split", "implicit_func", params="input split_size_or_sections dim", traits=MOVES)
_define_all("implicit_func", "abs/absolute clamp/clip/clamp_min/clamp_max", traits=POINTWISE)
define("type", "implicit_func", params="input dtype", traits=MOVES)
_define_all("implicit_func", "size/sym_size dim/ndimension numel/nelement/sym_numel", traits=FACTS)
_define_all("implicit_func", "movedim/moveaxis", traits=MOVES)
define("length", "implicit_func", names="", functions=(len,), traits=FACTS)
_define_all("implicit_func", "finfo iinfo", "dtype=type", MOVES)
define("masked_fill_", "implicit_func", names="masked_fill_", traits=MOVES)
_define_all("implicit_func", "masked_fill to/_to_copy", traits=COPIES)
_define_all("implicit_func", "flatten:Flatten unflatten:Unflatten", traits=RESHAPES)
_define_all(
    "module_related_func", "identity=:Identity", traits=f"{COPIES} no_op idempotent homogeneous"
)
_define_all(
    "implicit_func",
    "dropout/dropout1d/dropout2d/dropout3d/alpha_dropout/feature_alpha_dropout/feature_dropout/"
    "native_dropout:Dropout:Dropout1d:Dropout2d:Dropout3d:AlphaDropout:FeatureAlphaDropout",
    traits="pointwise no_op idempotent homogeneous",
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
# layers that are classes of libraries, by path
PATHS = _BY_PATH
