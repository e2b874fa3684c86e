// Products and what stands between them: near double precision, bit for bit the same on every instruction
// set, and a row the same alone and among others. The digest is of plain C++'s results: every machine's.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "tables.h"

using namespace edgedec;
using Floats = std::vector<float>;

static int failures = 0;
static uint64_t digest = 14695981039346656037u;

static void check(bool ok, const std::string& what, const char* unit) {
  if (ok) return;
  failures++;
  std::printf("FAILED %s: %s\n", unit, what.c_str());
}

static void same(const Floats& want, const Floats& got, const std::string& what, const char* unit) {
  for (size_t i = 0; i < want.size(); i++)
    if (std::memcmp(&want[i], &got[i], 4))
      return check(false, what + " at " + std::to_string(i) + ": " + std::to_string(got[i]) + ", not " +
                              std::to_string(want[i]), unit);
}

static void near(const Floats& got, const std::vector<double>& want, const std::vector<double>& off,
                 const std::string& what) {
  for (size_t i = 0; i < want.size(); i++)
    if (!(std::fabs(got[i] - want[i]) <= off[i]))
      return check(false, what + " at " + std::to_string(i) + ": " + std::to_string(got[i]) + ", exactly " +
                              std::to_string(want[i]), "scalar");
}

static void digested(const void* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) digest = (digest ^ ((const uint8_t*)data)[i]) * 1099511628211u;
}

// Numbers that are the same everywhere; the standard library's distributions need not be.
struct Random {
  std::mt19937 bits;
  explicit Random(unsigned seed) : bits(seed) {}
  int below(int n) { return (int)(bits() % (unsigned)n); }
  float flat() { return (float)((int)(bits() >> 8) - (1 << 23)) / (float)(1 << 23); }  // -1 to 1
  float bell() {
    float sum = flat();
    sum += flat();
    return sum + flat();
  }
  uint16_t half(int from, int to) {
    int size = from + below(to - from);
    return (uint16_t)(below(2) ? size : size | 0x8000);
  }
  Floats bells(size_t n) {
    Floats x(n);
    for (float& v : x) v = bell();
    return x;
  }
};

static double from_half(uint16_t h) {
  int exponent = h >> 10 & 31, mantissa = h & 1023;
  double size = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  return h & 0x8000 ? -size : size;
}

static double activation(double x, int kind) {
  if (kind == SILU) return x / (1 + std::exp(-x));
  if (kind == GELU) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

// ---- weights and rows ------------------------------------------------------------------------------

static const uint8_t NOTHING = 0;

// A random matrix in memory of just its size.
struct Weights {
  Matrix m{};
  std::vector<uint8_t> data;
  std::vector<uint16_t> scales;
  std::vector<uint8_t> zeros;
  std::vector<double> value;  // [n, kpad]; quantized: without its scale
  std::vector<double> scale;  // [n, blocks]

  Weights(int format, int layout, int n, int k, int block, unsigned seed, bool zero_points = false,
          bool row_scales = false) {
    Random random(seed);
    m.format = format, m.layout = layout, m.n = n, m.k = k, m.block = block, m.offsets = row_scales ? 3 : 0;
    value.resize((size_t)n * m.kpad());
    if (m.quantized()) quantized(random);
    else floats(random);
    if (zero_points) offset(Random(seed + 7));
    at_home();
  }

  void at_home() {
    m.data = data.data(), m.scales = scales.data();
    if (!zeros.empty()) m.zeros = zeros.data();
  }
  double at(int row, int k) const {
    return value[(size_t)row * m.kpad() + k] * (m.quantized() ? scale[(size_t)row * m.blocks() + k / m.block] : 1);
  }
  std::string name() const {
    const char* formats[] = {"", "f32", "f16", "int8", "int4", "int3", "int2", "int5", "int6", "nl4", "uint2", "mx4"};
    return std::string(formats[m.format]) + (m.layout == ROWS ? " by rows " : " packed ") + std::to_string(m.n) + "x" +
           std::to_string(m.k) + " in blocks of " + std::to_string(m.block) + (m.zeros ? " with zero points" : "") +
           (m.row_scales() ? " with scales of rows" : "");
  }

 private:
  // Four bytes of an output's row.
  uint8_t* word(int r, int at) {
    const int words = m.kpad() * bits_of(m.format) / 32;
    return &data[4 * (m.layout == ROWS ? (size_t)r * words + at : (size_t)(r / LANES * words + at) * LANES + r % LANES)];
  }
  // A code where docs/bundle-format.md says it lies.
  void store(int r, int k, int q) {
    if (m.format == INT8) word(r, k / 4)[k % 4] = (uint8_t)q;
    if (m.format == INT4 || m.format == NL4) word(r, k / 8)[k % 8 / 2] |= (uint8_t)(q << (k & 1 ? 4 : 0));
    if (m.format == MX4) word(r, k / 8)[k % 4] |= (uint8_t)(q << k % 8 / 4 * 4);
    if (!in_planes(m.format) || m.format == MX4) return;
    const int first = k / 32 * (m.format == INT3 ? 3 : 2);
    word(r, first + k % 32 / 16)[k % 4] |= (uint8_t)((q & 3) << 2 * (k % 16 / 4));
    if (m.format == INT3) word(r, first + 2)[k % 4] |= (uint8_t)(q >> 2 << k % 32 / 4);
  }
  // What a code stands for; of MX4 twice a float with two bits of exponent and one of mantissa.
  int meant(int q) const {
    if (m.format == NL4) return NL4_VALUES[q];
    if (m.format != MX4) return m.format == INT8 ? q - 128 : m.format == INT4 ? q - 8 : m.format == INT3 ? q - 4 : 2 * q - 3;
    const int exponent = q >> 1 & 3, mantissa = q & 1, size = exponent ? (2 + mantissa) << (exponent - 1) : mantissa;
    return q & 8 ? -size : size;
  }
  void floats(Random& random) {
    data.resize(value.size() * (m.format == F32 ? 4 : 2));
    for (size_t i = 0; i < value.size(); i++) {
      float x = random.bell();
      uint16_t h = random.half(0, 0x4800);
      value[i] = m.format == F32 ? x : from_half(h);
      if (m.format == F32) std::memcpy(&data[4 * i], &x, 4);
      else std::memcpy(&data[2 * i], &h, 2);
    }
  }
  // Zero points; those of outputs from n on in the packed layout are garbage.
  void offset(Random random) {
    m.zeros = &NOTHING;  // so that sizes count them
    zeros.resize((m.layout == ROWS ? m.n : m.groups()) * m.zero_bytes(), 0xa5);
    const bool nibbles = m.format == INT4;
    for (int r = 0; r < m.n; r++)
      for (int b = 0; b < m.blocks(); b++) {
        const int zero = random.below(nibbles ? 16 : 256), usual = nibbles ? 8 : 128;
        for (int k = b * m.block; k < (b + 1) * m.block; k++) value[(size_t)r * m.kpad() + k] += usual - zero;
        const bool rows = m.layout == ROWS;
        const size_t line = (rows ? r : r / LANES) * m.zero_bytes();
        uint8_t& byte = zeros[line + (rows ? nibbles ? b / 2 : b : nibbles ? b * 8 + r % 8 : b * LANES + r % LANES)];
        const int shift = !nibbles ? 0 : rows ? b % 2 * 4 : r % LANES / 8 * 4;
        byte = (uint8_t)(nibbles ? (byte & ~(15 << shift)) | zero << shift : zero);
      }
  }
  // Inputs from k on, and outputs from n on in the packed layout, are garbage.
  void quantized(Random& random) {
    const int rows = m.layout == ROWS ? m.n : m.groups() * LANES, codes = 1 << bits_of(m.format);
    data.assign((size_t)rows * m.kpad() * bits_of(m.format) / 8, 0);
    scales.resize((size_t)rows * m.blocks());
    scale.resize((size_t)m.n * m.blocks());
    for (int r = 0; r < rows; r++) {
      for (int k = 0; k < m.kpad(); k++) {
        const int q = r < m.n ? random.below(codes) : 3;
        store(r, k, q);
        if (r < m.n) value[(size_t)r * m.kpad() + k] = meant(q);
      }
      uint16_t h = 0;
      for (int b = 0; b < m.blocks(); b++) {
        if (!b || !m.row_scales()) h = random.half(random.below(9) ? 0x0c00 : 0, 0x2800);
        size_t to = m.layout == ROWS ? (size_t)r * m.blocks() + b
                                     : ((size_t)(r / LANES) * m.blocks() + b) * LANES + r % LANES;
        scales[to] = r < m.n ? h : 0x7e00;
        if (r < m.n) scale[(size_t)r * m.blocks() + b] = from_half(h);
      }
    }
  }
};

// Rows as one instruction set makes them ready for a matrix.
struct Ready {
  const Floats& x;
  std::vector<int8_t> records;
  QuantizedActivations rows{};

  Ready(const Kernels& k, const Matrix& w, const Floats& from, int n) : x(from) {
    rows.x = x.data();
    if (!w.quantized()) return;
    records.assign(n * QuantizedActivations::row_bytes(w), 99);
    rows.records = records.data(), rows.steps = w.steps(), rows.step = w.step();
    const int cut = w.zeros ? w.blocks() / 3 * w.block_steps() : w.steps() / 3;
    for (int m = 0; m < n; m++)
      for (int part = 0; part < 2; part++)
        k.quantize(&x[(size_t)m * w.k], w, rows, m, part ? cut : 0, part ? w.steps() : cut);
  }
  QuantizedActivations from(const Matrix& w, int m) const {
    QuantizedActivations r = rows;
    r.x += (size_t)m * w.k;
    if (w.quantized()) r.records = r.record(m, 0);
    return r;
  }
  // Input k of row m, as the product sees it.
  double at(const Matrix& w, int m, int k) const {
    if (!w.quantized()) return x[(size_t)m * w.k + k];
    const int step = w.step(), place = w.format == INT4 || w.format == NL4 ? k / 8 * 8 + (k % 2 ? 4 : 0) + k % 8 / 2 : k;
    return (double)rows.record(m, k / step)[place % step] * rows.about(m, k / step).scale;
  }
};

static void check_ready(const Unit& u, const Weights& w, const Ready& plain, int n) {
  const Ready ready(*u.kernels, w.m, plain.x, n);
  const int zero = u.kernels->stands_for_zero(w.m), step = w.m.step(), each = w.m.block_steps();
  for (int m = 0; m < n; m++)
    for (int t = 0; t < w.m.steps(); t++) {
      const int8_t *q = ready.rows.record(m, t), *expected = plain.rows.record(m, t);
      const auto &got = ready.rows.about(m, t), &want = plain.rows.about(m, t);
      int sum = 0;
      for (int i = 0; i < step; i++) sum += q[i];
      const bool summed = w.m.zeros && (w.m.zeros_in_steps() || t % each == 0);
      check(std::equal(q, q + step, expected), "rows for " + w.name(), u.name);
      check(!std::memcmp(&got.scale, &want.scale, 4), "scales of rows for " + w.name(), u.name);
      check(got.offset == -zero * sum, "offsets of rows for " + w.name(), u.name);
      check(!summed || !std::memcmp(&got.sum, &want.sum, 4), "sums of rows for " + w.name(), u.name);
      check(!summed || !w.m.zeros_in_steps() || got.sum == (float)sum, "sums of steps for " + w.name(), u.name);
    }
}

// ---- products --------------------------------------------------------------------------------------

struct How {
  int epilogue = STORE, activation = SILU;
  bool bias = false;
  float softcap = 0.0f;
  bool by_group = false;
  std::string name() const {
    return std::string(epilogue == GLU ? activation == SILU ? ", silu" : ", gelu" : epilogue == ADD ? ", added" : "") +
           (bias ? ", bias" : "") + (softcap > 0.0f ? ", softcap" : "") + (by_group ? ", group by group" : "");
  }
};

static float before(int m, int n) { return (float)((m * 31 + n * 7) % 101) / 16.0f; }

static Floats multiply(const Kernels& k, const Weights& w, const Ready& ready, const Floats& bias, int row, int rows,
                       const How& how) {
  int outs = how.epilogue == GLU ? w.m.n / 2 : w.m.n, stride = outs + 3, groups = (outs + LANES - 1) / LANES;
  Floats out((size_t)rows * stride);
  for (int m = 0; m < rows; m++)
    for (int n = 0; n < stride; n++) out[(size_t)m * stride + n] = before(row + m, n);
  std::vector<uint8_t> scratch(w.m.scratch());
  Product p{w.m, ready.from(w.m, row), how.bias ? bias.data() : nullptr, out.data(), stride, rows, how.epilogue,
            how.activation, how.softcap};
  if (!how.by_group) k.product(p, 0, groups, scratch.data());
  else
    for (int g = groups - 1; g >= 0; g--) k.product(p, g, g + 1, scratch.data());
  return out;
}

static void oracle(const Weights& w, const Ready& ready, const Floats& bias, int rows, const How& how,
                   const Floats& got) {
  int outs = how.epilogue == GLU ? w.m.n / 2 : w.m.n;
  std::vector<double> want, off;
  for (int m = 0; m < rows; m++)
    for (int n = 0; n < outs + 3; n++) {
      want.push_back(before(m, n)), off.push_back(0);
      if (n >= outs) continue;
      double y[2] = {}, size[2] = {};
      for (int half = 0; half < (how.epilogue == GLU ? 2 : 1); half++) {
        int at = n + half * outs;
        for (int k = 0; k < w.m.k; k++) {
          double term = w.at(at, k) * ready.at(w.m, m, k);
          y[half] += term, size[half] += std::fabs(term);
        }
        if (how.bias) y[half] += bias[at];
      }
      double result = how.epilogue == GLU ? activation(y[0], how.activation) * y[1] : y[0];
      if (how.softcap > 0.0f) result = how.softcap * std::tanh(result / how.softcap);
      want.back() = how.epilogue == ADD ? want.back() + result : result;
      off.back() = 2e-6 * (1 + size[0]) * (how.epilogue == GLU ? 1 + size[1] : 1) + 3e-7 * how.softcap;
    }
  near(got, want, off, w.name() + how.name());
}

constexpr int MOST = 64;  // rows

static void check_product(const std::vector<Unit>& all, int format, int n, int k, int block, unsigned seed,
                          bool zeros = false, bool row_scales = false) {
  const Weights packed(format, INTERLEAVE16, n, k, block, seed, zeros, row_scales);
  Random random(seed + 1);
  Floats x = random.bells((size_t)MOST * k), bias = random.bells(n);
  for (int i = 0; i < k; i++) x[i] *= i / 40 % 3 ? 1000.0f : 0.0f;  // whole steps of zero
  const Ready plain(*all[0].kernels, packed.m, x, MOST);
  if (packed.m.quantized())
    for (int m = 0; m < MOST; m++)
      for (int t = 0; t < packed.m.steps(); t++) {
        digested(plain.rows.record(m, t), packed.m.step());
        digested(&plain.rows.about(m, t).scale, 4);
      }

  std::vector<How> hows(1);
  hows.push_back({STORE, SILU, true, 0.0f, true});
  hows.push_back({ADD, SILU, false, 0.0f, false});
  hows.push_back({ADD, SILU, true, 30.0f, true});
  if (n % (2 * LANES) == 0) {
    hows.push_back({GLU, SILU, false, 0.0f, false});
    hows.push_back({GLU, GELU_TANH, true, 0.0f, true});
    hows.push_back({GLU, GELU_TANH, false, 7.0f, false});
  }
  std::vector<Floats> wants;
  for (const How& how : hows) {
    int rows = wants.empty() ? MOST : 5;
    wants.push_back(multiply(*all[0].kernels, packed, plain, bias, 0, rows, how));
    digested(wants.back().data(), 4 * wants.back().size());
    oracle(packed, plain, bias, 5, how, wants.back());
  }
  for (int layout : {INTERLEAVE16, ROWS}) {
    if (layout == ROWS && !packed.m.quantized()) continue;
    Weights w = packed;
    if (layout == ROWS) w = Weights(format, ROWS, n, k, block, seed, zeros, row_scales);
    w.at_home();
    for (const Unit& u : all) {
      const Ready ready(*u.kernels, w.m, x, MOST);
      if (w.m.quantized()) check_ready(u, w, plain, MOST);
      for (size_t i = 0; i < hows.size(); i++)
        same(wants[i], multiply(*u.kernels, w, ready, bias, 0, i ? 5 : MOST, hows[i]), w.name() + hows[i].name(),
             u.name);
      size_t stride = (size_t)n + 3;
      for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
        int row = rows == 17 ? MOST - 17 : rows * 3;
        const Floats among(&wants[0][row * stride], &wants[0][row * stride] + rows * stride);
        same(among, multiply(*u.kernels, w, ready, bias, row, rows, hows[0]),
             w.name() + ", " + std::to_string(rows) + " rows", u.name);
      }
    }
  }
}

// Zero points that all say what is said without them: of int4 the same bytes.
static void check_usual_zeros(const std::vector<Unit>& all, int format, int n, int k, int block, unsigned seed) {
  const Weights plain(format, INTERLEAVE16, n, k, block, seed);
  Weights with = plain;
  with.m.zeros = &NOTHING;
  with.zeros.assign(with.m.groups() * with.m.zero_bytes(), format == INT4 ? 0x88 : 0x80);
  with.at_home();
  Random random(seed + 1);
  const Floats x = random.bells((size_t)9 * k), bias = random.bells(n);
  for (const Unit& u : all) {
    const Ready ready(*u.kernels, plain.m, x, 9), ready_with(*u.kernels, with.m, x, 9);
    for (int rows : {1, 9})
      same(multiply(*u.kernels, plain, ready, bias, 0, rows, How()), multiply(*u.kernels, with, ready_with, bias, 0, rows, How()),
           with.name() + " as usual", u.name);
  }
}

// ---- what stands between -----------------------------------------------------------------------------

// Every unit's floats are the first's, and those are near the oracle.
template <class Run>
static void check_op(const std::vector<Unit>& all, const std::string& what, const std::vector<double>& exact,
                     double off, Run run) {
  const Floats want = run(*all[0].kernels);
  digested(want.data(), 4 * want.size());
  std::vector<double> offs;
  for (double x : exact) offs.push_back(off * (1 + std::fabs(x)));
  near(want, exact, offs, what);
  for (const Unit& u : all) same(want, run(*u.kernels), what, u.name);
}

static void check_ops(const std::vector<Unit>& all) {
  Random random(77);
  for (int n : {1, 7, 15, 16, 17, 31, 100, 576}) {
    const std::string of = " of " + std::to_string(n);
    const Floats x = random.bells(n), y = random.bells(n);
    std::vector<double> exact(n);
    double squares = 0;
    for (float v : x) squares += (double)v * v;
    for (int i = 0; i < n; i++) exact[i] = x[i] / std::sqrt(squares / n + 1e-5) * y[i];
    check_op(all, "norm" + of, exact, 1e-6, [&](const Kernels& k) {
      Floats out(n);
      k.norm(x.data(), y.data(), n, 1e-5f, out.data());
      return out;
    });
    for (int i = 0; i < n; i++) exact[i] = (double)x[i] + y[i];
    check_op(all, "add" + of, exact, 1e-7, [&](const Kernels& k) {
      Floats out = y;
      k.add(x.data(), n, out.data());
      return out;
    });
    for (int kind : {SILU, GELU, GELU_TANH}) {
      Floats gate = x;
      for (int i = 0; i < n; i++) gate[i] *= i % 4 == 3 ? 60.0f : 3.0f;
      for (int i = 0; i < n; i++) exact[i] = activation(gate[i], kind) * y[i];
      check_op(all, "glu" + of, exact, 2e-6, [&](const Kernels& k) {
        Floats out(n);
        k.glu(gate.data(), y.data(), n, kind, out.data());
        return out;
      });
    }
    const Floats both = random.bells(2 * n + 5), cos = random.bells(n), sin = random.bells(n);
    exact.assign(both.begin(), both.end());
    for (int i = 0; i < n; i++) {
      exact[i] = (double)both[i] * cos[i] - (double)both[n + i] * sin[i];
      exact[n + i] = (double)both[n + i] * cos[i] + (double)both[i] * sin[i];
    }
    check_op(all, "rope" + of, exact, 1e-6, [&](const Kernels& k) {
      Floats out = both;
      k.rope(out.data(), (int)out.size(), cos.data(), sin.data(), n);
      return out;
    });
  }
  for (int format : {F32, F16, INT8, INT4, INT3, INT2, NL4, MX4})
    for (int layout : {ROWS, INTERLEAVE16}) {
      bool floats = format == F32 || format == F16;
      if (floats && layout == INTERLEAVE16) continue;
      for (int k : {1, 16, 83, 84}) {
        const bool planes = in_planes(format) || format == NL4;  // or a table: blocks of 32, no zero points
        const Weights w(format, layout, 21, k, floats ? 0 : k > 80 || planes ? 32 : 16, 5, !floats && !planes && k == 84);
        for (int row : {0, 7, 15, 16, 20}) {
          std::vector<double> exact(k);
          for (int i = 0; i < k; i++) exact[i] = w.at(row, i) * 3.7f;
          check_op(all, "embed from " + w.name(), exact, 1e-6, [&](const Kernels& kernels) {
            Floats out(k);
            kernels.embed(w.m, row, 3.7f, out.data());
            return out;
          });
        }
      }
    }
}

// What a draw is found by, in rows of any length with infinities and a NaN anywhere.
static void check_scans(const std::vector<Unit>& all) {
  std::mt19937 random(5);
  const float infinity = std::numeric_limits<float>::infinity();
  for (int n : {1, 15, 16, 63, 64, 65, 100, 257, 1000})
    for (int width : {64, 128, 192})
      for (int kind = 0; kind < 4; kind++) {
        Floats x(n), want(width, -infinity);
        for (float& v : x) v = (float)(int)(random() % 41 - 20) / 4, v = random() % 9 ? v : -infinity;
        if (kind) x[random() % n] = kind == 1 ? infinity : kind == 2 ? std::nanf("") : 5.0f;
        for (int i = 0; i < n; i++) {
          float& most = want[i < n / 16 * 16 ? i % width : 0];
          most = x[i] > most ? x[i] : most;
        }
        std::vector<int32_t> places;
        for (int i = 0; i < n; i++)
          if (x[i] >= 1.25f) places.push_back(i);
        for (const Unit& u : all) {
          Floats got(width);
          check(u.kernels->maxima(x.data(), n, width, got.data()) == (kind == 1 || kind == 2), "strange", u.name);
          same(want, got, "maxima", u.name);
          std::vector<int32_t> found(n);
          found.resize(u.kernels->at_least(x.data(), n, 1.25f, found.data()));
          check(found == places, "at_least", u.name);
        }
      }
}

int main() {
  const std::vector<Unit> all = units();
  std::printf("runs:");
  for (const Unit& u : all) std::printf(" %s", u.name);
  std::printf("\n");
  check_ops(all);
  check_scans(all);
  unsigned seed = 1;
  for (int format : {INT4, INT8})
    for (int block : {16, 32, 64, 128, 256}) {
      check_product(all, format, 37, 300, block, seed += 10);
      check_product(all, format, 64, 77, block, seed += 10);
      check_product(all, format, 3, 9, block, seed += 10);
    }
  for (int format : {INT3, INT2})
    for (int block : {32, 64, 128, 256}) {
      check_product(all, format, 37, 300, block, seed += 10);
      check_product(all, format, 64, 77, block, seed += 10);
      check_product(all, format, 3, 9, block, seed += 10);
    }
  for (int format : {NL4, MX4}) {
    check_product(all, format, 37, 300, 32, seed += 10);
    check_product(all, format, 64, 77, 32, seed += 10);
    check_product(all, format, 3, 9, 32, seed += 10);
  }
  for (int format : {F32, F16}) {
    check_product(all, format, 37, 75, 0, seed += 10);
    check_product(all, format, 32, 16, 0, seed += 10);
    check_product(all, format, 1, 3, 0, seed += 10);
  }
  for (int format : {INT4, INT8})
    for (int block : {32, 64, 128, 256}) {
      check_product(all, format, 37, 300, block, seed += 10, true);
      check_product(all, format, 64, 77, block, seed += 10, true);
      check_product(all, format, 3, 9, block, seed += 10, true);
    }
  // Rows of less than a line of 64 inputs, of whole lines, and with half a line or less at the end.
  for (int k : {9, 64, 77, 96, 300}) check_product(all, INT8, k == 300 ? 37 : 64, k, 32, seed += 10, false, true);
  for (int block : {32, 64, 128}) check_usual_zeros(all, INT4, 48, 200, block, seed += 10);
  std::printf("digest: %016llx\nfailures: %d\n", (unsigned long long)digest, failures);
  return failures ? 1 : 0;
}
