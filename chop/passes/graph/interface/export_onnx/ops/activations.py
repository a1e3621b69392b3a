"""Activations."""

from __future__ import annotations

import math

from torch import fx

from chop.ir.op_spec import StandIn
from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.registry import writes


@writes("relu")
def relu(call: OpCall) -> str:
    x = call.x()
    if call.rounding.is_non_negative("data_in"):
        return x
    return call.rounding.relu(call, x) or call.add("Relu", x)


def clipped(call: OpCall, x: str, low: float | None, high: float | None) -> str:
    """Return a value between two bounds."""
    dtype = call.given_facts().dtype
    names = ["" if bound is None else call.constant(bound, dtype) for bound in (low, high)]
    return call.add("Clip", x, *names)


@writes("relu6")
def relu6(call: OpCall) -> str:
    return clipped(call, call.x(), 0.0, 6.0)


@writes("hardtanh")
def hardtanh(call: OpCall) -> str:
    low, high = call.setting("min_val", 1, -1.0), call.setting("max_val", 2, 1.0)
    return clipped(call, call.x(), low, high)


@writes("rrelu")
def rrelu(call: OpCall) -> str:
    """In eval mode, a leaky ReLU with the mean slope."""
    if call.module is None and call.plain(call.arg(3, "training", default=False), "training"):
        raise call.refusal("draws slopes in eval mode as well; give it training=self.training")
    low, high = call.setting("lower", 1, 1 / 8), call.setting("upper", 2, 1 / 3)
    return call.add("LeakyRelu", call.x(), alpha=(low + high) / 2)


@writes("prelu")
def prelu(call: OpCall) -> str:
    weight = call.weight("weight", 1)
    assert weight is not None
    shape, rank = call.weight_shape("weight", 1), call.rank
    if len(shape) > rank:
        weight = call.add("Reshape", weight, call.ints())
    elif math.prod(shape) > 1 and rank > 2:
        weight = call.add("Reshape", weight, call.ints(*shape, *[1] * (rank - 2)))
    return call.add("PRelu", call.x(), weight)


@writes("silu")
def silu(call: OpCall) -> str:
    x = call.x()
    return call.add("Mul", x, call.add("Sigmoid", x))


@writes("logsigmoid")
def logsigmoid(call: OpCall) -> str:
    return call.add("Neg", call.add("Softplus", call.add("Neg", call.x())))


@writes("hardsigmoid")
def hardsigmoid(call: OpCall) -> str:
    return call.add("HardSigmoid", call.x(), alpha=1 / 6, beta=0.5)


@writes("hardshrink", "softshrink")
def shrink(call: OpCall) -> str:
    at = float(call.setting("lambd", 1, 0.5))
    return call.add("Shrink", call.x(), lambd=at, bias=at if call.op == "softshrink" else 0.0)


@writes("tanhshrink")
def tanhshrink(call: OpCall) -> str:
    x = call.x()
    return call.add("Sub", x, call.add("Tanh", x))


@writes("softplus")
def softplus(call: OpCall) -> str:
    beta, limit = call.setting("beta", 1, 1.0), call.setting("threshold", 2, 20.0)
    x, dtype = call.x(), call.given_facts().dtype
    scaled = x if beta == 1 else call.add("Mul", x, call.constant(beta, dtype))
    soft = call.add("Softplus", scaled)
    soft = soft if beta == 1 else call.add("Div", soft, call.constant(beta, dtype))
    beyond = call.add("Greater", scaled, call.constant(limit, dtype))
    return call.add("Where", beyond, x, soft)


@writes("threshold")
def threshold(call: OpCall) -> str:
    x, dtype = call.x(), call.given_facts().dtype
    limit, value = call.setting("threshold", 1), call.setting("value", 2)
    above = call.add("Greater", x, call.constant(limit, dtype))
    return call.add("Where", above, x, call.constant(value, dtype))


@writes("glu")
def glu(call: OpCall) -> str:
    dim = call.setting("dim", 1, -1)
    first, second = call.add_many("Split", call.x(), count=2, axis=dim, num_outputs=2)
    return call.add("Mul", first, call.add("Sigmoid", second))


def softmax_dim(call: OpCall) -> int:
    """Return the dimension of a softmax; torch chooses one by the rank if none is given."""
    given = call.setting("dim", 1, None) if hasattr(call.module, "dim") or not call.module else 1
    if type(call.module).__name__.startswith("Softmax2d"):
        return -3
    if given is None:
        return 0 if call.rank in (0, 1, 3) else 1
    return int(given)


@writes("softmax", "softmin", "log_softmax")
def softmax(call: OpCall) -> str:
    x = call.x()
    have = call.given_facts().dtype
    x = call.cast(x, have, call.out.dtype)
    if call.op == "softmin":
        x = call.add("Neg", x)
    x, axis = call.vector(x), softmax_dim(call)
    if call.op == "log_softmax":
        result = call.add("LogSoftmax", x, axis=axis)
    elif _is_safe(call.node):
        result = safe_softmax(call, x, axis)
    else:
        result = call.add("Softmax", x, axis=axis)
    return result if call.rank else call.reshape(result)


def _is_safe(node: fx.Node) -> bool:
    """Return whether a node calls torch's softmax that gives zeros instead of NaN."""
    function = node.target.target if isinstance(node.target, StandIn) else node.target
    name = str(getattr(function, "__name__", ""))  # an overload's goes on after a dot
    return node.op == "call_function" and name.partition(".")[0] == "_safe_softmax"


def safe_softmax(call: OpCall, x: str, axis: int) -> str:
    """Return a softmax in which numbers that are all -inf give zeros."""
    dtype = call.out.dtype
    largest = call.add("ReduceMax", x, call.ints(axis), keepdims=1)
    empty = call.add("Equal", largest, call.constant(-math.inf, dtype))
    shares = call.add("Softmax", x, axis=axis)
    return call.add("Where", empty, call.constant(0.0, dtype), shares)


@writes("dropout", "identity", "contiguous", "detach", "clone", "alias", "pos", "lift_fresh_copy",
        "cpu", "requires_grad")  # fmt: skip
def same(call: OpCall) -> str:
    """In eval mode, the input itself."""
    if call.op == "dropout" and call.module is None:
        name = getattr(call.node.target, "__name__", str(call.node.target))
        default = not name.startswith(
            ("alpha", "feature", "native")
        )  # as torch's functions have it
        training = call.arg(2, "training", "train", default=default)
        if call.plain(training, "training") and call.arg(1, "p", default=0.5) > 0:
            raise call.refusal("drops numbers in eval mode as well; give it training=self.training")
    return call.x()


@writes("logit")
def logit(call: OpCall) -> str:
    eps, x = call.setting("eps", 1, None), call.x()
    if eps is not None:
        x = clipped(call, x, eps, 1 - eps)
    odds = call.add("Div", x, call.add("Sub", call.constant(1.0), x))
    return call.add("Log", odds)


@writes("erfc", "expm1", "log1p", "log2", "log10", "exp2", "rsqrt", "square", "frac", "sinc")
def composed(call: OpCall) -> str:
    """Functions without an ONNX op of their own."""
    x = call.cast(call.x(), call.given_facts().dtype, call.out.dtype)
    one = call.constant(1.0)
    if call.op == "square":
        return call.add("Mul", x, x)
    if call.op == "rsqrt":
        return call.add("Reciprocal", call.add("Sqrt", x))
    if call.op == "erfc":
        return call.add("Sub", one, call.add("Erf", x))
    if call.op == "expm1":
        return call.add("Sub", call.add("Exp", x), one)
    if call.op == "log1p":
        return call.add("Log", call.add("Add", x, one))
    if call.op in ("log2", "log10"):
        return call.add("Mul", call.add("Log", x), call.constant(1 / math.log(int(call.op[3:]))))
    if call.op == "exp2":
        return call.add("Pow", call.constant(2.0), x)
    if call.op == "frac":
        return call.add("Sub", x, truncated(call, x))
    angle = call.add("Mul", x, call.constant(math.pi))
    ratio = call.add("Div", call.add("Sin", angle), angle)
    return call.add("Where", call.add("Equal", x, call.constant(0.0)), one, ratio)


def truncated(call: OpCall, x: str) -> str:
    """Return a value rounded towards zero."""
    return call.add("Mul", call.add("Sign", x), call.add("Floor", call.add("Abs", x)))
