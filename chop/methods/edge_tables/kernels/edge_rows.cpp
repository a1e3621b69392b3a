// Rows of tables, one entry per output, that samples add up and gradients are added to.
//
// A network has `samples` samples with `inputs` rows each; `index` says which, and the rows of
// different networks are different ones, so that threads can take a network each.

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

template <typename Work>
void for_each_network(int64_t networks, int threads, Work work) {
  int count = static_cast<int>(std::min<int64_t>(threads, networks));
  if (count <= 1) {
    for (int64_t n = 0; n < networks; ++n) work(n);
    return;
  }
  std::vector<std::thread> team;
  for (int t = 0; t < count; ++t)
    team.emplace_back([=] {
      for (int64_t n = t; n < networks; n += count) work(n);
    });
  for (auto& member : team) member.join();
}

// sums[s] = sum over i of rows[index[s, i]]
template <typename T>
void summed(T* sums, const T* rows, const int64_t* index, int64_t networks, int64_t samples,
            int64_t inputs, int64_t outputs, int threads) {
  for_each_network(networks, threads, [=](int64_t n) {
    for (int64_t s = n * samples; s < (n + 1) * samples; ++s) {
      T* sum = sums + s * outputs;
      std::fill(sum, sum + outputs, T(0));
      for (int64_t i = 0; i < inputs; ++i) {
        const T* row = rows + index[s * inputs + i] * outputs;
        for (int64_t o = 0; o < outputs; ++o) sum[o] += row[o];
      }
    }
  });
}

// total[index[s, i]] += grads[s], and weighted[index[s, i]] += weights[s, i] * grads[s]
template <typename T>
void collected(T* __restrict total, T* __restrict weighted, const T* __restrict grads,
               const T* __restrict weights, const int64_t* __restrict index, int64_t networks,
               int64_t samples, int64_t inputs, int64_t outputs, int threads) {
  for_each_network(networks, threads, [=](int64_t n) {
    for (int64_t s = n * samples; s < (n + 1) * samples; ++s) {
      const T* grad = grads + s * outputs;
      for (int64_t i = 0; i < inputs; ++i) {
        int64_t row = index[s * inputs + i] * outputs;
        T weight = weights[s * inputs + i];
        T* __restrict one = total + row;
        T* __restrict other = weighted + row;
        for (int64_t o = 0; o < outputs; ++o) {
          one[o] += grad[o];
          other[o] += weight * grad[o];
        }
      }
    }
  });
}

// products[s, i] = rows[index[s, i]] . grads[s]
template <typename T>
void multiplied(T* products, const T* rows, const T* grads, const int64_t* index,
                int64_t networks, int64_t samples, int64_t inputs, int64_t outputs, int threads) {
  for_each_network(networks, threads, [=](int64_t n) {
    for (int64_t s = n * samples; s < (n + 1) * samples; ++s) {
      const T* grad = grads + s * outputs;
      for (int64_t i = 0; i < inputs; ++i) {
        const T* row = rows + index[s * inputs + i] * outputs;
        T sum = 0;
        for (int64_t o = 0; o < outputs; ++o) sum += row[o] * grad[o];
        products[s * inputs + i] = sum;
      }
    }
  });
}

}  // namespace

#define FOR_TYPE(T, NAME)                                                                        \
  extern "C" void rows_summed_##NAME(void* sums, const void* rows, const int64_t* index,         \
                                     int64_t networks, int64_t samples, int64_t inputs,          \
                                     int64_t outputs, int threads) {                             \
    summed(static_cast<T*>(sums), static_cast<const T*>(rows), index, networks, samples, inputs, \
           outputs, threads);                                                                    \
  }                                                                                              \
  extern "C" void rows_collected_##NAME(void* total, void* weighted, const void* grads,          \
                                        const void* weights, const int64_t* index,               \
                                        int64_t networks, int64_t samples, int64_t inputs,       \
                                        int64_t outputs, int threads) {                          \
    collected(static_cast<T*>(total), static_cast<T*>(weighted), static_cast<const T*>(grads),   \
              static_cast<const T*>(weights), index, networks, samples, inputs, outputs,         \
              threads);                                                                          \
  }                                                                                              \
  extern "C" void rows_multiplied_##NAME(void* products, const void* rows, const void* grads,    \
                                         const int64_t* index, int64_t networks,                 \
                                         int64_t samples, int64_t inputs, int64_t outputs,       \
                                         int threads) {                                          \
    multiplied(static_cast<T*>(products), static_cast<const T*>(rows),                           \
               static_cast<const T*>(grads), index, networks, samples, inputs, outputs,          \
               threads);                                                                         \
  }

FOR_TYPE(float, float32)
FOR_TYPE(double, float64)
