# mypy: ignore-errors
"""Rounding rules for Triton: one per kind of format, called by the kernels of `rounding.py`.

Widths are run-time arguments (always floats: Triton recompiles for special integers), so one
compilation per rule and dtype serves all of them. Every step is exact or rounds once, as in the
eager formats; nothing may be reassociated or contracted.

A magnitude `a` goes to the nearest multiple of 2**s, ties to even, as (a + c) - c with
c = 2**(23 + s), while a <= c. Very large and very small numbers are moved by 2**64 first, so that
c is a normal number.
"""

import triton
import triton.language as tl

FINITE: tl.constexpr = tl.constexpr(3.4028234663852886e38)
EXPONENT: tl.constexpr = tl.constexpr(0x7F800000)
SIGN: tl.constexpr = tl.constexpr(-0x80000000)
ZERO_EXPONENT: tl.constexpr = tl.constexpr(-254)  # equals floor_log2 of the eager formats


@triton.jit
def _bits(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def _float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _signed(x, magnitude):
    return _float((_bits(x) & SIGN) | _bits(magnitude))


@triton.jit
def _at_most(a, limit):
    """The smaller value; NaN stays."""
    return tl.minimum(a, limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _clamp(x, low, high):
    """Clamp by comparison, which keeps NaN and the sign of zero."""
    x = tl.where(x < low, low, x)
    return tl.where(x > high, high, x)


@triton.jit
def _nearest(x):
    """Round to an integer."""
    a = tl.abs(x)
    return _signed(x, tl.where(a < 8388608.0, (a + 8388608.0) - 8388608.0, a))


@triton.jit
def _floor_log2(a):
    """floor(log2) of a magnitude, including subnormals."""
    bits = _bits(a)
    lifted = (_bits(a * 16777216.0) >> 23) - 24
    exponent = tl.where(bits < 0x00800000, lifted, bits >> 23) - 127
    return tl.where(bits == 0, ZERO_EXPONENT, exponent)


@triton.jit
def _exp2(exponent):
    """Two to an integer exponent, clamped to those of float32."""
    exponent = tl.minimum(tl.maximum(exponent, -149), 127)
    subnormal = tl.full(exponent.shape, 1, tl.int32) << (tl.minimum(exponent, -126) + 149)
    return _float(tl.where(exponent < -126, subnormal, (exponent + 127) << 23))


@triton.jit
def _power(exponent):
    """Two to the exponent, for normal numbers."""
    return _float((exponent + 127) << 23)


@triton.jit
def _middle(largest):
    """The exponent, clamped so that two to it and to its negative are normal numbers."""
    return tl.minimum(tl.maximum(_floor_log2(largest), -126), 126)


@triton.jit
def _shift(exponent):
    """The power of two that moves numbers of this exponent to the middle of float32."""
    return tl.where(exponent >= 64, -64, tl.where(exponent < -32, 64, 0))


@triton.jit
def _to_fraction(a, lowest, fraction):
    """Round a magnitude to `fraction` bits after the leading one, including all extremes."""
    shift = tl.where(a >= 18446744073709551616.0, -64, tl.where(a < 2.3283064365386963e-10, 64, 0))
    moved = a * _float((127 + shift) << 23)
    floor = (tl.minimum(lowest + shift, 100) + 127) << 23
    c = tl.maximum(_bits(moved) & EXPONENT, floor) + ((23 - fraction) << 23)
    c = _float(tl.maximum(c, 0))
    rounded = tl.where(moved < c, (moved + c) - c, moved)
    return rounded * _float((127 - shift) << 23)


# --- one element at a time: rule(x, p0, p1, p2, p3, p4) -------------------------------------------


@triton.jit
def integer(x, scale, low, high, unscale, p4):
    return _clamp(_nearest(x * scale), low, high) * unscale


@triton.jit
def _whole_up(scaled):
    """The nearest integer, ties to the larger one; a sum with one half would be rounded."""
    whole = _nearest(scaled)
    return whole + tl.where(scaled - whole == 0.5, 1.0, 0.0)


@triton.jit
def _whole_below(scaled, x, unscale):
    """The next integer below; a small negative number may have been scaled to zero."""
    whole = tl.floor(scaled)
    return whole - tl.where(whole * unscale > x, 1.0, 0.0)


@triton.jit
def _wrapped(whole, x, size, low):
    """The code modulo `size`, two to the width; infinite where `x` is.

    A finite number whose code is infinite has only zeros as its lowest bits.
    """
    turns = whole * (1.0 / size)
    a = tl.abs(turns)
    part = turns - _signed(turns, tl.where(a < 8388608.0, tl.floor(a), a))
    least = tl.where(low < 0, -0.5, 0.0)
    part = tl.where(part >= least + 1.0, part - 1.0, part)
    part = tl.where(part < least, part + 1.0, part)
    beyond = tl.where(tl.abs(x) > FINITE, x, 0.0)
    return tl.where(tl.abs(whole) > FINITE, beyond, part * size)


@triton.jit
def integer_up(x, scale, low, high, unscale, p4):
    return _clamp(_whole_up(x * scale), low, high) * unscale


@triton.jit
def integer_floor(x, scale, low, high, unscale, p4):
    return _clamp(_whole_below(x * scale, x, unscale), low, high) * unscale


@triton.jit
def integer_wrap(x, scale, low, high, unscale, size):
    return _clamp(_wrapped(_nearest(x * scale), x, size, low), low, high) * unscale


@triton.jit
def integer_up_wrap(x, scale, low, high, unscale, size):
    return _clamp(_wrapped(_whole_up(x * scale), x, size, low), low, high) * unscale


@triton.jit
def integer_floor_wrap(x, scale, low, high, unscale, size):
    return _clamp(_wrapped(_whole_below(x * scale, x, unscale), x, size, low), low, high) * unscale


@triton.jit
def affine(x, scale, low, high, p3, p4):
    steps = tl.div_rn(x, tl.zeros_like(x) + scale)
    return _clamp(_nearest(steps), low, high) * scale


@triton.jit
def minifloat(x, reach, largest, beyond, lowest, fraction):
    """Normal numbers only, without overflow of c, which the planner guarantees."""
    a = _at_most(tl.abs(x), reach)
    floor = (tl.cast(lowest, tl.int32) + 127) << 23
    c = tl.maximum(_bits(a) & EXPONENT, floor) + ((23 - tl.cast(fraction, tl.int32)) << 23)
    rounded = (a + _float(c)) - _float(c)
    return _signed(x, tl.where(rounded > largest, beyond, rounded))


@triton.jit
def minifloat_wide(x, reach, largest, beyond, lowest, fraction):
    a = _at_most(tl.abs(x), reach)
    rounded = _to_fraction(a, tl.cast(lowest, tl.int32), tl.cast(fraction, tl.int32))
    return _signed(x, tl.where(rounded > largest, beyond, rounded))


@triton.jit
def _signed_power(x, a, zero):
    unchanged = (x != x) | ((x == 0) & (zero != 0))
    return tl.where(unchanged, x, tl.where(x < 0, -a, a))


@triton.jit
def _nearest_power(a, carry):
    """Nearest power of two in log2; `carry` moves mantissas beyond the border to the next one."""
    small = a < 1.1754943508222875e-38
    bits = _bits(tl.where(small, a * 16777216.0, a)) + tl.cast(carry, tl.int32)
    power = _float(bits & EXPONENT)
    return tl.where(small, power * 5.9604644775390625e-08, power)


@triton.jit
def log(x, smallest, largest, carry, zero, p4):
    a = tl.maximum(_nearest_power(tl.abs(x), carry), smallest)
    return _signed_power(x, tl.minimum(a, largest), zero)


@triton.jit
def bipolar(x, p0, p1, p2, p3, p4):
    return tl.where(x == x, tl.where(x >= 0, 1.0, -1.0), x)


@triton.jit
def ternary(x, border, p1, p2, p3, p4):
    sign = tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))
    return tl.where(x == x, sign * tl.where(tl.abs(x) > border, 1.0, 0.0), x)


@triton.jit
def residual(x, levels, total, p2, p3, p4):
    """In units of the smallest level, so that sums are exact integers."""
    rest = x * total
    total_signs = tl.zeros_like(x)
    part = levels
    while part > 0:
        taken = tl.where(rest > 0, part, tl.where(rest < 0, -part, 0.0))
        total_signs += taken
        rest -= taken
        part -= 1
    return tl.where(x == x, tl.div_rn(total_signs, total), x)


# --- blocks: rule(x, largest magnitude of the block, p0, p1, p2, p3, p4) --------------------------


@triton.jit
def _to_step(x, step, exponent, highest, lowest):
    """Round to multiples of 2**step from -lowest to highest; 2**exponent bounds the numbers."""
    shift = _shift(exponent)
    move = _float((127 + shift) << 23)
    unit = _float((step + shift + 127) << 23)
    c = unit * 8388608.0
    a = _at_most(tl.abs(x) * move, c)
    limit = tl.where(x < 0, lowest * unit, highest * unit)
    rounded = _at_most((a + c) - c, limit)
    return _signed(x, rounded * _float((127 - shift) << 23))


@triton.jit
def block_fp(x, largest, mantissa, low, high, limit, carry):
    mantissa = tl.cast(mantissa, tl.int32)
    exponent = tl.maximum(_floor_log2(largest) + 1, -148)
    shift = _shift(exponent)
    full = _float((exponent + shift + 127) << 23)
    c = _float((exponent - mantissa + shift + 150) << 23)
    carried = (largest * _float((127 + shift) << 23) + c) - c >= full
    exponent += (carried & (carry != 0)).to(tl.int32)
    exponent = tl.minimum(tl.maximum(exponent, tl.cast(low, tl.int32)), tl.cast(high, tl.int32))
    return _to_step(x, exponent - mantissa, exponent, limit, limit)


@triton.jit
def _ceil_log2(a):
    exponent = _floor_log2(a)
    return exponent + (_exp2(exponent) < a).to(tl.int32)


@triton.jit
def mxint(x, largest, mantissa, highest, lowest, ocp, p4):
    exponent = tl.where(ocp != 0, _floor_log2(largest), _ceil_log2(largest))
    exponent = tl.minimum(tl.maximum(exponent, -127), 127)
    return _to_step(x, exponent - tl.cast(mantissa, tl.int32), exponent, highest, lowest)


@triton.jit
def block_float(x, largest, full, low, high, reach, fraction):
    """Minifloats that share the block's highest power of two; at most 64 exponents."""
    top = tl.minimum(
        tl.maximum(_floor_log2(largest), tl.cast(low, tl.int32)), tl.cast(high, tl.int32)
    )
    limit = full * _exp2(top)
    shift = _shift(_floor_log2(limit))
    move = _float((127 + shift) << 23)
    floor = (tl.minimum(top - tl.cast(reach, tl.int32) + shift, 100) + 127) << 23
    a = _at_most(tl.abs(x) * move, limit * move)
    c = tl.maximum(_bits(a) & EXPONENT, floor) + ((23 - tl.cast(fraction, tl.int32)) << 23)
    rounded = (a + _float(c)) - _float(c)
    return _signed(x, rounded * _float((127 - shift) << 23))


@triton.jit
def block_float_wide(x, largest, full, low, high, reach, fraction):
    top = tl.minimum(
        tl.maximum(_floor_log2(largest), tl.cast(low, tl.int32)), tl.cast(high, tl.int32)
    )
    limit = full * _exp2(top)
    a = _at_most(tl.abs(x), limit)
    return _signed(x, _to_fraction(a, top - tl.cast(reach, tl.int32), tl.cast(fraction, tl.int32)))


@triton.jit
def block_log(x, largest, top, most, carry, zero, p4):
    top = tl.cast(top, tl.int32)
    bias = tl.minimum(tl.maximum(top - _ceil_log2(largest), 0), tl.cast(most, tl.int32))
    a = tl.maximum(_nearest_power(tl.abs(x), carry), _exp2(-bias))
    return _signed_power(x, tl.minimum(a, _exp2(top - bias)), zero)


@triton.jit
def _divided(a, b):
    """a / b rounded once, as tests/numerics/test_division.py shows; b is shared by many numbers.

    For 0 <= a <= b and 2**-23 <= b < 4. Below 2**-26 the last bits may differ. A reciprocal in two
    parts gives one of the two floats next to the quotient; the remainder of `a` is exact and
    corrects it (Markstein 1990).
    """
    inverse = tl.div_rn(tl.full(b.shape, 1.0, tl.float32), b)
    rest = tl.fma(-inverse, b, tl.full(b.shape, 1.0, tl.float32)) * inverse
    near = tl.fma(a, inverse, a * rest)
    return tl.fma(tl.fma(-near, b, a), inverse, near)


@triton.jit
def scale_integer(x, largest, full, low, high, inverse, rest):
    """Round in units of the largest magnitude; `inverse` and `rest` are 1 / full."""
    divisor = tl.where(largest > 0, largest, 1.0)
    move = _power(-_middle(divisor))
    divisor *= move
    parts = _divided(_at_most(tl.abs(x) * move, divisor), divisor)
    code = _clamp(_signed(x, _nearest(parts * full)), low, high)
    return tl.fma(code, inverse, code * rest) * largest


# --- rows: rule(x, first and second statistic of the row, p) --------------------------------------


@triton.jit
def _magnitudes(x):
    """Magnitudes, with NaN as zero and infinity as the largest number."""
    return tl.where(x == x, tl.minimum(tl.abs(x), FINITE), 0.0)


@triton.jit
def _parts(a, largest, lift):
    """Magnitudes as integers in small units, so that sums do not depend on the order."""
    return (a * _power(-_middle(largest)) * lift).to(tl.int64)


@triton.jit
def _mean(total, count, largest, unlift):
    """Same as `mean_of` in chop/numerics/means.py."""
    mean = tl.cast(total, tl.float64) / tl.cast(count, tl.float64)
    return (mean * unlift * _power(_middle(largest))).to(tl.float32)


@triton.jit
def on_off(x, scale, one, bipolar):
    on = tl.where(bipolar != 0, x >= 0, x > 0)
    off = tl.where(bipolar != 0, -scale, 0.0)
    return tl.where(x == x, tl.where(on, scale, off), x)


@triton.jit
def row_ternary(x, border, scale, p):
    return ternary(x, border, p, p, p, p) * scale
