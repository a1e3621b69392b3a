// Gradients of a training step for linear layers with ReLUs between whose bits are learned.
//
// `chop.numerics.fast.chain` builds and calls it. The values are those of the layers one by one:
// rounding is that of rounding.cpp with saturation, weights and biases have as many
// integer bits as they need. Sums are in another order than torch's. An input without bits is always
// zero and has no gradient, so it is left out, as is the output of the layer before that gives it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int LANES = 16, TILE = 32;
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Whole __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

constexpr float LN2 = 0.69314718055994530942f;
constexpr float WHOLE = 8388608.0f;  // floats from here on are integers
constexpr int64_t FIELDS = 11;       // of a layer in the layout

inline float number(int32_t b) {
    float x;
    std::memcpy(&x, &b, 4);
    return x;
}

inline float exp2(int32_t exponent) {
    exponent = std::min(std::max(exponent, -149), 127);
    int32_t subnormal = 1 << (std::min(exponent, -126) + 149);
    return number(exponent < -126 ? subnormal : (exponent + 127) << 23);
}

inline float nearest(float x) {
    float a = std::fabs(x);
    float rounded = (a + WHOLE) - WHOLE;
    return std::copysign(a < WHOLE ? rounded : a, x);
}

enum Rounding : int64_t { EVEN, UP, FLOOR };

// Returns x / step as an integer.
template <int64_t ROUNDING>
inline float whole(float x, float steps, float step) {
    float scaled = x * steps;
    if (ROUNDING == FLOOR) {
        float below = std::floor(scaled);
        return below - (below * step > x ? 1.0f : 0.0f);  // a small negative number may become zero
    }
    float even = nearest(scaled);
    return ROUNDING == UP ? even + (scaled - even == 0.5f ? 1.0f : 0.0f) : even;
}

inline float whole(float x, float steps, float step, int64_t rounding) {
    if (rounding == EVEN) return whole<EVEN>(x, steps, step);
    return rounding == UP ? whole<UP>(x, steps, step) : whole<FLOOR>(x, steps, step);
}

inline Vector at(const std::vector<float>& numbers, int64_t place) {
    return *(const Vector*)(numbers.data() + place);
}

inline int64_t padded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// --- products of matrices -----------------------------------------------------------------------

struct Factor {
    const float* at;
    int64_t row, column;  // steps between rows and between columns
};

template <int ROWS, int VECTORS>
inline void block(float* c, int64_t line, Factor a, const float* b, int64_t inner, bool adds) {
    Vector sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            sums[r][v] = adds ? *(const Vector*)(c + r * line + v * LANES) : Vector{};
    for (int64_t k = 0; k < inner; k++) {
        Vector row[VECTORS];
        for (int v = 0; v < VECTORS; v++) row[v] = *(const Vector*)(b + k * line + v * LANES);
        for (int r = 0; r < ROWS; r++) {
            float factor = a.at[r * a.row + k * a.column];
            for (int v = 0; v < VECTORS; v++) sums[r][v] += factor * row[v];
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) *(Vector*)(c + r * line + v * LANES) = sums[r][v];
}

template <int ROWS>
inline void strip(float* c, int64_t line, Factor a, const float* b, int64_t inner, bool adds) {
    int64_t n = 0;
    for (; n + 2 * LANES <= line; n += 2 * LANES) block<ROWS, 2>(c + n, line, a, b + n, inner, adds);
    if (n < line) block<ROWS, 1>(c + n, line, a, b + n, inner, adds);
}

// c = a · b, or c += a · b; c and b have lines of the same length, a number of vectors.
void multiply(float* c, int64_t rows, int64_t line, Factor a, const float* b, int64_t inner,
              bool adds) {
    int64_t r = 0;
    auto next = [&](int64_t count) {
        c += count * line, a.at += count * a.row, r += count;
    };
    for (; r + 8 <= rows; next(8)) strip<8>(c, line, a, b, inner, adds);
    for (; r + 4 <= rows; next(4)) strip<4>(c, line, a, b, inner, adds);
    for (; r < rows; next(1)) strip<1>(c, line, a, b, inner, adds);
}

// --- layers -------------------------------------------------------------------------------------

// Where the values of a layer are, and how its input is rounded; a bias below 0 is missing.
struct Layout {
    int64_t inputs, outputs, weight, bias, integer_bits, frac_bits, weight_bits, bias_bits;
    int64_t is_signed, shares_bits, rounding;
};

// The inputs that have bits, in vectors: how they are rounded, and the sums of their gradients.
struct Inputs {
    std::vector<int64_t> live;
    std::vector<float> step, steps, low, high, top;
    int64_t line = 0;

    void set(const Layout& layer, const float* values) {
        for (int64_t c = 0; c < layer.inputs; c++) {
            int64_t at = layer.shares_bits ? 0 : c;
            int32_t f = int32_t(nearest(values[layer.frac_bits + at]));
            int32_t n = int32_t(nearest(values[layer.integer_bits + at])) + f;
            if (n <= 0) continue;
            live.push_back(c);
            float count = exp2(n), most = count - exp2(std::max(n - 24, 0));
            step.push_back(exp2(-f)), steps.push_back(exp2(f)), top.push_back(exp2(n - f));
            high.push_back(most), low.push_back(layer.is_signed ? -count : 0.0f);
        }
        line = padded(int64_t(live.size()));
        for (auto* each : {&step, &steps, &low, &high, &top}) each->resize(line, 0.0f);
    }
    int64_t count() const { return int64_t(live.size()); }
};

// A layer with its rounded weights, those of inputs and outputs that are used.
struct Layer {
    Layout at;
    Inputs in;
    std::vector<int64_t> outputs;
    int64_t line = 0;
    std::vector<float> weight, transposed, bias;  // [outputs, in.line], [inputs, line], [line]

    void set(const float* values) {
        line = padded(int64_t(outputs.size()));
        weight.assign(outputs.size() * in.line, 0.0f), transposed.assign(in.count() * line, 0.0f);
        bias.assign(line, 0.0f);
        for (size_t o = 0; o < outputs.size(); o++) {
            if (at.bias >= 0) bias[o] = rounded(values, at, at.bias, at.bias_bits, outputs[o]);
            for (int64_t c = 0; c < in.count(); c++) {
                int64_t place = outputs[o] * at.inputs + in.live[c];
                float w = rounded(values, at, at.weight, at.weight_bits, place);
                weight[o * in.line + c] = w, transposed[c * line + o] = w;
            }
        }
    }
    static float rounded(const float* values, const Layout& at, int64_t numbers, int64_t bits,
                         int64_t place) {
        int32_t f = int32_t(nearest(values[bits + place]));
        return whole(values[numbers + place], exp2(f), exp2(-f), at.rounding) * exp2(-f);
    }
};

// What one thread keeps for a layer: a tile of samples, and sums of gradients.
struct Work {
    std::vector<float> raw, rounded, grad;     // inputs [TILE, in.line]; later their gradients
    std::vector<float> for_weight, for_bias;   // [inputs, line], [line]
    std::vector<double> sum_i, sum_f;          // [in.line]

    explicit Work(const Layer& layer) {
        for (auto* each : {&raw, &rounded, &grad}) each->assign(TILE * layer.in.line, 0.0f);
        for_weight.assign(layer.in.count() * layer.line, 0.0f), for_bias.assign(layer.line, 0.0f);
        sum_i.assign(layer.in.line, 0.0), sum_f.assign(layer.in.line, 0.0);
    }
};

template <int64_t ROUNDING>
void round_inputs(const Inputs& in, Work& work, int64_t samples) {
    const int64_t line = in.line;
    const float *__restrict step = in.step.data(), *__restrict steps = in.steps.data();
    const float *__restrict low = in.low.data(), *__restrict high = in.high.data();
    for (int64_t t = 0; t < samples; t++) {
        const float* __restrict x = work.raw.data() + t * line;
        float* __restrict y = work.rounded.data() + t * line;
        for (int64_t c = 0; c < line; c++) {
            float code = whole<ROUNDING>(x[c], steps[c], step[c]);
            code = code < low[c] ? low[c] : code;
            code = code > high[c] ? high[c] : code;
            y[c] = code * step[c];
        }
    }
}

void round_inputs(const Layer& layer, Work& work, int64_t samples) {
    if (layer.at.rounding == EVEN) return round_inputs<EVEN>(layer.in, work, samples);
    if (layer.at.rounding == UP) return round_inputs<UP>(layer.in, work, samples);
    round_inputs<FLOOR>(layer.in, work, samples);
}

// Turns gradients of rounded inputs into those of the inputs, and adds up those of their bits.
void input_gradients(const Layer& layer, Work& work, int64_t samples) {
    const Inputs& in = layer.in;
    const float sign = layer.at.is_signed ? 1.0f : 0.0f;
    for (int64_t c = 0; c < in.line; c += LANES) {
        const Vector step = at(in.step, c), top = at(in.top, c), none{};
        const Vector high = at(in.high, c) * step, low = at(in.low, c) * step, bottom = -sign * top;
        Vector for_i{}, for_f{};
        for (int64_t t = 0; t < samples; t++) {
            const int64_t place = t * in.line + c;
            const Vector x = at(work.raw, place), y = at(work.rounded, place);
            const Vector g = at(work.grad, place);
            for_i += g * (x > high ? top : x < low ? bottom : none);
            for_f += g * (x > high ? step : x < low ? none : x - y);
            *(Vector*)(work.grad.data() + place) = x > high ? none : x < low ? none : g;
        }
        for (int lane = 0; lane < LANES; lane++)
            work.sum_i[c + lane] += for_i[lane], work.sum_f[c + lane] += for_f[lane];
    }
}

// e^x for x <= 0, within two units of the last place
inline Vector exponential(Vector x) {
    Vector least = Vector{} - 87.0f;
    x = x < least ? least : x;
    Vector scaled = x * 1.44269504088896341f;
    Vector k = (scaled + 12582912.0f) - 12582912.0f;
    Vector r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f, p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f, p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    Whole power = (__builtin_convertvector(k, Whole) + 127) << 23;
    return p * (Vector)power;
}

// Turns scores [samples, line] into gradients of the mean cross-entropy.
void loss_gradients(float* scores, int64_t line, int64_t classes, const int64_t* labels,
                    const int64_t* index, int64_t samples, float share) {
    for (int64_t t = 0; t < samples; t++) {
        float* row = scores + t * line;
        float most = *std::max_element(row, row + classes);
        float total = 0.0f;
        for (int64_t c = 0; c < line; c += LANES)
            *(Vector*)(row + c) = exponential(*(const Vector*)(row + c) - most);
        for (int64_t c = 0; c < classes; c++) total += row[c];
        for (int64_t c = 0; c < line; c++) row[c] = c < classes ? row[c] * (share / total) : 0.0f;
        row[labels[index[t]]] -= share;
    }
}

// --- a step -------------------------------------------------------------------------------------

struct Samples {
    const float* x;
    const int64_t* labels;
    const int64_t* index;
    int64_t count;
};

// Adds up the gradients for some samples.
void tile(const std::vector<Layer>& layers, std::vector<Work>& work, std::vector<float>& scores,
          const Samples& data, int64_t first) {
    const int64_t samples = std::min<int64_t>(TILE, data.count - first);
    const int64_t* index = data.index + first;
    const Layer &start = layers.front(), &end = layers.back();
    for (int64_t t = 0; t < samples; t++) {
        const float* x = data.x + index[t] * start.at.inputs;
        for (int64_t c = 0; c < start.in.count(); c++)
            work[0].raw[t * start.in.line + c] = x[start.in.live[c]];
    }
    for (size_t l = 0; l < layers.size(); l++) {
        const Layer& layer = layers[l];
        round_inputs(layer, work[l], samples);
        const bool is_last = l + 1 == layers.size();
        float* result = is_last ? scores.data() : work[l + 1].raw.data();
        for (int64_t t = 0; t < samples; t++)
            std::copy_n(layer.bias.data(), layer.line, result + t * layer.line);
        Factor x{work[l].rounded.data(), layer.in.line, 1};
        multiply(result, samples, layer.line, x, layer.transposed.data(), layer.in.count(), true);
        for (int64_t k = 0; !is_last && k < samples * layer.line; k++)
            result[k] = result[k] < 0.0f ? 0.0f : result[k];
    }
    loss_gradients(scores.data(), end.line, end.at.outputs, data.labels, index, samples,
                   1.0f / float(data.count));
    for (size_t l = layers.size(); l-- > 0;) {
        const Layer& layer = layers[l];
        const bool is_last = l + 1 == layers.size();
        float* grad = is_last ? scores.data() : work[l + 1].grad.data();
        if (!is_last)
            for (int64_t k = 0; k < samples * layer.line; k++)
                grad[k] = work[l + 1].raw[k] > 0.0f ? grad[k] : 0.0f;
        for (int64_t t = 0; t < samples; t++)
            for (int64_t o = 0; o < layer.line; o++) work[l].for_bias[o] += grad[t * layer.line + o];
        Factor x{work[l].rounded.data(), 1, layer.in.line};
        multiply(work[l].for_weight.data(), layer.in.count(), layer.line, x, grad, samples, true);
        Factor g{grad, layer.line, 1};
        multiply(work[l].grad.data(), samples, layer.in.line, g, layer.weight.data(),
                 int64_t(layer.outputs.size()), false);
        input_gradients(layer, work[l], samples);
    }
}

// Writes the gradients of the loss for a layer, from the sums of one thread or of more.
void write(const Layer& layer, const Work& work, const float* values, float* grads) {
    const Layout& at = layer.at;
    for (int64_t c = 0; c < layer.in.count(); c++) {
        int64_t place = at.shares_bits ? 0 : layer.in.live[c];
        grads[at.integer_bits + place] += LN2 * float(work.sum_i[c]);
        grads[at.frac_bits + place] += LN2 * float(work.sum_f[c]);
        for (size_t o = 0; o < layer.outputs.size(); o++) {
            int64_t number = layer.outputs[o] * at.inputs + layer.in.live[c];
            float grad = work.for_weight[c * layer.line + int64_t(o)];
            float error = values[at.weight + number] - layer.weight[o * layer.in.line + c];
            grads[at.weight + number] += grad, grads[at.weight_bits + number] += LN2 * grad * error;
        }
    }
    for (size_t o = 0; at.bias >= 0 && o < layer.outputs.size(); o++) {
        float grad = work.for_bias[o], error = values[at.bias + layer.outputs[o]] - layer.bias[o];
        grads[at.bias + layer.outputs[o]] += grad;
        grads[at.bias_bits + layer.outputs[o]] += LN2 * grad * error;
    }
}

// Bits of a rounded number without its sign, none for zero.
inline int32_t magnitude(float value, float frac_bits) {
    if (value == 0.0f) return 0;
    int32_t count = std::ilogb(value) + 1 + int32_t(nearest(frac_bits));
    return std::min(std::max(count, 0), 63);
}

// Adds the gradients of price · EBOPs: bits of inputs times bits of weights, and bits of biases.
void add_price(const Layout& at, const float* values, float* grads, float price) {
    for (int64_t c = 0; c < at.inputs; c++) {
        int64_t place = at.shares_bits ? 0 : c;
        float frac_bits = values[at.frac_bits + place], integer = values[at.integer_bits + place];
        int32_t n = int32_t(nearest(frac_bits)) + int32_t(nearest(integer));
        if (n <= 0) continue;
        float bits = float(n + (at.is_signed ? 1 : 0)), total = 0.0f;
        for (int64_t o = 0; o < at.outputs; o++) {
            int64_t number = o * at.inputs + c;
            float w = Layer::rounded(values, at, at.weight, at.weight_bits, number);
            int32_t own = magnitude(w, values[at.weight_bits + number]);
            total += float(own);
            if (own > 0) grads[at.weight_bits + number] += price * bits;
        }
        grads[at.integer_bits + place] += price * total;
        grads[at.frac_bits + place] += price * total;
    }
    for (int64_t o = 0; at.bias >= 0 && o < at.outputs; o++) {
        float b = Layer::rounded(values, at, at.bias, at.bias_bits, o);
        if (magnitude(b, values[at.bias_bits + o]) > 0) grads[at.bias_bits + o] += price;
    }
}

template <typename T>
void add(std::vector<T>& sums, const std::vector<T>& others) {
    for (size_t k = 0; k < sums.size(); k++) sums[k] += others[k];
}

}  // namespace

// Writes the gradients of mean cross-entropy + price · EBOPs. Samples are the rows of `x` at `index`.
// Each thread has sums of its own, which are added in order: as many threads give the same bits.
extern "C" void chain_gradients(const float* values, float* grads, int64_t count,
                                const int64_t* layout, int64_t depth, const float* x,
                                const int64_t* labels, const int64_t* index, int64_t batch,
                                float price, int threads) {
    std::vector<Layer> layers(depth);
    for (int64_t l = 0; l < depth; l++) {
        std::memcpy(&layers[l].at, layout + l * FIELDS, FIELDS * sizeof(int64_t));
        layers[l].in.set(layers[l].at, values);
    }
    for (int64_t l = 0; l < depth; l++) {
        if (l + 1 < depth) layers[l].outputs = layers[l + 1].in.live;
        for (int64_t o = 0; l + 1 == depth && o < layers[l].at.outputs; o++)
            layers[l].outputs.push_back(o);
        layers[l].set(values);
    }
    const Samples data{x, labels, index, batch};
    const int64_t tiles = (batch + TILE - 1) / TILE;
    const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, tiles));
    std::vector<std::vector<Work>> work(parts);
    auto run = [&](int64_t part) {
        for (const Layer& layer : layers) work[part].emplace_back(layer);
        std::vector<float> scores(TILE * layers.back().line);
        for (int64_t k = part * tiles / parts; k < (part + 1) * tiles / parts; k++)
            tile(layers, work[part], scores, data, k * TILE);
    };
    std::vector<std::thread> team;
    for (int64_t part = 1; part < parts; part++) team.emplace_back(run, part);
    run(0);
    for (auto& member : team) member.join();
    std::fill_n(grads, count, 0.0f);
    for (int64_t l = 0; l < depth; l++) {
        Work& sums = work[0][l];
        for (int64_t part = 1; part < parts; part++) {
            const Work& other = work[part][l];
            add(sums.for_weight, other.for_weight), add(sums.for_bias, other.for_bias);
            add(sums.sum_i, other.sum_i), add(sums.sum_f, other.sum_f);
        }
        write(layers[l], sums, values, grads);
        add_price(layers[l].at, values, grads, price);
    }
}
