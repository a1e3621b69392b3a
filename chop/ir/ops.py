"""The table of MASE ops: how each is recognised, its name, and its operands."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir.nested import named_output, named_tuple
from chop.ir.op_spec import _BY_NAME, _BY_PATH, define_rows
from chop.ir.op_spec import MASE_TYPES as MASE_TYPES
from chop.ir.op_spec import NAMESPACES as NAMESPACES
from chop.ir.op_spec import OPS as OPS
from chop.ir.op_spec import Adapter as Adapter
from chop.ir.op_spec import MaseType as MaseType
from chop.ir.op_spec import OpNames as OpNames
from chop.ir.op_spec import OpSpec as OpSpec
from chop.ir.op_spec import StandIn as StandIn
from chop.ir.op_spec import Trait as Trait
from chop.ir.op_spec import define as define
from chop.ir.op_spec import drops_sign as drops_sign
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


WEIGHTED = "data_in weight bias"
BINARY = "input other"
POINTWISE = "pointwise"
MOVES = "no_arithmetic"
COPIES = "pointwise no_arithmetic"
RESHAPES = "reshape no_arithmetic"
FACTS = "sizes no_arithmetic"
SCALAR = "pointwise activation"
SIGNED = "pointwise activation signed"
POOLS = "pool homogeneous"
DIMS = (1, 2, 3)

# --- the graph itself
define_rows("placeholder", "placeholder=", traits=MOVES)
define_rows("get_attr", "get_attr=", traits=MOVES)
define_rows("output", "output=", traits=MOVES)
define_rows("implicit_func", "constant=", traits=MOVES)
define(
    "named_output",
    "implicit_func",
    names="",
    functions=(named_output, named_tuple),
    traits=MOVES,
)
define("training_mode", "implicit_func", TrainingMode, names="", traits=MOVES)
define_rows("module", "user_defined_module=")
define_rows("patched_func", "user_defined_function= user_defined_method= patched_custom_layers=")

# --- layers with weights
define_rows(
    "module_related_func",
    "linear:Linear aten=3 integer=LinearCodes",
    traits="weighted_sum",
    quantized=WEIGHTED,
)
define_rows("module_related_func", "bilinear:Bilinear aten=4")
define(
    "transposed_linear",
    "module",
    TransposedLinear,
    names="",
    traits="inner_products",
    quantized=WEIGHTED,
    paths=("transformers.pytorch_utils.Conv1D",),
    integer="LinearCodes",
)
for _rows, _traits in (
    ("conv{0}d:Conv{0}d aten=7 integer=ConvCodes", "weighted_sum convolution"),
    (
        "convtranspose{0}d=conv_transpose{0}d:ConvTranspose{0}d aten=8",
        "weighted_sum convolution transposed",
    ),
):
    for _d in DIMS:
        define_rows("module_related_func", _rows.format(_d), traits=_traits, quantized=WEIGHTED)
define_rows("builtin_func", "convolution/_convolution", quantized=WEIGHTED)
define_rows(
    "builtin_func", "weight_norm=_weight_norm/_weight_norm_interface flops=3,5", per="input"
)
define_rows("module_related_func", "embedding:Embedding", traits=MOVES, quantized="weight")
define_rows("module_related_func", "embedding_bag:EmbeddingBag", quantized="weight")

# --- norms
for _d in DIMS:
    define_rows(
        "module", f"batch_norm{_d}d=:BatchNorm{_d}d", quantized=WEIGHTED, integer="ChannelAffine"
    )
define_rows("module", "sync_batch_norm=:SyncBatchNorm")
for _d in DIMS:
    define_rows("module", f"instance_norm{_d}d=:InstanceNorm{_d}d", quantized=WEIGHTED)
define_rows(
    "module_related_func",
    "batch_norm/native_batch_norm/_native_batch_norm_legit_no_training integer=ChannelAffine "
    "instance_norm layer_norm/native_layer_norm:LayerNorm aten=5 "
    "group_norm/native_group_norm:GroupNorm aten=5",
    quantized=WEIGHTED,
)
define_rows("module_related_func", "rms_norm:RMSNorm aten=4", quantized="data_in weight")
define_rows(
    "module_related_func",
    "local_response_norm:LocalResponseNorm:CrossMapLRN2d flops=6,6",
    per="input",
)
define_rows("builtin_func", "normalize flops=3,5", per="input")

# --- activations
for _rows, _traits in (
    (
        "relu:ReLU flops=1,1 aten=1 integer=ReluCodes",
        f"{SIGNED} idempotent homogeneous non_negative keeps_grid rectifier",
    ),
    ("relu6:ReLU6 flops=2,1 aten=1 integer=ClampCodes", f"{SIGNED} idempotent non_negative"),
    ("rrelu:RReLU flops=2,1", POINTWISE),  # draws random numbers in train mode
    (
        "leaky_relu:LeakyReLU flops=2,1 aten=2 integer=LeakyReluCodes "  # noqa: ISC004
        "onnx=LeakyRelu,alpha=negative_slope",
        f"{SIGNED} homogeneous",
    ),
    ("prelu:PReLU flops=2,3 aten=2", "homogeneous"),  # has a weight for each channel
    ("elu:ELU flops=4,2 onnx=Elu,alpha=alpha aten=2", SIGNED),
    ("selu:SELU flops=5,3 onnx=Selu aten=1", SIGNED),
    ("celu:CELU flops=5,3 onnx=Celu,alpha=alpha aten=2", SIGNED),
    ("gelu:GELU flops=5,7 onnx=Gelu,approximate=approximate", SIGNED),
    ("silu:SiLU flops=5,5 aten=1", SIGNED),
    ("mish:Mish flops=5,9 onnx=Mish aten=1", SCALAR),
    ("sigmoid/expit:Sigmoid flops=4,3 onnx=Sigmoid", f"{SCALAR} probabilities non_negative"),
    ("logsigmoid/log_sigmoid:LogSigmoid flops=4,4", SCALAR),
    ("hardsigmoid:Hardsigmoid flops=4,2 aten=1", f"{SCALAR} non_negative"),
    ("tanh:Tanh flops=1,3 onnx=Tanh", SCALAR),
    ("hardtanh:Hardtanh flops=2,1 aten=3 integer=ClampCodes", SCALAR),
    ("hardswish:Hardswish flops=5,4 onnx=HardSwish aten=1", SIGNED),
    ("hardshrink:Hardshrink flops=2,1 aten=2", SCALAR),
    ("softshrink:Softshrink flops=3,1 aten=2", SCALAR),
    ("tanhshrink:Tanhshrink flops=2,3", SCALAR),
    ("softsign:Softsign flops=3,3 onnx=Softsign", SCALAR),
    ("softplus:Softplus flops=3,4 aten=3", SCALAR),
    ("threshold:Threshold flops=1,1", SCALAR),
    ("glu:GLU flops=5,7 aten=2", ""),
    (
        "softmax/_softmax/_safe_softmax:Softmax:Softmax2d flops=5,4",
        "probabilities non_negative",
    ),
    ("softmin:Softmin flops=6,5", ""),
    ("log_softmax/_log_softmax:LogSoftmax flops=5,4", "probabilities"),
    ("gumbel_softmax flops=10,5", ""),
):
    define_rows("module_related_func", _rows, traits=_traits, quantized="data_in")

# --- pooling and resizing
for _d in DIMS:
    for _row, _columns, _traits in (
        ("adaptive_avg_pool AdaptiveAvgPool", "aten=2 integer=AvgPoolCodes", POOLS),
        ("adaptive_max_pool AdaptiveMaxPool", "integer=MaxPoolCodes", POOLS),
        ("avg_pool AvgPool", "integer=AvgPoolCodes", POOLS),
        ("max_pool MaxPool", "integer=MaxPoolCodes", POOLS),
        ("lp_pool LPPool", "", POOLS),
        ("max_unpool MaxUnpool", "", MOVES),
    ):
        _op, _class = (f"{_name}{_d}d" for _name in _row.split())
        _spelt = f"{_op}/{_op}_with_indices/_{_op}:{_class} {_columns}"
        _operands = "data_in" if _op in ("avg_pool2d", "adaptive_avg_pool2d") else ""
        define_rows("module_related_func", _spelt, traits=_traits, quantized=_operands)
# no pools: their windows are drawn at random
define_rows(
    "module_related_func",
    "fractional_max_pool2d:FractionalMaxPool2d fractional_max_pool3d:FractionalMaxPool3d "
    "upsample/upsample_nearest/upsample_bilinear:Upsample",
)
define_rows(
    "builtin_func",
    "interpolate/upsample_nearest1d/upsample_nearest2d/upsample_nearest3d/upsample_linear1d/"
    "upsample_bilinear2d/upsample_bicubic2d/upsample_trilinear3d",
)
define_rows(
    "module_related_func",
    "pixel_shuffle:PixelShuffle aten=2 pixel_unshuffle:PixelUnshuffle aten=2 "
    "channel_shuffle:ChannelShuffle aten=2",
    traits=MOVES,
)
define_rows("module_related_func", "fold:Fold flops=1,0", per="input")
define_rows("module_related_func", "unfold:Unfold", traits=MOVES)
_pads = [
    f":{_how}Pad{_d}d"
    for _how in ("Zero", "Constant", "Reflection", "Replication", "Circular")
    for _d in DIMS
]
define_rows("module_related_func", f"pad/constant_pad_nd{''.join(_pads)} aten=4", traits=MOVES)
define_rows("builtin_func", "grid_sample affine_grid")

# --- attention, transformers, recurrence
define_rows(
    "builtin_func",
    "scaled_dot_product_attention/_scaled_dot_product_flash_attention/"
    "_scaled_dot_product_flash_attention_for_cpu/_scaled_dot_product_efficient_attention/"
    "_scaled_dot_product_cudnn_attention",
    quantized="data_in data_in data_in",
)
define_rows(
    "module_related_func",
    "attention=multi_head_attention_forward:MultiheadAttention",
    traits="inner_products",
    quantized="data_in data_in data_in weight bias",  # query, key and value
)
define_rows(
    "module",
    "rnn=:RNN lstm:LSTM gru:GRU rnn_cell=:RNNCell lstm_cell:LSTMCell gru_cell:GRUCell",
    traits="inner_products",
    quantized="data_in data_in weight bias",  # the input and the hidden state
)
define_rows(
    "module",
    "transformer=:Transformer transformer_encoder=:TransformerEncoder "
    "transformer_encoder_layer=:TransformerEncoderLayer transformer_decoder=:TransformerDecoder "
    "transformer_decoder_layer=:TransformerDecoderLayer grouped_query_attention=",
)

# --- losses and distances
define_rows(
    "module_related_func",
    "crossentropyloss=cross_entropy:CrossEntropyLoss flops=6,2 nll_loss:NLLLoss flops=1,1 "
    "mse_loss:MSELoss flops=3,2 l1_loss:L1Loss flops=3,1 smooth_l1_loss:SmoothL1Loss flops=6,3 "
    "huber_loss:HuberLoss flops=6,3 kl_div:KLDivLoss flops=4,2 "
    "binary_cross_entropy:BCELoss flops=7,4 "
    "binary_cross_entropy_with_logits:BCEWithLogitsLoss flops=8,5 "
    "poisson_nll_loss:PoissonNLLLoss flops=4,2 gaussian_nll_loss:GaussianNLLLoss flops=7,6 "
    "ctc_loss:CTCLoss hinge_embedding_loss:HingeEmbeddingLoss flops=3,1 "
    "cosine_embedding_loss:CosineEmbeddingLoss flops=7,8 "
    "margin_ranking_loss:MarginRankingLoss flops=5,2 soft_margin_loss:SoftMarginLoss flops=5,4 "
    "multi_margin_loss:MultiMarginLoss flops=4,2 "
    "multilabel_margin_loss:MultiLabelMarginLoss flops=4,2 "
    "multilabel_soft_margin_loss:MultiLabelSoftMarginLoss flops=8,5 "
    "triplet_margin_loss:TripletMarginLoss flops=9,8 "
    "triplet_margin_with_distance_loss:TripletMarginWithDistanceLoss flops=9,8",
    per="input",
)
define_rows("module", "adaptive_log_softmax=:AdaptiveLogSoftmaxWithLoss")
define_rows(
    "module_related_func",
    "cosine_similarity:CosineSimilarity flops=6,8 aten=4 "
    "pairwise_distance:PairwiseDistance flops=4,4 aten=5",
    per="input",
)

# --- arithmetic on two tensors
define_rows(
    "builtin_func",
    "add/iadd flops=1,0 integer=AddCodes sub/isub/subtract flops=1,1 integer=SubtractCodes "
    "mul/imul/multiply flops=1,2 integer=MultiplyCodes",
    BINARY,
    POINTWISE,
    quantized="data_in data_in",
)
define_rows("builtin_func", "matmul/imatmul", BINARY, quantized="data_in weight")
define_rows("builtin_func", "bmm mm", "input mat2", quantized="data_in weight")
define_rows(
    "builtin_func",
    "div/divide/true_divide/truediv/itruediv flops=1,4 "
    "floor_divide/floordiv/ifloordiv flops=2,0 remainder/fmod/mod/imod flops=3,1",
    BINARY,
    POINTWISE,
)
define_rows("builtin_func", "pow/ipow/float_power flops=1,3", "input exponent", POINTWISE)
define_rows(
    "builtin_func",
    "not=not_/logical_not flops=1,0 invert/bitwise_not flops=1,0",
    "input",
    POINTWISE,
)
define_rows(
    "builtin_func",
    "bitwise_and/and_/iand/logical_and flops=1,0 bitwise_or/or_/ior/logical_or flops=1,0 "
    "bitwise_xor/xor/ixor/logical_xor flops=1,0 gt flops=1,0 greater flops=1,0 lt flops=1,0 "
    "less flops=1,0 le flops=1,0 less_equal flops=1,0 greater_equal flops=1,0",
    BINARY,
    POINTWISE,
)
define_rows(
    "builtin_func",
    "bitwise_left_shift/lshift/ilshift flops=1,0 bitwise_right_shift/rshift/irshift flops=1,0",
    traits=POINTWISE,
)
define_rows(
    "builtin_func",
    "atan2/arctan2 flops=1,6 maximum flops=1,1 minimum flops=1,1 hypot flops=4,4 fmax flops=1,1 "
    "fmin flops=1,1 logaddexp flops=5,4 xlogy flops=2,3 isclose flops=5,0",
    BINARY,
    POINTWISE,
)
define_rows("builtin_func", "allclose flops=1,0 equal flops=1,0", BINARY, per="input")
define_rows(
    "builtin_func",
    "addcmul flops=3,4 addcdiv flops=3,6 lerp flops=3,4 rsub flops=1,1",
    traits=POINTWISE,
)
# a linear layer with its inputs first: the term that is added, the inputs, the weight
define_rows("builtin_func", "addmm baddbmm addbmm addmv", quantized="bias data_in weight")
# of any number of operands, those after the first are weights
define("einsum", "builtin_func", params="equation *operands", quantized="data_in weight")
define_rows("builtin_func", "tensordot inner dot vdot mv", quantized="data_in weight")
define_rows(
    "builtin_func",
    "addr flops=2,2 outer flops=1,2 cross flops=3,6 kron flops=1,2 cdist multi_dot det",
)
define("inverse", "builtin_func", functions=(torch.linalg.inv,))

# --- arithmetic on one tensor
define_rows(
    "builtin_func",
    "sqrt flops=1,2 onnx=Sqrt rsqrt flops=2,3 exp flops=1,1 onnx=Exp exp2 flops=1,2 "
    "expm1 flops=1,2 log flops=1,1 onnx=Log log2 flops=1,2 log10 flops=1,2 log1p flops=1,2 "
    "erf flops=1,4 onnx=Erf sin flops=1,2 onnx=Sin cos flops=1,3 onnx=Cos tan flops=1,3 onnx=Tan "
    "sinh flops=1,2 onnx=Sinh cosh flops=1,2 onnx=Cosh square flops=1,2 "
    "reciprocal flops=1,3 onnx=Reciprocal sign flops=1,0 onnx=Sign floor flops=1,0 onnx=Floor "
    "ceil flops=1,0 onnx=Ceil",
    traits=POINTWISE,
    integer="Lookup",
)
define_rows(
    "builtin_func",
    "erfc flops=1,4 erfinv flops=1,4 sgn flops=1,0 onnx=Sign frac flops=1,0 logit flops=3,4 "
    "nan_to_num flops=1,0 sinc flops=3,5 lgamma flops=1,4 digamma flops=1,4 signbit flops=1,0 "
    "angle flops=1,0 conj flops=1,0",
    traits=POINTWISE,
)
define_rows(
    "builtin_func",
    "cumsum flops=1,1 cumprod flops=1,3 cummax flops=1,1 cummin flops=1,1 logcumsumexp flops=3,3 "
    "diff flops=1,1",
)
define_rows(
    "builtin_func",
    "asin/arcsin flops=1,4 onnx=Asin acos/arccos flops=1,4 onnx=Acos atan/arctan flops=1,4 "
    "onnx=Atan asinh/arcsinh flops=1,4 onnx=Asinh acosh/arccosh flops=1,4 onnx=Acosh "
    "atanh/arctanh flops=1,4 onnx=Atanh trunc/fix flops=1,0 round flops=1,0",
    traits=POINTWISE,
    integer="Lookup",
)
define_rows("builtin_func", "neg/negative flops=1,1 onnx=Neg integer=Lookup", "input", POINTWISE)
define_rows("builtin_func", "pos/positive", "input", COPIES)

# --- reductions and order
define_rows(
    "builtin_func",
    "sum flops=1,0 integer=AvgPoolCodes mean flops=1,1 integer=AvgPoolCodes prod flops=1,2 "
    "max flops=1,0 min flops=1,0 amax flops=1,0 amin flops=1,0 aminmax flops=1,0 "
    "argmax flops=1,0 integer=ArgMaxCodes argmin flops=1,0 var flops=4,3 std flops=4,4 "
    "var_mean flops=4,3 std_mean flops=4,4 median nanmean flops=2,1 nansum flops=2,1 nanmedian "
    "quantile logsumexp flops=4,2 any flops=1,0 all flops=1,0 topk sort argsort kthvalue "
    "mode flops=1,0 count_nonzero flops=1,0 trace flops=1,0 bincount flops=1,0 histc flops=1,0 "
    "norm/vector_norm/matrix_norm flops=2,2",
    per="input",
)

# --- making tensors
define_rows("builtin_func", "arange range cat concat/concatenate", traits=MOVES)
define("zeros", "builtin_func", params="*size", traits=MOVES)
define_rows("implicit_func", "ones empty rand randn", "*size", MOVES)
define_rows("implicit_func", "new_zeros new_ones new_empty", "input *size", MOVES)
define_rows("implicit_func", "tensor as_tensor", "data", MOVES)
define_rows(
    "implicit_func",
    "full eye linspace logspace randint randperm multinomial normal zeros_like ones_like "
    "full_like empty_like rand_like randn_like randint_like new_full new_tensor meshgrid "
    "one_hot aten=2 scalar_tensor tril_indices triu_indices uniform random exponential",
    traits=MOVES,
)
define_rows("implicit_func", "bernoulli flops=1,0")

# --- shapes, indices, bookkeeping
define("getattr", "implicit_func", names="", functions=(getattr,), params="a b", traits=FACTS)
define("getitem", "implicit_func", params="in select", traits=MOVES)
define("setitem", "builtin_func", params="in select value", traits=MOVES)
define("_assert", "implicit_func", names="_assert", params="condition message", traits=MOVES)
define_rows(
    "implicit_func",
    "assert_metadata=_assert_tensor_metadata/_assert_scalar/_assert_async",
    traits=MOVES,
)
define_rows("implicit_func", "view/_unsafe_view reshape", "input *shape", RESHAPES)
define_rows("implicit_func", "expand", "input *shape", MOVES)
define("repeat", "implicit_func", params="input *repeats", traits=MOVES)
define_rows("implicit_func", "tile permute flip", "input *dims", MOVES)
define_rows("implicit_func", "transpose swapdims", "input dim_0=dim0 dim_1=dim1", MOVES)
define_rows("implicit_func", "swapaxes", "input dim_0=axis0 dim_1=axis1", MOVES)
define("split", "implicit_func", params="input split_size_or_sections dim", traits=MOVES)
define_rows(
    "implicit_func",
    "abs/absolute flops=1,1 onnx=Abs integer=Lookup "
    "clamp/clip/clamp_min/clamp_max flops=2,1 integer=ClampCodes",
    traits=POINTWISE,
)
define("type", "implicit_func", params="input dtype", traits=MOVES)
define_rows("implicit_func", "size/sym_size dim/ndimension numel/nelement/sym_numel", traits=FACTS)
define_rows("implicit_func", "movedim/moveaxis", traits=MOVES)
define("length", "implicit_func", names="", functions=(len,), traits=FACTS)
define_rows("implicit_func", "finfo iinfo", "dtype=type", MOVES)
define("masked_fill_", "implicit_func", names="masked_fill_", traits=MOVES)
define_rows("implicit_func", "masked_fill to/_to_copy", traits=COPIES)
define_rows("implicit_func", "flatten:Flatten unflatten:Unflatten", traits=RESHAPES)
define_rows(
    "module_related_func", "identity=:Identity", traits=f"{COPIES} no_op idempotent homogeneous"
)
define_rows(
    "implicit_func",
    "dropout/dropout1d/dropout2d/dropout3d/alpha_dropout/feature_alpha_dropout/feature_dropout/"
    "native_dropout:Dropout:Dropout1d:Dropout2d:Dropout3d:AlphaDropout:FeatureAlphaDropout "
    "flops=0,0 aten=3",
    traits="pointwise no_op idempotent homogeneous",
)
define_rows("implicit_func", "eq flops=1,0 ge flops=1,0 ne/not_equal flops=1,0", BINARY, POINTWISE)
define_rows(
    "implicit_func",
    "contiguous where long type_as bool int detach clone float half double bfloat16 short char "
    "byte cpu cuda",
    traits=COPIES,
)
define_rows("implicit_func", "squeeze unsqueeze view_as reshape_as ravel", traits=RESHAPES)
define_rows("implicit_func", "isnan flops=1,0 isinf flops=1,0 isfinite flops=1,0", traits=POINTWISE)
define_rows(
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
define_rows(
    "implicit_func",
    "gemm scatter_add scatter_reduce index_add isin flops=1,0 bucketize searchsorted unique "
    "unique_consecutive flops=1,0",
    per="input",
)
define("numpy", "implicit_func", pure=False, traits=MOVES)  # arrays have methods that write files
define("df_split", "builtin_func", names="", traits=MOVES)

# for chop.ir.pure: later rows are the user's
TABLE = tuple(OPS.values())
PURE_SPELLINGS = frozenset(spelling for spelling, op in _BY_NAME.items() if op.pure)
# layers that are classes of libraries, by path
PATHS = _BY_PATH
