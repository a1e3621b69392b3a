// A layer of small networks on edges in training, forward and backward, by way of its codes.
//
// An edge with m bits in has 2^m codes, and its function is evaluated for these only. Samples look
// results up in rows, one for each place on the finest grid of an input, with one entry per output.
// Gradients are added up in the same rows. The plain form of all of it is in ../edge_codes.py.
//
// Every network is computed by one thread, so that results do not depend on the number of threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int64_t LANES = 8;        // numbers that are added side by side
constexpr int MAX_INDEX_BITS = 12;  // as in edge_codes.py
constexpr float EPSILON = 1e-3f;     // as in edge_sums.py
constexpr float LN2 = 0.6931471805599453f;

struct Sizes {
  int64_t networks, samples, inputs, outputs, hidden;
};

struct Network {  // the numbers of one network, as in `EdgeNumbers`
  const float *x, *in_integer, *in_frac, *out_integer, *out_frac, *gain, *shift;
  const float *weight_in, *bias_in, *weight_out;
};

int64_t padded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

float power(int exponent) { return std::ldexp(1.0f, exponent); }

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

inline Floats loaded(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

// tanh within 2e-7: by its series near zero, and by a polynomial for 2^r elsewhere
inline Floats hyperbolic_tangent(Floats x) {
  Floats size = x < 0 ? -x : x, square = x * x;
  Floats series = square * (62.0f / 2835.0f) - 17.0f / 315.0f;
  series = series * square + 2.0f / 15.0f;
  series = series * square - 1.0f / 3.0f;
  series = x + x * square * series;
  Floats most = Floats{} + 10.0f;
  Floats exponent = (size > most ? most : size) * 2.8853900817779268f;
  Ints whole = __builtin_convertvector(exponent + 0.5f, Ints);
  Floats r = (exponent - __builtin_convertvector(whole, Floats)) * LN2;
  Floats power = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
  power = power * r + 1.0f / 120.0f;
  power = power * r + 1.0f / 24.0f;
  power = power * r + 1.0f / 6.0f;
  power = power * r + 0.5f;
  power = power * r + 1.0f;
  power = power * r + 1.0f;
  Floats result = 1.0f - 2.0f / (power * (Floats)((whole + 127) << 23) + 1.0f);
  result = x < 0 ? -result : result;
  return size < 0.3f ? series : result;  // NaN stays NaN, as it is in `exponent`
}

float lanes_sum(const float* lanes) {
  float sum = 0;
  for (int64_t k = 0; k < LANES; ++k) sum += lanes[k];
  return sum;
}

struct Edge {
  bool live;         // has bits of its input
  int shift;         // bits by which its input's finest grid is finer
  int64_t half;      // half of its codes
  int64_t first;     // where its codes begin
  int64_t codes;     // how many there are
};

struct Input {
  int64_t half;   // half of the codes of the finest grid
  int frac;       // fraction bits of that grid
  int64_t first;  // its first row
  int64_t rows;   // the codes of that grid, and one for numbers below and above it
};

// What forward and backward have in common.
class Layer {
 public:
  const Sizes& size;
  const Network& net;
  std::vector<Edge> edges;
  std::vector<Input> places;
  int64_t rows = 0, entries = 0, wide;  // wide: outputs, padded
  std::vector<int32_t> index;           // [samples, inputs]: rows
  std::vector<int32_t> entry;           // [rows, outputs]: the entry of an edge for a row
  std::vector<float> counts;            // [rows] of samples
  std::vector<float> u, hidden, t, met; // by entry; hidden units of an edge lie one after another
  std::vector<float> mean, var, inverse;

  Layer(const Sizes& size, const Network& net)
      : size(size), net(net), wide(padded(size.outputs)) {}

  // Returns whether samples can look results up: no grid is too fine, the tables are not
  // too many for 32-bit indices, and no number is NaN.
  bool prepare() {
    if (!make_grid() || !find_rows()) return false;
    find_entries();
    evaluate();
    count_codes();
    find_statistics();
    return true;
  }

  // Calls work(row, entry) for all rows of an edge.
  template <typename Work>
  void each_row(int64_t i, int64_t o, Work work) const {
    const Input& input = places[i];
    const int32_t* at = entry.data() + input.first * size.outputs + o * input.rows;
    for (int64_t r = 0; r < input.rows; ++r) work(input.first + r, int64_t(at[r]));
  }

 private:
  bool make_grid() {
    edges.resize(size.inputs * size.outputs);
    places.resize(size.inputs);
    for (int64_t i = 0; i < size.inputs; ++i) {
      bool known = false;
      int most_integer = 0, most_frac = 0;
      for (int64_t o = 0; o < size.outputs; ++o) {
        float a = net.in_integer[i * size.outputs + o], b = net.in_frac[i * size.outputs + o];
        if (!(std::fabs(a) < 100 && std::fabs(b) < 100)) return false;
        if (a + b <= 0) continue;
        most_integer = known ? std::max(most_integer, int(a)) : int(a);
        most_frac = known ? std::max(most_frac, int(b)) : int(b);
        known = true;
      }
      int reach = known ? most_integer + most_frac : 0;
      if (reach + 1 > MAX_INDEX_BITS) return false;
      Input& input = places[i];
      input = {int64_t(1) << reach, known ? most_frac : 0, rows, (int64_t(2) << reach) + 2};
      rows += input.rows;
      for (int64_t o = 0; o < size.outputs; ++o) {
        int64_t e = i * size.outputs + o;
        int bits = int(net.in_integer[e] + net.in_frac[e]), frac = int(net.in_frac[e]);
        bool live = bits > 0;
        int64_t half = live ? int64_t(1) << bits : 0;
        edges[e] = {live, live ? input.frac - frac : 0, half, entries, live ? 2 * half : 1};
        entries += padded(edges[e].codes);
      }
    }
    return entries <= INT32_MAX && rows <= INT32_MAX;
  }

  bool find_rows() {
    index.resize(size.samples * size.inputs);
    counts.assign(rows, 0.0f);
    bool lost = false;
    for (int64_t i = 0; i < size.inputs; ++i) {
      const Input& input = places[i];
      float scale = power(input.frac), low = float(-input.half - 1), high = float(input.half);
      const float* x = net.x + i;
      for (int64_t s = 0; s < size.samples; ++s) {
        float number = x[s * size.inputs];
        lost |= number != number;
        float place = std::floor(number * scale);
        place = place > low ? place : low;
        place = place < high ? place : high;
        index[s * size.inputs + i] = int32_t(input.first) + int32_t(place - low);
      }
    }
    if (lost) return false;
    for (int32_t row : index) counts[row] += 1.0f;
    return true;
  }

  // By input, then by output, then by row.
  void find_entries() {
    entry.resize(rows * size.outputs);
    int32_t* at = entry.data();
    for (int64_t e = 0; e < int64_t(edges.size()); ++e) {
      const Edge& edge = edges[e];
      const Input& input = places[e / size.outputs];
      int32_t first = int32_t(edge.first), half = int32_t(edge.half);
      int32_t low = -half, high = std::max(half - 1, 0), shift = edge.shift;
      int32_t start = -1 - int32_t(input.half), count = int32_t(input.rows);
      for (int32_t r = 0; r < count; ++r) {
        int32_t place = (start + r) >> shift;
        at[r] = first + half + std::min(std::max(place, low), high);
      }
      at += count;
    }
  }

  void evaluate() {
    u.assign(entries, 0.0f), t.assign(entries, 0.0f), hidden.resize(entries * size.hidden);
    for (int64_t e = 0; e < int64_t(edges.size()); ++e) {
      const Edge& edge = edges[e];
      int64_t count = padded(edge.codes);
      float* place = u.data() + edge.first;
      float* value = t.data() + edge.first;
      float* unit = hidden.data() + edge.first * size.hidden;
      float step = edge.live ? power(-int(net.in_frac[e])) : 0.0f;
      for (int64_t c = 0; c < edge.codes; ++c)
        place[c] = (float(c - edge.half) + 0.5f) * step;
      for (int64_t h = 0; h < size.hidden; ++h, unit += count) {
        int64_t k = e * size.hidden + h;
        float weight = net.weight_in[k], bias = net.bias_in[k], out = net.weight_out[k];
        for (int64_t c = 0; c < count; c += LANES) {
          Floats units = hyperbolic_tangent(loaded(place + c) * weight + bias);
          Floats values = loaded(value + c) + units * out;
          std::memcpy(unit + c, &units, sizeof units);
          std::memcpy(value + c, &values, sizeof values);
        }
      }
    }
  }

  void count_codes() {
    met.assign(entries, 0.0f);
    for (int64_t i = 0; i < size.inputs; ++i)
      for (int64_t o = 0; o < size.outputs; ++o)
        each_row(i, o, [&](int64_t row, int64_t k) { met[k] += counts[row]; });
  }

  void find_statistics() {
    mean.resize(size.outputs), var.resize(size.outputs), inverse.resize(size.outputs);
    double total = double(size.samples) * double(size.inputs);
    for (int64_t o = 0; o < size.outputs; ++o) {
      double sum = 0, squares = 0;
      each_code(o, [&](int64_t k) { sum += double(met[k]) * double(t[k]); });
      double middle = sum / total;
      each_code(o, [&](int64_t k) {
        double distance = double(t[k]) - middle;
        squares += double(met[k]) * distance * distance;
      });
      mean[o] = float(middle), var[o] = float(squares / (total - 1));
      inverse[o] = 1.0f / std::sqrt(var[o] + EPSILON);
    }
  }

  template <typename Work>
  void each_code(int64_t output, Work work) const {
    for (int64_t i = 0; i < size.inputs; ++i) {
      const Edge& edge = edges[i * size.outputs + output];
      for (int64_t k = edge.first; k < edge.first + edge.codes; ++k) work(k);
    }
  }
};

// The rounding of an edge's results: to even, and symmetric at the ends; see numerics/learned.py.
struct Result {
  bool live;
  float step, steps, top, high;

  Result(float integer_bits, float frac_bits) {
    int i = int(std::nearbyint(integer_bits)), f = int(std::nearbyint(frac_bits)), n = i + f;
    live = n > 0, step = power(-f), steps = power(f), top = power(i);
    high = power(std::max(n, 0)) - power(std::max(n - 24, 0));
  }
  float operator()(float z) const {
    float whole = std::nearbyint(z * steps);
    whole = whole > high ? high : whole;
    whole = whole < -high ? -high : whole;
    return live ? whole * step : z == z ? 0.0f : z;
  }
};

// Leaves the sums [samples, outputs] and the statistics [outputs].
bool forward(const Sizes& size, const Network& net, float* y, float* mean, float* var) {
  Layer layer(size, net);
  if (!layer.prepare()) return false;
  std::vector<float> rows(layer.rows * layer.wide, 0.0f), value(layer.entries);
  float root = 1.0f / std::sqrt(float(size.inputs));
  for (int64_t i = 0; i < size.inputs; ++i)
    for (int64_t o = 0; o < size.outputs; ++o) {
      int64_t e = i * size.outputs + o;
      const Edge& edge = layer.edges[e];
      Result result(net.out_integer[e], net.out_frac[e]);
      float scale = net.gain[o] * layer.inverse[o], shift = net.shift[o], middle = layer.mean[o];
      for (int64_t k = edge.first; k < edge.first + edge.codes; ++k)
        value[k] = result(((layer.t[k] - middle) * scale + shift) * root);
      layer.each_row(i, o, [&](int64_t row, int64_t k) { rows[row * layer.wide + o] = value[k]; });
    }
  std::vector<float> sum(layer.wide);
  for (int64_t s = 0; s < size.samples; ++s) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int64_t i = 0; i < size.inputs; ++i) {
      const float* row = rows.data() + layer.index[s * size.inputs + i] * layer.wide;
      for (int64_t o = 0; o < layer.wide; ++o) sum[o] += row[o];
    }
    std::copy(sum.begin(), sum.begin() + size.outputs, y + s * size.outputs);
  }
  std::copy(layer.mean.begin(), layer.mean.end(), mean);
  std::copy(layer.var.begin(), layer.var.end(), var);
  return true;
}

struct Gradients {  // of one network; `x` may be absent
  float *x, *in_integer, *in_frac, *out_integer, *out_frac, *gain, *shift;
  float *weight_in, *bias_in, *weight_out;
};

class Backward {
 public:
  Backward(const Sizes& size, const Network& net, const float* grad, const Gradients& out)
      : size(size), net(net), out(out), layer(size, net), grad(grad) {}

  bool run() {
    if (!layer.prepare()) return false;
    collect();
    through_norm();
    through_functions();
    through_inputs();
    return true;
  }

 private:
  const Sizes& size;
  const Network& net;
  const Gradients& out;
  Layer layer;
  const float* grad;
  std::vector<float> wide_grad;            // [samples, wide]
  std::vector<float> total, weighted;      // [rows, wide]: sums of gradients, and times offsets
  std::vector<float> offsets;              // [rows]: sums of the distances from middles
  std::vector<float> by_code, direct;      // by entry
  std::vector<float> of_gradient, of_each; // by entry: slopes of a sample's value
  std::vector<float> at_mean, at_var;      // [outputs]

  void collect() {
    int64_t wide = layer.wide;
    wide_grad.assign(size.samples * wide, 0.0f);
    total.assign(layer.rows * wide, 0.0f), weighted.assign(layer.rows * wide, 0.0f);
    offsets.assign(layer.rows, 0.0f);
    std::vector<float> middle(layer.rows), cell(size.inputs);
    for (int64_t i = 0; i < size.inputs; ++i) {
      const Input& input = layer.places[i];
      cell[i] = power(-input.frac);
      for (int64_t r = 0; r < input.rows; ++r)
        middle[input.first + r] = (float(r - 1 - input.half) + 0.5f) * cell[i];
    }
    for (int64_t s = 0; s < size.samples; ++s) {
      float* __restrict mine = wide_grad.data() + s * wide;
      std::copy(grad + s * size.outputs, grad + (s + 1) * size.outputs, mine);
      for (int64_t i = 0; i < size.inputs; ++i) {
        int64_t row = layer.index[s * size.inputs + i];
        float offset = net.x[s * size.inputs + i] - middle[row];
        offset = std::fabs(offset) <= cell[i] ? offset : 0.0f;  // beyond the range
        offsets[row] += offset;
        float* __restrict one = total.data() + row * wide;
        float* __restrict other = weighted.data() + row * wide;
        for (int64_t o = 0; o < wide; ++o) {
          one[o] += mine[o];
          other[o] += offset * mine[o];
        }
      }
    }
  }

  // Gradients of the results' bits, gain and shift, and what reaches the functions' values.
  void through_norm() {
    by_code.assign(layer.entries, 0.0f), direct.assign(layer.entries, 0.0f);
    std::vector<double> gains(size.outputs), shifts(size.outputs), means(size.outputs),
        vars(size.outputs);
    float root = 1.0f / std::sqrt(float(size.inputs));
    for (int64_t i = 0; i < size.inputs; ++i) {
      for (int64_t o = 0; o < size.outputs; ++o) {
        int64_t e = i * size.outputs + o;
        const Edge& edge = layer.edges[e];
        layer.each_row(
            i, o, [&](int64_t row, int64_t k) { by_code[k] += total[row * layer.wide + o]; });
        Result result(net.out_integer[e], net.out_frac[e]);
        float inverse = layer.inverse[o], gain = net.gain[o], scale = gain * inverse;
        double for_i = 0, for_f = 0;
        for (int64_t k = edge.first; result.live && k < edge.first + edge.codes; ++k) {
          float distance = layer.t[k] - layer.mean[o];
          float z = (distance * scale + net.shift[o]) * root, g = by_code[k];
          float end = result.high * result.step;
          float beyond = z > end ? 1.0f : z < -end ? -1.0f : 0.0f;
          for_i += g * beyond * result.top;
          for_f += g * (beyond != 0 ? beyond * result.step : z - result(z));
          if (beyond != 0) continue;
          direct[k] = scale * root;
          shifts[o] += g * root;
          gains[o] += g * root * distance * inverse;
          means[o] -= g * direct[k];
          vars[o] += g * root * gain * distance;
        }
        out.out_integer[e] = LN2 * float(for_i), out.out_frac[e] = LN2 * float(for_f);
      }
    }
    double count = double(size.samples) * double(size.inputs);
    at_mean.resize(size.outputs), at_var.resize(size.outputs);
    for (int64_t o = 0; o < size.outputs; ++o) {
      double inverse = layer.inverse[o];
      out.gain[o] = float(gains[o]), out.shift[o] = float(shifts[o]);
      at_mean[o] = float(means[o] / count);
      at_var[o] = float(-vars[o] * inverse * inverse * inverse / (count - 1));
    }
  }

  // Gradients of the functions' parameters, and slopes for the gradients before the functions.
  void through_functions() {
    of_gradient.assign(layer.entries, 0.0f), of_each.assign(layer.entries, 0.0f);
    std::vector<float> slope, sum, far;
    for (int64_t e = 0; e < size.inputs * size.outputs; ++e) {
      const Edge& edge = layer.edges[e];
      int64_t o = e % size.outputs, count = padded(edge.codes);
      slope.assign(count, 0.0f), sum.assign(count, 0.0f), far.assign(count, 0.0f);
      const float *u = layer.u.data() + edge.first, *t = layer.t.data() + edge.first;
      const float *met = layer.met.data() + edge.first, *own = by_code.data() + edge.first;
      const float* through = direct.data() + edge.first;
      for (int64_t c = 0; c < edge.codes; ++c) {
        float shared = at_mean[o] + at_var[o] * (t[c] - layer.mean[o]);
        sum[c] = own[c] * through[c] + met[c] * shared;
        far[c] = sum[c] * u[c];
      }
      const float* unit = layer.hidden.data() + edge.first * size.hidden;
      for (int64_t h = 0; h < size.hidden; ++h, unit += count) {
        int64_t k = e * size.hidden + h;
        float weight = net.weight_in[k], last = net.weight_out[k];
        float in[LANES] = {}, bias[LANES] = {}, outer[LANES] = {};
        for (int64_t c = 0; c < count; c += LANES)
          for (int64_t l = 0; l < LANES; ++l) {
            float value = unit[c + l], rate = last - value * value * last;
            in[l] += far[c + l] * rate;
            bias[l] += sum[c + l] * rate;
            outer[l] += sum[c + l] * value;
            slope[c + l] += rate * weight;
          }
        out.weight_in[k] = lanes_sum(in), out.bias_in[k] = lanes_sum(bias);
        out.weight_out[k] = lanes_sum(outer);
      }
      for (int64_t c = 0; c < edge.codes; ++c) {
        float shared = at_mean[o] + at_var[o] * (t[c] - layer.mean[o]);
        of_gradient[edge.first + c] = through[c] * slope[c];
        of_each[edge.first + c] = shared * slope[c];
      }
    }
  }

  // Gradients of the inputs' bits, and of the samples.
  void through_inputs() {
    int64_t wide = layer.wide;
    std::vector<float> slopes(out.x ? layer.rows * wide : 0), alone(layer.rows, 0.0f);
    for (int64_t i = 0; i < size.inputs; ++i)
      for (int64_t o = 0; o < size.outputs; ++o) for_edge(i, o, slopes, alone);
    if (!out.x) return;
    for (int64_t s = 0; s < size.samples; ++s) {
      const float* mine = wide_grad.data() + s * wide;
      for (int64_t i = 0; i < size.inputs; ++i) {
        int64_t row = layer.index[s * size.inputs + i];
        const float* slope = slopes.data() + row * wide;
        float lanes[LANES] = {};
        for (int64_t o = 0; o < wide; o += LANES)
          for (int64_t l = 0; l < LANES; ++l) lanes[l] += slope[o + l] * mine[o + l];
        out.x[s * size.inputs + i] = lanes_sum(lanes) + alone[row];
      }
    }
  }

  void for_edge(int64_t i, int64_t o, std::vector<float>& slopes, std::vector<float>& alone) {
    int64_t e = i * size.outputs + o, wide = layer.wide;
    const Edge& edge = layer.edges[e];
    out.in_integer[e] = out.in_frac[e] = 0.0f;
    if (!edge.live) return;
    const Input& input = layer.places[i];
    float cell = power(-input.frac), step = power(-int(net.in_frac[e]));
    double for_i = 0, for_f = 0;
    layer.each_row(i, o, [&](int64_t row, int64_t k) {
      int64_t grid = row - input.first - 1 - input.half, place = grid >> edge.shift;
      float of_one = of_gradient[k], each = of_each[k];
      float sum = of_one * total[row * wide + o] + each * layer.counts[row];
      if (place >= edge.half || place < -edge.half) {
        float end = place < 0 ? -sum : sum;
        for_i += end, for_f += end * step / 2;
        return;
      }
      float middle = (float(grid) + 0.5f) * cell;
      for_f += (middle - layer.u[k]) * sum + of_one * weighted[row * wide + o] +
               each * offsets[row];
      alone[row] += each;
      if (out.x) slopes[row * wide + o] = of_one;
    });
    out.in_integer[e] = LN2 * power(int(net.in_integer[e])) * float(for_i);
    out.in_frac[e] = LN2 * float(for_f);
  }
};

template <typename Work>
bool for_each_network(int64_t networks, int threads, Work work) {
  int count = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, networks)));
  std::vector<char> done(count, 1);
  auto some = [&](int t) {
    for (int64_t n = t; n < networks; n += count) done[t] = done[t] && work(n);
  };
  std::vector<std::thread> team;
  for (int t = 1; t < count; ++t) team.emplace_back(some, t);
  some(0);
  for (auto& member : team) member.join();
  return std::all_of(done.begin(), done.end(), [](char each) { return each != 0; });
}

Network network_of(const float* const* tensors, const Sizes& size, int64_t n) {
  int64_t edges = size.inputs * size.outputs, numbers = edges * size.hidden;
  int64_t lengths[] = {size.samples * size.inputs, edges,   edges,   edges,   edges,
                       size.outputs,               size.outputs, numbers, numbers, numbers};
  const float* each[10];
  for (int k = 0; k < 10; ++k) each[k] = tensors[k] ? tensors[k] + n * lengths[k] : nullptr;
  return {each[0], each[1], each[2], each[3], each[4], each[5], each[6], each[7], each[8], each[9]};
}

}  // namespace

// `tensors` are those of `Network`, for all networks. Both functions return whether all networks
// could be computed; if not, what they leave has no meaning.
extern "C" int edges_forward(const float* const* tensors, float* y, float* mean, float* var,
                             const int64_t* sizes, int threads) {
  Sizes size = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
  return for_each_network(size.networks, threads, [&](int64_t n) {
    Network net = network_of(tensors, size, n);
    int64_t o = n * size.outputs;
    return forward(size, net, y + o * size.samples, mean + o, var + o);
  });
}

extern "C" int edges_backward(const float* const* tensors, const float* grad, float* const* results,
                              const int64_t* sizes, int threads) {
  Sizes size = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
  return for_each_network(size.networks, threads, [&](int64_t n) {
    Network net = network_of(tensors, size, n);
    Network at = network_of(results, size, n);
    auto open = [](const float* p) { return const_cast<float*>(p); };
    Gradients out = {open(at.x),
                     open(at.in_integer), open(at.in_frac),   open(at.out_integer),
                     open(at.out_frac),   open(at.gain),      open(at.shift),
                     open(at.weight_in),  open(at.bias_in),   open(at.weight_out)};
    return Backward(size, net, grad + n * size.samples * size.outputs, out).run();
  });
}
