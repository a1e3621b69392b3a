// Rounds float32 tensors in one pass; `chop.numerics.compiled` builds and calls it.
//
// The rules have the same names and arguments as in rules.py, which explains them. Every step is
// exact or rounds once: build without contraction or fast math.

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr float FINITE = 3.4028234663852886e38f;
constexpr float WHOLE = 8388608.0f;  // floats from here on are integers
constexpr int32_t EXPONENT = 0x7F800000, MAGNITUDE = 0x7FFFFFFF, SIGN = INT32_MIN;
constexpr int32_t ZERO_EXPONENT = -254;

inline int32_t bits(float x) {
    int32_t b;
    std::memcpy(&b, &x, 4);
    return b;
}

inline float number(int32_t b) {
    float x;
    std::memcpy(&x, &b, 4);
    return x;
}

inline float magnitude_of(float x) { return number(bits(x) & MAGNITUDE); }
inline float with_sign(float x, float a) { return number((bits(x) & SIGN) | bits(a)); }
inline float at_most(float a, float limit) { return a > limit ? limit : a; }
inline float at_least(float a, float limit) { return a < limit ? limit : a; }
inline float clamp(float x, float low, float high) { return at_most(at_least(x, low), high); }
inline int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
inline int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }
inline float power(int32_t exponent) { return number((exponent + 127) << 23); }  // normal ones

inline float nearest(float x) {
    float a = magnitude_of(x);
    float rounded = (a + WHOLE) - WHOLE;
    return with_sign(x, a < WHOLE ? rounded : a);
}

inline int32_t floor_log2(float a) {
    int32_t lifted = (bits(a * 16777216.0f) >> 23) - 24;
    int32_t exponent = (bits(a) < 0x00800000 ? lifted : bits(a) >> 23) - 127;
    return bits(a) == 0 ? ZERO_EXPONENT : exponent;
}

inline float exp2(int32_t exponent) {
    exponent = least(most(exponent, -149), 127);
    int32_t subnormal = 1 << (least(exponent, -126) + 149);
    return number(exponent < -126 ? subnormal : (exponent + 127) << 23);
}

inline int32_t ceil_log2(float a) {
    int32_t exponent = floor_log2(a);
    return exponent + (exp2(exponent) < a ? 1 : 0);
}

inline int32_t shift_of(int32_t exponent) {
    return exponent >= 64 ? -64 : exponent < -32 ? 64 : 0;
}

inline float to_fraction(float a, int32_t lowest, int32_t fraction) {
    int32_t shift = a >= 18446744073709551616.0f ? -64 : a < 2.3283064365386963e-10f ? 64 : 0;
    float moved = a * power(shift);
    int32_t floor = (least(lowest + shift, 100) + 127) << 23;
    float c = number(most(most(bits(moved) & EXPONENT, floor) + ((23 - fraction) << 23), 0));
    float rounded = (moved + c) - c;
    return (moved < c ? rounded : moved) * power(-shift);
}

inline float nearest_power(float a, float carry) {
    bool small = a < 1.1754943508222875e-38f;
    int32_t carried = bits(small ? a * 16777216.0f : a) + int32_t(carry);
    float found = number(carried & EXPONENT);
    return small ? found * 5.9604644775390625e-08f : found;
}

inline float signed_power(float x, float a, float zero) {
    bool kept = (x != x) | ((x == 0) & (zero != 0));
    return kept ? x : x < 0 ? -a : a;
}

// --- one element at a time: Rule(arguments)(x) --------------------------------------------------

// The code modulo 2^width, where `size` is 2^width; infinite where x is.
inline float wrapped(float whole, float x, float size, float low) {
    float turns = whole * (1.0f / size);
    float a = magnitude_of(turns);
    float down = (a + WHOLE) - WHOLE;
    down -= down > a ? 1.0f : 0.0f;
    float part = turns - with_sign(turns, a < WHOLE ? down : a);
    float least_part = low < 0 ? -0.5f : 0.0f;
    part = part >= least_part + 1.0f ? part - 1.0f : part;
    part = part < least_part ? part + 1.0f : part;
    float beyond = magnitude_of(x) > FINITE ? x : 0.0f;
    return magnitude_of(whole) > FINITE ? beyond : part * size;
}

inline float whole_up(float scaled) {
    float whole = nearest(scaled);
    return whole + (scaled - whole == 0.5f ? 1.0f : 0.0f);
}

inline float whole_below(float scaled, float x, float unscale) {
    float whole = nearest(scaled);
    whole -= whole > scaled ? 1.0f : 0.0f;
    return whole - (whole * unscale > x ? 1.0f : 0.0f);
}

struct integer {
    float scale, low, high, unscale, size;
    explicit integer(const float* p)
        : scale(p[0]), low(p[1]), high(p[2]), unscale(p[3]), size(p[4]) {}
    float operator()(float x) const { return saturated(nearest(x * scale)); }

  protected:
    float saturated(float whole) const { return clamp(whole, low, high) * unscale; }
    float in_turn(float whole, float x) const { return saturated(wrapped(whole, x, size, low)); }
};

struct integer_up : integer {
    using integer::integer;
    float operator()(float x) const { return saturated(whole_up(x * scale)); }
};

struct integer_floor : integer {
    using integer::integer;
    float operator()(float x) const { return saturated(whole_below(x * scale, x, unscale)); }
};

struct integer_wrap : integer {
    using integer::integer;
    float operator()(float x) const { return in_turn(nearest(x * scale), x); }
};

struct integer_up_wrap : integer {
    using integer::integer;
    float operator()(float x) const { return in_turn(whole_up(x * scale), x); }
};

struct integer_floor_wrap : integer {
    using integer::integer;
    float operator()(float x) const { return in_turn(whole_below(x * scale, x, unscale), x); }
};

struct affine {
    float scale, low, high;
    explicit affine(const float* p) : scale(p[0]), low(p[1]), high(p[2]) {}
    float operator()(float x) const { return clamp(nearest(x / scale), low, high) * scale; }
};

struct minifloat {
    float reach, largest, beyond;
    int32_t lowest, fraction;
    explicit minifloat(const float* p)
        : reach(p[0]), largest(p[1]), beyond(p[2]), lowest(int32_t(p[3])), fraction(int32_t(p[4])) {}
    float operator()(float x) const {
        float a = at_most(magnitude_of(x), reach);
        int32_t exponent = most(bits(a) & EXPONENT, (lowest + 127) << 23);
        float c = number(exponent + ((23 - fraction) << 23));
        float rounded = (a + c) - c;
        return with_sign(x, rounded > largest ? beyond : rounded);
    }
};

struct minifloat_wide : minifloat {
    using minifloat::minifloat;
    float operator()(float x) const {
        float rounded = to_fraction(at_most(magnitude_of(x), reach), lowest, fraction);
        return with_sign(x, rounded > largest ? beyond : rounded);
    }
};

struct log {
    float smallest, largest, carry, zero;
    explicit log(const float* p) : smallest(p[0]), largest(p[1]), carry(p[2]), zero(p[3]) {}
    float operator()(float x) const {
        float a = at_least(nearest_power(magnitude_of(x), carry), smallest);
        return signed_power(x, at_most(a, largest), zero);
    }
};

struct bipolar {
    explicit bipolar(const float*) {}
    float operator()(float x) const { return x == x ? (x >= 0 ? 1.0f : -1.0f) : x; }
};

struct ternary {
    float border;
    explicit ternary(const float* p) : border(p[0]) {}
    float operator()(float x) const {
        float sign = x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
        return x == x ? sign * (magnitude_of(x) > border ? 1.0f : 0.0f) : x;
    }
};

struct residual {
    float levels, total;
    explicit residual(const float* p) : levels(p[0]), total(p[1]) {}
    float operator()(float x) const {
        float rest = x * total, found = 0.0f;
        for (int level = 0; level < 3; level++) {  // at most 3 levels
            float part = at_least(levels - level, 0.0f);
            float taken = rest > 0 ? part : rest < 0 ? -part : 0.0f;
            found += taken;
            rest -= taken;
        }
        return x == x ? found / total : x;
    }
};

// --- blocks: Rule(arguments, largest magnitude of the block)(x) ---------------------------------

// Round to multiples of 2^step from -lowest to highest, bounded by 2^exponent.
struct to_step {
    float move, back, c, above, below;
    to_step(int32_t step, int32_t exponent, float highest, float lowest) {
        int32_t shift = shift_of(exponent);
        float unit = power(step + shift);
        move = power(shift), back = power(-shift), c = unit * WHOLE;
        above = highest * unit, below = lowest * unit;
    }
    float operator()(float x) const {
        float a = at_most(magnitude_of(x) * move, c);
        float rounded = at_most((a + c) - c, x < 0 ? below : above);
        return with_sign(x, rounded * back);
    }
};

struct block_fp : to_step {
    static int32_t exponent(float largest, const float* p) {
        int32_t found = most(floor_log2(largest) + 1, -148), shift = shift_of(found);
        float full = power(found + shift), c = power(found - int32_t(p[0]) + shift + 23);
        bool carried = (largest * power(shift) + c) - c >= full;
        found += carried & (p[4] != 0) ? 1 : 0;
        return least(most(found, int32_t(p[1])), int32_t(p[2]));
    }
    block_fp(const float* p, float largest) : block_fp(p, exponent(largest, p)) {}
    block_fp(const float* p, int32_t exponent)
        : to_step(exponent - int32_t(p[0]), exponent, p[3], p[3]) {}
};

struct mxint : to_step {
    static int32_t exponent(float largest, bool ocp) {
        return least(most(ocp ? floor_log2(largest) : ceil_log2(largest), -127), 127);
    }
    mxint(const float* p, float largest) : mxint(p, exponent(largest, p[3] != 0)) {}
    mxint(const float* p, int32_t exponent)
        : to_step(exponent - int32_t(p[0]), exponent, p[1], p[2]) {}
};

struct block_float {
    float move, back, limit;
    int32_t floor, lift;
    block_float(const float* p, float largest) {
        int32_t top = least(most(floor_log2(largest), int32_t(p[1])), int32_t(p[2]));
        float most_of_all = p[0] * exp2(top);
        int32_t shift = shift_of(floor_log2(most_of_all));
        move = power(shift), back = power(-shift), limit = most_of_all * move;
        floor = (least(top - int32_t(p[3]) + shift, 100) + 127) << 23;
        lift = (23 - int32_t(p[4])) << 23;
    }
    float operator()(float x) const {
        float a = at_most(magnitude_of(x) * move, limit);
        float c = number(most(bits(a) & EXPONENT, floor) + lift);
        return with_sign(x, ((a + c) - c) * back);
    }
};

struct block_float_wide {
    float limit;
    int32_t lowest, fraction;
    block_float_wide(const float* p, float largest) {
        int32_t top = least(most(floor_log2(largest), int32_t(p[1])), int32_t(p[2]));
        limit = p[0] * exp2(top), lowest = top - int32_t(p[3]), fraction = int32_t(p[4]);
    }
    float operator()(float x) const {
        return with_sign(x, to_fraction(at_most(magnitude_of(x), limit), lowest, fraction));
    }
};

struct block_log {
    float smallest, largest, carry, zero;
    block_log(const float* p, float magnitude) : carry(p[2]), zero(p[3]) {
        int32_t top = int32_t(p[0]);
        int32_t bias = least(most(top - ceil_log2(magnitude), 0), int32_t(p[1]));
        smallest = exp2(-bias), largest = exp2(top - bias);
    }
    float operator()(float x) const {
        float a = at_least(nearest_power(magnitude_of(x), carry), smallest);
        return signed_power(x, at_most(a, largest), zero);
    }
};

struct scale_integer {
    float full, low, high, largest, divisor;
    scale_integer(const float* p, float largest)
        : full(p[0]), low(p[1]), high(p[2]), largest(largest), divisor(largest > 0 ? largest : 1) {}
    float operator()(float x) const {
        float parts = clamp(x, -FINITE, FINITE) / divisor;
        return clamp(nearest(parts * full), low, high) / full * largest;
    }
};

// --- rows: Rule(arguments, row)(x) ----------------------------------------------------------------

// The bits of a magnitude, with NaN as zero and infinity as the largest number.
inline int32_t counted(float x) {
    int32_t b = bits(x) & MAGNITUDE;
    return b > EXPONENT ? 0 : least(b, EXPONENT - 1);
}

// Mean magnitudes as in chop/numerics/means.py: sums of integers.
struct Row {
    const float* x;
    int64_t count;
    float lift;
    int32_t exponent;

    Row(const float* x, int64_t count, float lift) : x(x), count(count), lift(lift) {
        int32_t largest = 0;
        for (int64_t i = 0; i < count; i++) largest = most(largest, counted(x[i]));
        exponent = least(most(floor_log2(number(largest)), -126), 126);
    }
    float mean() const { return mean_of(total_beyond(-1.0f), count); }
    float mean_beyond(float border) const {
        int64_t found = 0;
        for (int64_t i = 0; i < count; i++) found += magnitude_of(x[i]) > border;
        return mean_of(total_beyond(border), found > 0 ? found : 1);
    }

  private:
    int64_t total_beyond(float border) const {
        const float move = power(-exponent);
        int64_t total = 0;
        for (int64_t i = 0; i < count; i++) {
            float a = magnitude_of(x[i]) > border ? number(counted(x[i])) : 0.0f;
            total += int64_t(a * move * lift);
        }
        return total;
    }
    float mean_of(int64_t total, int64_t count) const {
        return float(double(total) / double(count) / lift * power(exponent));
    }
};

// The first statistic is p[0], times the mean magnitude if p[1]; the second is the mean of the
// magnitudes beyond the first if p[2], else 1.
struct statistics {
    float first, second;
    statistics(const float* p, const Row& row)
        : first(p[1] != 0 ? p[0] * row.mean() : p[0]),
          second(p[2] != 0 ? row.mean_beyond(first) : 1.0f) {}
};

struct on_off {
    float scale, off;
    bool bipolar;
    on_off(const float* p, const Row& row)
        : scale(statistics(p, row).first), off(p[3] != 0 ? -scale : 0.0f), bipolar(p[3] != 0) {}
    float operator()(float x) const {
        bool on = (x > 0) | ((x == 0) & bipolar);
        return x == x ? (on ? scale : off) : x;
    }
};

struct row_ternary : statistics {
    using statistics::statistics;
    float operator()(float x) const { return ternary(&first)(x) * second; }
};

// --- loops --------------------------------------------------------------------------------------

// Calls work(begin, end) for equal parts of a range, each in its own thread.
template <typename Work>
void in_threads(int64_t count, int threads, Work work) {
    std::vector<std::thread> others;
    for (int i = 1; i < threads; i++)
        others.emplace_back(work, count * i / threads, count * (i + 1) / threads);
    work(0, count / threads);
    for (auto& thread : others) thread.join();
}

template <typename Rule>
void round(const Rule rule, const float* __restrict x, float* __restrict y, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = rule(x[i]);
}

template <typename Rule>
void elements(const float* x, float* y, int64_t n, const float* p, int threads) {
    in_threads(n, threads, [=](int64_t begin, int64_t end) {
        round(Rule(p), x + begin, y + begin, end - begin);
    });
}

template <typename Rule>
void rows(const float* x, float* y, int64_t count, int64_t columns, const float* p, int threads) {
    float lift = power(60);
    for (int64_t n = 1; n < columns; n *= 2) lift *= 0.5f;
    in_threads(count, threads < count ? threads : int(count), [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++)
            round(Rule(p, Row(x + row * columns, columns, lift)), x + row * columns,
                  y + row * columns, columns);
    });
}

// A strip of rows by columns, in blocks next to each other that are as tall as the strip.
struct Strip {
    const float* x;
    float* y;
    int64_t rows, columns, line, block;
};

template <typename Rule>
void wide_blocks(const Strip& s, const float* p, std::vector<int32_t>& largest,
                 std::vector<Rule>& rules) {
    largest.assign((s.columns + s.block - 1) / s.block, 0);
    auto each = [&](auto work) {
        for (int64_t row = 0; row < s.rows; row++)
            for (size_t b = 0; b < largest.size(); b++) {
                int64_t left = b * s.block, rest = s.columns - left;
                work(b, row * s.line + left, rest < s.block ? rest : s.block);
            }
    };
    each([&](size_t b, int64_t at, int64_t count) {
        int32_t found = largest[b];
        for (int64_t i = at; i < at + count; i++) found = most(found, counted(s.x[i]));
        largest[b] = found;
    });
    rules.clear();
    for (int32_t found : largest) rules.emplace_back(p, number(found));
    each([&](size_t b, int64_t at, int64_t count) {
        round(rules[b], s.x + at, s.y + at, count);
    });
}

// Narrow blocks side by side, one line of the strip at a time.
template <typename Rule>
void narrow_blocks(const Strip& s, const float* p, std::vector<int32_t>& largest) {
    largest.assign(s.columns, 0);
    for (int64_t row = 0; row < s.rows; row++)
        for (int64_t i = 0; i < s.columns; i++)
            largest[i] = most(largest[i], counted(s.x[row * s.line + i]));
    for (int64_t first = 0; first < s.columns; first += s.block) {
        int64_t end = first + s.block < s.columns ? first + s.block : s.columns;
        for (int64_t i = first + 1; i < end; i++) largest[first] = most(largest[first], largest[i]);
        for (int64_t i = first + 1; i < end; i++) largest[i] = largest[first];
    }
    for (int64_t row = 0; row < s.rows; row++) {
        const float* __restrict x = s.x + row * s.line;
        const int32_t* __restrict found = largest.data();
        float* __restrict y = s.y + row * s.line;
        for (int64_t i = 0; i < s.columns; i++) y[i] = Rule(p, number(found[i]))(x[i]);
    }
}

// Consecutive m by n matrices, in blocks of block_m by block_n. A unit of work is a
// strip of blocks, some hundred columns wide.
template <typename Rule>
void blocks(const float* x, float* y, int64_t samples, int64_t m, int64_t n, int64_t block_m,
            int64_t block_n, const float* p, int threads) {
    const int64_t width = block_n * (block_n < 512 ? 512 / block_n : 1);
    const int64_t across = (n + width - 1) / width, down = (m + block_m - 1) / block_m;
    const int64_t units = samples * down * across;
    in_threads(units, threads < units ? threads : int(units), [=](int64_t begin, int64_t end) {
        std::vector<int32_t> largest;
        std::vector<Rule> rules;
        for (int64_t unit = begin; unit < end; unit++) {
            int64_t left = unit % across * width, top = unit / across % down * block_m;
            int64_t at = (unit / across / down * m + top) * n + left;
            int64_t rows = m - top < block_m ? m - top : block_m;
            int64_t columns = n - left < width ? n - left : width;
            Strip strip{x + at, y + at, rows, columns, n, block_n};
            if (block_n >= 8)
                wide_blocks<Rule>(strip, p, largest, rules);
            else
                narrow_blocks<Rule>(strip, p, largest);
        }
    });
}

// --- fixed point with bits that are trained -------------------------------------------------------

// Numbers lie as outer by channels by inner; each channel has its integer and fraction bits. The
// arguments: signed, symmetric, and whether the range is that of the values, so that none is beyond.
struct Channels {
    int64_t outer, channels, inner;
};

template <int ROUNDING, bool WRAPS>
struct learned {
    float step, steps, low, high, size, top, symmetric, is_signed;
    bool live;

    learned(float integer_bits, float frac_bits, const float* p) {
        int32_t f = int32_t(nearest(frac_bits));
        int32_t n = p[2] != 0 ? 64 : int32_t(nearest(integer_bits)) + f;
        float count = exp2(most(n, 0));
        live = n > 0, is_signed = p[0], symmetric = p[0] * p[1];
        step = exp2(-f), steps = exp2(f), size = exp2(n + (p[0] != 0 ? 1 : 0)), top = exp2(n - f);
        high = count - exp2(most(n - 24, 0));
        low = p[0] == 0 ? 0.0f : p[1] != 0 ? -high : -count;
    }
    float operator()(float x) const {
        float scaled = x * steps;
        float whole = ROUNDING == 0   ? nearest(scaled)
                      : ROUNDING == 1 ? whole_up(scaled)
                                      : whole_below(scaled, x, step);
        if (WRAPS) whole = wrapped(whole, x, size, -is_signed);
        float value = clamp(whole, low, high) * step;
        return live ? value : x == x ? 0.0f : x;
    }
    // Returns the gradient for x; those for the bits lack the factor ln 2.
    float gradients(float x, float grad, float& for_i, float& for_f) const {
        float g = live ? grad : 0.0f;
        bool above = !WRAPS & (x > high * step), below = !WRAPS & (x < low * step);
        float error = live ? x - (*this)(x) : 0.0f;
        if (WRAPS) {
            float period = size * step;
            error -= nearest(error / period) * period;
        }
        for_i = g * (above ? top : below ? -is_signed * top : 0.0f);
        for_f = g * (above ? step : below ? -symmetric * step : error);
        return above | below ? 0.0f : g;
    }
};

// The same if no value is beyond the range: that of signed values themselves.
template <int ROUNDING>
struct unlimited {
    float step, steps, low;
    static constexpr float HIGH = 18446742974197923840.0f, LOW = -18446744073709551616.0f;

    unlimited(float, float frac_bits, const float* p) : low(p[1] != 0 ? -HIGH : LOW) {
        int32_t f = int32_t(nearest(frac_bits));
        step = exp2(-f), steps = exp2(f);
    }
    float operator()(float x) const {
        float scaled = x * steps;
        float whole = ROUNDING == 0   ? nearest(scaled)
                      : ROUNDING == 1 ? whole_up(scaled)
                                      : whole_below(scaled, x, step);
        return clamp(whole, low, HIGH) * step;
    }
    double error(const float* x, const float* grad, int64_t count) const;
};

template <typename Rule>
void learned_values(const float* x, float* y, const float* i, const float* f, Channels at,
                    const float* p, int threads) {
    std::vector<Rule> rules;
    if (at.outer > 1 || at.inner > 1)  // each is used more than once
        for (int64_t c = 0; c < at.channels; c++) rules.emplace_back(i[c], f[c], p);
    const Rule* each = rules.data();
    in_threads(at.outer * at.channels, threads, [=](int64_t begin, int64_t end) {
        if (at.outer == 1 && at.inner == 1) {
            for (int64_t c = begin; c < end; c++) y[c] = Rule(i[c], f[c], p)(x[c]);
            return;
        }
        for (int64_t row = begin; row < end; row++)
            round(each[row % at.channels], x + row * at.inner, y + row * at.inner, at.inner);
    });
}

constexpr int LANES = 8;

template <typename Rule>
void learned_row(const Rule& rule, const float* x, const float* grad, float* for_x, int64_t count,
                 double& for_i, double& for_f) {
    double sums[2][LANES] = {};
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            float a, b;
            for_x[k + lane] = rule.gradients(x[k + lane], grad[k + lane], a, b);
            sums[0][lane] += a, sums[1][lane] += b;
        }
    for (; k < count; k++) {
        float a, b;
        for_x[k] = rule.gradients(x[k], grad[k], a, b);
        sums[0][0] += a, sums[1][0] += b;
    }
    for (int lane = 0; lane < LANES; lane++) for_i += sums[0][lane], for_f += sums[1][lane];
}

// Returns the sum of gradients times what rounding lost.
template <int ROUNDING>
double unlimited<ROUNDING>::error(const float* x, const float* grad, int64_t count) const {
    double sums[LANES] = {};
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] += grad[k + lane] * (x[k + lane] - (*this)(x[k + lane]));
    for (; k < count; k++) sums[0] += grad[k] * (x[k] - (*this)(x[k]));
    double total = 0;
    for (int lane = 0; lane < LANES; lane++) total += sums[lane];
    return total;
}

// The gradients of fraction bits if no value is beyond the range; those of values are given ones.
template <int ROUNDING>
void unlimited_gradients(const float* x, const float* grad, const float* f, double* for_bits,
                         Channels at, const float* p, int parts) {
    std::vector<unlimited<ROUNDING>> rules;
    for (int64_t c = 0; c < at.channels; c++) rules.emplace_back(0.0f, f[c], p);
    const unlimited<ROUNDING>* each = rules.data();
    in_threads(parts, parts, [=](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; part++) {
            double* for_f = for_bits + (2 * part + 1) * at.channels;
            int64_t last = (part + 1) * at.outer / parts;
            for (int64_t row = part * at.outer / parts; row < last; row++)
                for (int64_t c = 0; c < at.channels; c++) {
                    int64_t place = (row * at.channels + c) * at.inner;
                    for_f[c] += each[c].error(x + place, grad + place, at.inner);
                }
        }
    });
}

// Each part of the outer dimension has sums of its own, which are added in order: the same number
// of parts gives the same bits.
template <typename Rule>
void learned_gradients(const float* x, const float* grad, float* for_x, const float* i,
                       const float* f, double* for_bits, Channels at, const float* p, int parts) {
    std::vector<Rule> rules;
    for (int64_t c = 0; c < at.channels; c++) rules.emplace_back(i[c], f[c], p);
    const Rule* each = rules.data();
    in_threads(parts, parts, [=](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; part++) {
            double* for_i = for_bits + 2 * part * at.channels;
            double* for_f = for_i + at.channels;
            int64_t last = (part + 1) * at.outer / parts;
            for (int64_t row = part * at.outer / parts; row < last; row++)
                for (int64_t c = 0; c < at.channels; c++) {
                    int64_t place = (row * at.channels + c) * at.inner;
                    const Rule& rule = each[c];
                    if (at.inner > 1) {
                        learned_row(rule, x + place, grad + place, for_x + place, at.inner,
                                    for_i[c], for_f[c]);
                        continue;
                    }
                    float a, b;
                    for_x[place] = rule.gradients(x[place], grad[place], a, b);
                    for_i[c] += a, for_f[c] += b;
                }
        }
    });
}

// Elements with fraction bits of their own, whose range is that of their values. `widths` are the
// bits without a sign that each rounded value needs; `errors` are the gradients of fraction bits.
template <typename Rule>
void own_widths(const float* x, float* n, const float* f, int64_t count, const float* p,
                int threads) {
    in_threads(count, threads, [=](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; c++) {
            float value = Rule(0.0f, f[c], p)(x[c]), size = value < 0.0f ? -value : value;
            bool tiny = size < 1.17549435e-38f;  // its exponent has the field 0
            float normal = tiny ? size * 8388608.0f : size;
            int32_t bits;
            std::memcpy(&bits, &normal, sizeof bits);
            int32_t exponent = ((bits >> 23) & 255) - (tiny ? 150 : 127);
            exponent = size == 0.0f ? -254 : exponent;
            n[c] = clamp(float(exponent + 1) + nearest(f[c]), 0.0f, 63.0f);
        }
    });
}

template <typename Rule>
void own_errors(const float* x, const float* grad, float* for_f, const float* f, int64_t count,
                const float* p, int threads) {
    in_threads(count, threads, [=](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; c++)
            for_f[c] = (x[c] - Rule(0.0f, f[c], p)(x[c])) * grad[c] * 0.693147182f;
    });
}

}  // namespace

#define LEARNED(NAME, ROUNDING, WRAPS)                                                             \
    extern "C" void round_##NAME(const float* x, float* y, const float* i, const float* f,         \
                                 int64_t outer, int64_t channels, int64_t inner, const float* p,   \
                                 int threads) {                                                    \
        Channels at{outer, channels, inner};                                                       \
        if (p[0] != 0 && p[2] != 0)                                                                \
            learned_values<unlimited<ROUNDING>>(x, y, i, f, at, p, threads);                       \
        else                                                                                       \
            learned_values<learned<ROUNDING, WRAPS>>(x, y, i, f, at, p, threads);                  \
    }                                                                                              \
    extern "C" void gradients_##NAME(const float* x, const float* grad, float* for_x,              \
                                     const float* i, const float* f, double* for_bits,             \
                                     int64_t outer, int64_t channels, int64_t inner,               \
                                     const float* p, int parts) {                                  \
        Channels at{outer, channels, inner};                                                       \
        if (p[0] != 0 && p[2] != 0)                                                                \
            unlimited_gradients<ROUNDING>(x, grad, f, for_bits, at, p, parts);                     \
        else                                                                                       \
            learned_gradients<learned<ROUNDING, WRAPS>>(x, grad, for_x, i, f, for_bits, at, p,     \
                                                        parts);                                    \
    }                                                                                              \
    extern "C" void widths_##NAME(const float* x, float* n, const float* f, int64_t count,         \
                                  const float* p, int threads) {                                   \
        if (p[0] != 0)                                                                             \
            own_widths<unlimited<ROUNDING>>(x, n, f, count, p, threads);                           \
        else                                                                                       \
            own_widths<learned<ROUNDING, false>>(x, n, f, count, p, threads);                      \
    }                                                                                              \
    extern "C" void errors_##NAME(const float* x, const float* grad, float* for_f, const float* f, \
                                  int64_t count, const float* p, int threads) {                    \
        own_errors<unlimited<ROUNDING>>(x, grad, for_f, f, count, p, threads);                     \
    }

#define ELEMENTS(RULE)                                                                             \
    extern "C" void round_##RULE(const float* x, float* y, int64_t n, const float* p,              \
                                 int threads) {                                                    \
        elements<RULE>(x, y, n, p, threads);                                                       \
    }
#define ROWS(RULE)                                                                                 \
    extern "C" void round_##RULE(const float* x, float* y, int64_t count, int64_t columns,         \
                                 const float* p, int threads) {                                    \
        rows<RULE>(x, y, count, columns, p, threads);                                              \
    }
#define BLOCKS(RULE)                                                                               \
    extern "C" void round_##RULE(const float* x, float* y, int64_t samples, int64_t m, int64_t n,  \
                                 int64_t block_m, int64_t block_n, const float* p, int threads) {  \
        blocks<RULE>(x, y, samples, m, n, block_m, block_n, p, threads);                           \
    }

ELEMENTS(integer)
ELEMENTS(integer_up)
ELEMENTS(integer_floor)
ELEMENTS(integer_wrap)
ELEMENTS(integer_up_wrap)
ELEMENTS(integer_floor_wrap)
ELEMENTS(affine)
ELEMENTS(minifloat)
ELEMENTS(minifloat_wide)
ELEMENTS(log)
ELEMENTS(bipolar)
ELEMENTS(ternary)
ELEMENTS(residual)
ROWS(on_off)
ROWS(row_ternary)
BLOCKS(block_fp)
BLOCKS(mxint)
BLOCKS(block_float)
BLOCKS(block_float_wide)
BLOCKS(block_log)
BLOCKS(scale_integer)
LEARNED(learned_even, 0, false)
LEARNED(learned_up, 1, false)
LEARNED(learned_floor, 2, false)
LEARNED(learned_even_wrap, 0, true)
LEARNED(learned_up_wrap, 1, true)
LEARNED(learned_floor_wrap, 2, true)
