// Operations between the products: norms, quantizing, rope, activations, embedding rows.
#pragma once
#include <cfloat>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "simd/wide.h"

namespace ED_NS {

static void norm(const float* x, const float* weight, int n, float eps, float* y) {
  vf squares = vset(0.0f);
  for (int i = 0; i < n; i += 16) {
    vf a = vload_n(x + i, n - i);
    squares = vfma(a, a, squares);
  }
  // A value that is not finite makes its whole row NaN: 1 / inf would silently turn it into zeros.
  float mean = vsum(squares) / (float)n;
  vf scale = vset(mean <= FLT_MAX ? 1.0f / std::sqrt(mean + eps) : NAN);
  for (int i = 0; i < n; i += 16)
    vstore_n(y + i, vmul(vmul(vload_n(x + i, n - i), scale), vload_n(weight + i, n - i)), n - i);
}

static void layer_norm(const float* x, const float* weight, const float* bias, int n, float eps, float* y) {
  vf sum = vset(0.0f), squares = vset(0.0f);
  for (int i = 0; i < n; i += 16) sum = vadd(sum, vload_n(x + i, n - i));
  const vf mean = vset(vsum(sum) / (float)n);
  for (int i = 0; i < n; i += 16) {
    const vf d = vload_n(x + i, n - i);
    float t[16];
    vstore(t, vsub(d, mean));
    const vf centered = vload_n(t, n - i);  // lanes past the end stay zero
    squares = vfma(centered, centered, squares);
  }
  const float variance = vsum(squares) / (float)n;
  const vf scale = vset(variance <= FLT_MAX ? 1.0f / std::sqrt(variance + eps) : NAN);
  for (int i = 0; i < n; i += 16) {
    vf v = vmul(vmul(vsub(vload_n(x + i, n - i), mean), scale), vload_n(weight + i, n - i));
    if (bias) v = vadd(v, vload_n(bias + i, n - i));
    vstore_n(y + i, v, n - i);
  }
}

// Sixteen bytes, every eight of them put in the order 0 2 4 6 1 3 5 7.
ED_IN void order16(int8_t* q) {
#if defined(__AVX2__)
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  _mm_storeu_si128((__m128i*)q, _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)q), order));
#else
  for (int half = 0; half < 2; half++) {
    uint64_t x;
    std::memcpy(&x, q + 8 * half, 8);
    auto even = [](uint64_t b) {
      b &= 0x00ff00ff00ff00ffu;
      b = (b | b >> 8) & 0x0000ffff0000ffffu;
      return (b | b >> 16) & 0xffffffffu;
    };
    x = even(x) | even(x >> 8) << 32;
    std::memcpy(q + 8 * half, &x, 8);
  }
#endif
}

// The amount that `offset` subtracts from each weight in products.
static int stands_for_zero(const Matrix& w) {
  if (w.format == INT8 || w.format == NL4) return OFFSET8;
  if (in_planes(w.format)) return code_zero(w.format);
  return ZERO_BYTES && w.zeros_in_steps() ? 15 : 8;  // so that bytes hold weights less their zero points
}

// 16 inputs from x + at on, zeros after the row's end; the largest so far; 0, and NaN where there is a NaN or an infinity.
ED_IN vf measured(const float* x, int at, int k, vf& top, vf& nothing) {
  const vf v = at < k ? vload_n(x + at, k - at) : vset(0.0f);
  top = vmax(top, vabs(v));
  nothing = vadd(nothing, vsub(v, v));
  return v;
}

// A row as one record.
static void quantize_row(const float* x, const Matrix& w, const QuantizedActivations& a, int m) {
  int8_t* q = a.record(m, 0);
  vf top = vset(0.0f), nothing = vset(0.0f), total = vset(0.0f);
  for (int at = 0; at < w.k; at += 16) measured(x, at, w.k, top, nothing);
  const float size = vtop(top) + vsum(nothing), inverse = size > 0.0f ? 127.0f / size : 0.0f;
  for (int at = 0; at < a.step; at += 16) {
    vstore_i8(q + at, vmul(at < w.k ? vload_n(x + at, w.k - at) : vset(0.0f), vset(inverse)));
    total = vadd(total, vload_i8(q + at));
  }
  const int sum = (int)vsum(total);  // exact: below 2^24 in 131,072 inputs
  a.about(m, 0) = {size * (1.0f / 127.0f), -stands_for_zero(w) * sum, (float)sum, -sum};
}

static void quantize(const float* x, const Matrix& w, const QuantizedActivations& a, int m, int step0, int step1) {
  if (w.row_scales()) return quantize_row(x, w, a, m);
  const int k = w.k, step = w.step(), per_block = w.block_steps(), zero = stands_for_zero(w);
  float of_block = 0.0f;
  for (int t = step0; t < step1; t++) {
    int8_t* q = a.record(m, t);
    vf v[2], top = vset(0.0f), nothing = vset(0.0f);
    for (int i = 0; i < step / 16; i++) v[i] = measured(x, t * step + i * 16, k, top, nothing);
    // NaN where there is a NaN or an infinity: then the scale is, and so all outputs.
    float size = vtop(top) + vsum(nothing), inverse = size > 0.0f ? 127.0f / size : 0.0f;
    vf total = vset(0.0f);
    for (int i = 0; i < step / 16; i++) {
      vf scaled = vmul(v[i], vset(inverse));
      vstore_i8(q + i * 16, scaled);
      total = vadd(total, vload_i8(q + i * 16));
      if (w.format == INT4 || w.format == NL4) order16(q + i * 16);
    }
    QuantizedActivations::Step& about = a.about(m, t);
    const float sum = vsum(total);
    about = {size * (1.0f / 127.0f), -zero * (int32_t)sum, sum, -(int32_t)sum};
    if (!w.zeros || w.zeros_in_steps()) continue;
    if (t % per_block == 0) of_block = 0.0f;
    of_block += about.scale * sum;
    a.about(m, t - t % per_block).sum = of_block;
  }
}

static void rope(float* x, int dim, const float* cos, const float* sin, int pairs) {
  (void)dim;
  for (int i = 0; i < pairs; i += 16) {
    int n = pairs - i;
    vf a = vload_n(x + i, n), b = vload_n(x + pairs + i, n);
    vf c = vload_n(cos + i, n), s = vload_n(sin + i, n);
    vstore_n(x + i, vsub(vmul(a, c), vmul(b, s)), n);
    vstore_n(x + pairs + i, vadd(vmul(b, c), vmul(a, s)), n);
  }
}

static void glu(const float* gate, const float* up, int n, int activation, float* y) {
  for (int i = 0; i < n; i += 16) {
    vf g = vload_n(gate + i, n - i), u = vload_n(up + i, n - i);
    for (int j = 0; j < NV; j++) g.r[j] = nglu(g.r[j], u.r[j], activation);
    vstore_n(y + i, g, n - i);
  }
}

static void activate(const float* x, int n, int activation, float* y) {
  for (int i = 0; i < n; i += 16) {
    vf v = vload_n(x + i, n - i);
    for (int j = 0; j < NV; j++) v.r[j] = nactivate(v.r[j], activation);
    vstore_n(y + i, v, n - i);
  }
}

static void add(const float* x, int n, float* y) {
  for (int i = 0; i < n; i += 16) vstore_n(y + i, vadd(vload_n(y + i, n - i), vload_n(x + i, n - i)), n - i);
}

// The largest of n floats; NaN is passed over.
static float reduce_max(const float* x, int n) {
  vf top = vset(-INFINITY);
  int i = 0;
  for (; i + 16 <= n; i += 16) top = vmax(vload(x + i), top);
  float most = vtop(top);
  for (; i < n; i++) most = x[i] > most ? x[i] : most;
  return most;
}

// out[i] = the largest of x[i], x[i + width], ...; what is left over counts as of x[0]. Whether one is NaN or +infinity.
static bool maxima(const float* x, int n, int width, float* out) {
  const vf lowest = vset(-FLT_MAX);
  vf nothing = vset(0.0f);
  for (int at = 0; at < width; at += 64) {
    vf top[4] = {vset(-INFINITY), vset(-INFINITY), vset(-INFINITY), vset(-INFINITY)};
    for (int i = at; i < n; i += width)
      for (int j = 0; j < 4; j++) {
        if (i + 16 * j + 16 > n) break;
        const vf v = vload(x + i + 16 * j), finite = vmax(lowest, v);
        top[j] = vmax(v, top[j]);
        nothing = vadd(nothing, vsub(finite, finite));
      }
    for (int j = 0; j < 4; j++) vstore(out + at + 16 * j, top[j]);
  }
  float strange = vsum(nothing);
  for (int i = n / 16 * 16; i < n; i++) {
    out[0] = x[i] > out[0] ? x[i] : out[0];
    strange += (x[i] == x[i] && x[i] <= FLT_MAX) ? 0.0f : NAN;
  }
  return !(strange == 0.0f);
}

// The places of x[i] >= least, ascending.
static int at_least(const float* x, int n, float least, int32_t* out) {
  int found = 0, i = 0;
  for (; i + 16 <= n; i += 16) {
    uint32_t bits = vat_least(vload(x + i), vset(least));
    for (int at = i; bits; at++, bits >>= 1)
      if (bits & 1) out[found++] = at;
  }
  for (; i < n; i++)
    if (x[i] >= least) out[found++] = i;
  return found;
}

// The sum of exp((x - max) * scale) in 16 lanes; NaN where there is a NaN or an infinity.
static float sum_exp(const float* x, int n, float max, float scale) {
  vf sum = vset(0.0f), nothing = vset(0.0f);
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const vf v = vload(x + i);
    sum = vadd(sum, vexp(vmul(vsub(v, vset(max)), vset(scale))));
    nothing = vadd(nothing, vsub(v, v));
  }
  if (i < n) {
    const vf v = vload_n(x + i, n - i);
    float t[16];
    vstore(t, vexp(vmul(vsub(v, vset(max)), vset(scale))));
    sum = vadd(sum, vload_n(t, n - i));  // lanes past the end add nothing
    nothing = vadd(nothing, vsub(v, v));
  }
  return vsum(sum) + vsum(nothing);
}

// ---- embedding rows ----------------------------------------------------------------------------

// Word `word` (four bytes) of an output row.
ED_IN const uint8_t* quantized_word(const Matrix& w, int row, int word) {
  size_t row_bytes = w.group_bytes() / LANES;
  if (w.layout == ROWS) return w.data + row * row_bytes + (size_t)word * 4;
  return w.data + row / LANES * w.group_bytes() + (size_t)word * 64 + row % LANES * 4;
}

// The code of input k of an output row; of NL4 and MX4 what the table has for it.
ED_IN int code_of(const Matrix& w, int row, int k) {
  if (w.format == INT8) return quantized_word(w, row, k / 4)[k % 4];
  if (w.format == INT4 || w.format == NL4) {
    const int code = quantized_word(w, row, k / 8)[k % 8 / 2] >> (k & 1 ? 4 : 0) & 15;
    return w.format == INT4 ? code : NL4_VALUES[code];
  }
  const int words = step_lines(w.format, 32), first = k / 32 * words;
  if (w.format == INT5 || w.format == INT6 || w.format == MX4) {
    const int low = quantized_word(w, row, first + k % 32 / 8)[k % 4] >> k % 8 / 4 * 4 & 15;
    if (w.format == MX4) return MX4_VALUES[low];
    if (w.format == INT5) return low | (quantized_word(w, row, first + 4)[k % 4] >> k % 32 / 4 & 1) << 4;
    return low | (quantized_word(w, row, first + 4 + k % 32 / 16)[k % 4] >> 2 * (k % 16 / 4) & 3) << 4;
  }
  const int low = quantized_word(w, row, first + k % 32 / 16)[k % 4] >> 2 * (k % 16 / 4) & 3;
  if (w.format != INT3) return low;
  return low | (quantized_word(w, row, first + 2)[k % 4] >> k % 32 / 4 & 1) << 2;
}

// Where number `i` of the `count` of a row lies.
ED_IN size_t place_of(const Matrix& w, int row, int i, int count) {
  return w.layout == ROWS ? (size_t)row * count + i : ((size_t)(row / LANES) * count + i) * LANES + row % LANES;
}

// Number `i` of a row's scales or offsets: `all` are those of the matrix.
ED_IN float half_of(const Matrix& w, const uint16_t* all, int row, int i) {
  uint16_t t[W] = {all[place_of(w, row, i, w.scale_count())]};
  float f[W];
  nstore(f, nload_f16(t));
  return f[0];
}

// The scale of a block, and its offset, if it has one.
ED_IN float scale_of(const Matrix& w, int row, int block, float& offset) {
  if (w.offsets == 1) offset = half_of(w, (const uint16_t*)w.zeros, row, block);
  if (!w.parts()) return half_of(w, w.scales, row, block);
  const uint8_t part = w.zeros[place_of(w, row, block, w.blocks())];
  const int super = block * w.block / SUPER;
  if (w.format != UINT2) return (float)(int8_t)part * half_of(w, w.scales, row, super);
  offset = (float)(part >> 4) * half_of(w, w.scales, row, 2 * super + 1);
  return (float)(part & 15) * half_of(w, w.scales, row, 2 * super);
}

// 16 inputs of a row of int8 from k on, less the code of zero.
ED_IN vf int8_codes(const Matrix& w, int row, int k) {
  uint32_t words[4];
  for (int i = 0; i < 4; i++) {
    std::memcpy(&words[i], quantized_word(w, row, k / 4 + i), 4);
    words[i] ^= 0x80808080u;
  }
  return vload_i8((const int8_t*)words);
}

static void embed(const Matrix& w, int row, float scale, float* y) {
  int k = w.k;
  if (!w.quantized()) {
    for (int i = 0; i < k; i += 16) {
      vf v = w.format == F32 ? float_weights<F32>(w, row, i) : float_weights<F16>(w, row, i);
      vstore_n(y + i, vmul(v, vset(scale)), k - i);
    }
    return;
  }
  float block_scale = 0.0f, offset = 0.0f;
  int zero = 0;
  if (w.format == INT8 && w.block % 16 == 0 && !w.zeros && !w.offsets) {
    for (int i = 0; i < k; i += 16) {
      if (i % w.block == 0) block_scale = scale_of(w, row, i / w.block, offset);
      vstore_n(y + i, vmul(vmul(int8_codes(w, row, i), vset(block_scale)), vset(scale)), k - i);
    }
    return;
  }
  for (int i = 0; i < k; i++) {
    if (i % w.block == 0) {
      block_scale = scale_of(w, row, i / w.block, offset), zero = w.zero(row, i / w.block);
    }
    const float y0 = (float)(code_of(w, row, i) * code_step(w.format) - zero) * block_scale;
    y[i] = (w.offsets ? y0 + offset : y0) * scale;  // without one it adds 0
  }
}

}  // namespace ED_NS
