// Random blocks for tests of single kinds: tensors with their values in double, models, and rows through them.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../../kernels/cpu/api.h"

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline int failures = 0, with_zeros = 0;  // matrices with zero points
inline unsigned seed = 0;

inline void check(bool ok, const std::string& what) {
  if (ok) return;
  if (failures++ < 20) std::printf("FAILED seed %u: %s\n", seed, what.c_str());
}

inline bool same(const Floats& a, const Floats& b) {
  return a.size() == b.size() && !std::memcmp(a.data(), b.data(), a.size() * sizeof(float));
}

struct Random {
  std::mt19937 bits;
  explicit Random(unsigned s) : bits(s) {}
  int below(int n) { return (int)(bits() % (unsigned)n); }
  int from(int a, int b) { return a + below(b - a + 1); }
  bool chance(int percent) { return below(100) < percent; }
  float flat() { return (float)((int)(bits() >> 8) - (1 << 23)) / (float)(1 << 23); }  // -1 to 1
  template <class T>
  T one_of(std::initializer_list<T> all) { return all.begin()[below((int)all.size())]; }
  Floats floats(size_t n, float middle, float spread) {
    Floats x(n);
    for (float& v : x) v = middle + spread * flat();
    return x;
  }
};

inline double from_half(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const double size = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  return h & 0x8000 ? -size : size;
}

inline double activation(double x, int kind) {
  switch (kind) {
    case 0: return x / (1 + std::exp(-x));
    case 1: return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case 2: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case 5: return x > 0 ? x * x : 0;
    default: return x > 0 ? x : 0;
  }
}

// A model's arrays, of just the size that they need.
struct Arrays {
  std::vector<std::unique_ptr<uint8_t[]>> all;
  std::deque<Doubles> values;

  template <class T>
  T* get(size_t n) {
    all.emplace_back(new uint8_t[n * sizeof(T) + 1]());
    return (T*)all.back().get();
  }
  const float* keep(const Floats& x) { return (const float*)std::memcpy(get<float>(x.size()), x.data(), 4 * x.size()); }
};

// A random tensor and its values [n, k].
struct Weight {
  ed_tensor tensor{};
  const Doubles* values = nullptr;

  double at(int row, int k) const { return (*values)[(size_t)row * tensor.k + k]; }
  // Rows from `row0` on times x.
  Doubles times(const Doubles& x, int row0, int rows) const {
    Doubles y(rows);
    for (int i = 0; i < rows; i++)
      for (int k = 0; k < tensor.k; k++) y[i] += at(row0 + i, k) * x[k];
    return y;
  }
  Doubles times(const Doubles& x) const { return times(x, 0, tensor.n); }
};

// Zero points of a quantized weight: as they lie in memory, and by row and block.
struct ZeroPoints {
  const uint8_t* data = nullptr;  // null: none
  std::vector<int> values;        // [n, blocks]
  ZeroPoints(Random& r, Arrays& arrays, const ed_tensor& t, int blocks) : values((size_t)t.n * blocks, 0) {
    const bool nibbles = t.format == 4;
    for (int& zero : values) zero = nibbles ? 8 : 128;
    if (t.block == 16 || r.chance(50)) return;
    const size_t line = t.layout ? (size_t)blocks * (nibbles ? 8 : 16) : nibbles ? (blocks + 1) / 2 : blocks;
    uint8_t* to = arrays.get<uint8_t>((t.layout ? (t.n + 15) / 16 : t.n) * line);
    for (int i = 0; i < t.n; i++)
      for (int b = 0; b < blocks; b++) {
        const int zero = values[(size_t)i * blocks + b] = nibbles ? r.from(5, 11) : r.from(96, 160);  // as far off as real ones
        uint8_t* at = to + (t.layout ? i / 16 : i) * line;
        if (t.layout) at += nibbles ? b * 8 + i % 8 : b * 16 + i % 16;
        else at += nibbles ? b / 2 : b;
        *at |= (uint8_t)(nibbles ? zero << 4 * (t.layout ? i % 16 / 8 : b % 2) : zero);
      }
    data = to;
  }
};

enum { F32 = 1, F16 = 2, INT8 = 3, INT4 = 4 };

inline Weight random_weight(Random& r, Arrays& arrays, int format, int n, int k) {
  Weight w;
  arrays.values.emplace_back((size_t)n * k);
  Doubles& values = arrays.values.back();
  ed_tensor& t = w.tensor;
  t.format = format, t.n = n, t.k = k, w.values = &values;
  const float size = 1.5f / std::sqrt((float)k);
  auto half = [&](float top) {
    const int exponent = 15 + (int)std::floor(std::log2(top));
    return (uint16_t)(r.below(2) << 15 | std::max(exponent, 1) << 10 | r.below(1024));
  };
  if (format == F32) {
    const Floats x = r.floats(values.size(), 0, size);
    values.assign(x.begin(), x.end()), t.data = arrays.keep(x);
  } else if (format == F16) {
    uint16_t* x = arrays.get<uint16_t>(values.size());
    for (size_t i = 0; i < values.size(); i++) x[i] = half(size), values[i] = from_half(x[i]);
    t.data = x;
  } else {
    t.layout = r.below(2), t.block = 16 << r.below(3);
    const size_t rows = t.layout ? (n + 15) / 16 * 16 : n, blocks = (k + t.block - 1) / t.block;
    const int per = format == INT4 ? 8 : 4, words = (int)(blocks * t.block) / per;
    uint8_t* data = arrays.get<uint8_t>(rows * words * 4);
    uint16_t* scales = arrays.get<uint16_t>(rows * blocks);
    for (size_t i = 0; i < rows * words * 4; i++) data[i] = (uint8_t)r.below(256);
    for (size_t i = 0; i < rows * blocks; i++) scales[i] = half(size / (format == INT4 ? 8 : 128)) & 0x7fff;
    const ZeroPoints zeros(r, arrays, t, (int)blocks);
    with_zeros += zeros.data != nullptr;
    for (int i = 0; i < n; i++)
      for (int j = 0; j < k; j++) {
        const size_t word = t.layout ? ((size_t)(i / 16) * words + j / per) * 16 + i % 16 : (size_t)i * words + j / per;
        const int byte = data[word * 4 + (format == INT4 ? j % 8 / 2 : j % 4)];
        const size_t b = j / t.block;
        const int q = (format == INT8 ? byte : byte >> (j & 1 ? 4 : 0) & 15) - zeros.values[i * blocks + b];
        values[(size_t)i * k + j] =
            q * from_half(scales[t.layout ? ((i / 16) * blocks + b) * 16 + i % 16 : i * blocks + b]);
      }
    t.data = data, t.scales = scales, t.zeros = zeros.data;
  }
  return w;
}

inline Doubles rms(const Doubles& x, const float* weight, double eps, size_t begin, size_t size) {
  double squares = 0;
  for (size_t i = 0; i < size; i++) squares += x[begin + i] * x[begin + i];
  Doubles y(size);
  for (size_t i = 0; i < size; i++) y[i] = x[begin + i] / std::sqrt(squares / size + eps) * weight[begin + i];
  return y;
}

// The engines of every instruction set that runs here, plain C++ on one thread first.
struct Engines {
  std::vector<ed_engine*> all;
  std::string names;

  explicit Engines(const ed_model& model) {
    open(model, "scalar", 1);
    std::string isas = ed_isas();
    for (size_t at = 0; at < isas.size();) {
      const size_t end = std::min(isas.find(',', at), isas.size());
      std::string name = isas.substr(at, end - at);
      at = end + 1;
      if (name.back() != '+') continue;
      name.pop_back();
      names += ' ' + name;
      for (int threads : {1, 3}) open(model, name, threads);
    }
  }
  ~Engines() {
    for (ed_engine* engine : all) ed_close(engine);
  }
  ed_engine* any(Random& r) const { return all[r.below((int)all.size())]; }

 private:
  void open(const ed_model& model, const std::string& isa, int threads) {
    all.push_back(ed_open(&model, threads, isa.c_str()));
    check(all.back(), "ed_open of " + isa);
  }
};

// Whether y is near `want`: each value, as a part of the largest.
inline void near(const float* y, const Doubles& want, double off, const std::string& what) {
  double top = 1e-3, worst = 0;
  for (size_t i = 0; i < want.size(); i++) {
    top = std::max(top, std::fabs(want[i]));
    const double error = std::fabs(y[i] - want[i]);
    worst = error <= worst ? worst : error;  // a NaN counts
  }
  check(worst <= off * top, what + ": off by " + std::to_string(worst / top));
}
