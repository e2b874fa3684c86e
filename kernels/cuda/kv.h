// One key or value in and out of a cache page; layouts: kernels/cpu/kv.h.
#pragma once
#include "args.h"
#include "arith.h"

constexpr int KV_GROUP = 16;  // int4 values that share a scale

DEVICE int kv_scale_at(int dim, int format) { return ((format == INT8 ? dim : (dim + 1) / 2) + 3) / 4 * 4; }

DEVICE float inverse_of(float scale) { return scale >= FLOAT_LEAST ? 1.0f / scale : 0.0f; }

// ---- storing, by one warp --------------------------------------------------------------------------

DEVICE void store_int8(const float* x, int dim, uint8_t* out) {
  const int lane = THREAD & 31, end = kv_scale_at(dim, INT8);
  float top = 0.0f;
  for (int i = lane; i < dim; i += 32) top = larger(abs_(x[i]), top);
  for (int d = 16; d; d /= 2) top = larger(shuffle_xor(top, d), top);
  float scale = smaller(top, FLOAT_MAX) / 127.0f;
  if (scale < FLOAT_LEAST) scale = 0.0f;
  const float unit = inverse_of(scale);
  for (int i = lane; i < end; i += 32)
    out[i] = i < dim ? (uint8_t)round_int(smaller(larger(x[i] * unit, -127.0f), 127.0f)) : 0;
  if (lane == 0) *reinterpret_cast<float*>(out + end) = scale;
}

// The bfloat16 next to x on the side away from zero (toward zero if not `away`), in the high half.
DEVICE uint32_t bf16_bits(float x, bool away) { return (as_bits(x) + (away ? 0xffffu : 0u)) & 0xffff0000u; }

// Of up to 16 values: scale (high half of the first) and least value, rounded so that 0 to 15 cover the group.
DEVICE uint32_t int4_scale(const float* x, int n) {
  const float limit = 1e38f;
  float least = limit, most = -limit;
  for (int i = 0; i < n; i++) {
    if (x[i] < least) least = x[i];
    if (x[i] > most) most = x[i];
  }
  if (!(most >= least)) least = most = 0.0f;
  least = least < -limit ? -limit : least, most = most > limit ? limit : most;
  const uint32_t low = bf16_bits(least, least < 0.0f);
  least = as_float(low);
  uint32_t step = bf16_bits((most - least) / 15.0f, true);
  if (as_float(step) < FLOAT_LEAST) step = 0;
  return low | step >> 16;
}

DEVICE int int4_value(float x, uint32_t pair) {
  const float scale = as_float(pair << 16), least = as_float(pair & 0xffff0000u);
  return round_int(smaller(larger((x - least) * inverse_of(scale), 0.0f), 15.0f)) & 15;
}

// 32 values a lane.
DEVICE void store_int4(const float* x, int dim, uint8_t* out) {
  const int bytes = kv_scale_at(dim, INT4);
  uint32_t* scales = reinterpret_cast<uint32_t*>(out + bytes);
  for (int g = THREAD & 31; g * 32 < dim; g += 32) {
    const float* v = x + g * 32;
    const int n = min_(dim - g * 32, 32);
    const uint32_t low = int4_scale(v, min_(n, 16)), high = n > 16 ? int4_scale(v + 16, n - 16) : 0;
    scales[2 * g] = low;
    if (n > 16) scales[2 * g + 1] = high;
    for (int i = 0; i < 16 && g * 16 + i < bytes; i++) {
      const int first = n == 32 ? i : 2 * i, second = n == 32 ? i + 16 : 2 * i + 1;
      const int a = first < n ? int4_value(v[first], first < 16 ? low : high) : 0;
      const int b = second < n ? int4_value(v[second], second < 16 ? low : high) : 0;
      out[g * 16 + i] = (uint8_t)(a | b << 4);
    }
  }
}

DEVICE void store_kv(const float* x, int dim, int format, uint8_t* out) {
  const int lane = THREAD & 31;
  if (format == INT8) return store_int8(x, dim, out);
  if (format == INT4) return store_int4(x, dim, out);
  if (format == F32) {
    for (int i = lane; i < dim; i += 32) reinterpret_cast<float*>(out)[i] = x[i];
    return;
  }
  for (int i = lane; i < (dim + 1) / 2 * 2; i += 32)
    reinterpret_cast<uint16_t*>(out)[i] = i < dim ? float_to_half(x[i]) : 0;
}

// ---- reading: element i of a row; of int8 not yet scaled -------------------------------------------

DEVICE float kv_int4(const uint8_t* row, int dim, int i) {
  const int g = i / 32, in = i % 32, byte = dim - g * 32 >= 32 ? in % 16 : in / 2, high = dim - g * 32 >= 32 ? in / 16 : in & 1;
  const uint32_t pair = reinterpret_cast<const uint32_t*>(row + kv_scale_at(dim, INT4))[2 * g + in / 16];
  return fma_((float)(row[16 * g + byte] >> 4 * high & 15), as_float(pair << 16), as_float(pair & 0xffff0000u));
}

template <int FORMAT>
DEVICE float kv_element(const uint8_t* row, int dim, int i) {
  if (FORMAT == F32) return reinterpret_cast<const float*>(row)[i];
  if (FORMAT == F16) return half_to_float(reinterpret_cast<const uint16_t*>(row)[i]);
  if (FORMAT == INT8) return (float)reinterpret_cast<const int8_t*>(row)[i];
  return kv_int4(row, dim, i);
}

// Elements i to i + 3; i and dim are multiples of 4. Of integers the four are read at once.
template <int FORMAT>
DEVICE void kv_four(const uint8_t* row, int dim, int i, float* to) {
  if (FORMAT == INT8) {
    const uint32_t four = *reinterpret_cast<const uint32_t*>(row + i);
    UNROLL
    for (int j = 0; j < 4; j++) to[j] = (float)(int8_t)(four >> 8 * j & 255);
    return;
  }
  if (FORMAT == INT4 && i / 32 * 32 + 32 <= dim) {
    const uint32_t pair = reinterpret_cast<const uint32_t*>(row + kv_scale_at(dim, INT4))[i / 16];
    const uint32_t four = *reinterpret_cast<const uint32_t*>(row + i / 32 * 16 + i % 16) >> i / 16 % 2 * 4;
    UNROLL
    for (int j = 0; j < 4; j++)
      to[j] = fma_((float)(four >> 8 * j & 15), as_float(pair << 16), as_float(pair & 0xffff0000u));
    return;
  }
  UNROLL
  for (int j = 0; j < 4; j++) to[j] = kv_element<FORMAT>(row, dim, i + j);
}

// Elements i to i + 15, zeros after the last; i is a multiple of 16.
template <int FORMAT>
DEVICE void kv_sixteen(const uint8_t* row, int dim, int i, float* to) {
  if (dim % 4 == 0 && i + 16 <= dim) {
    UNROLL
    for (int j = 0; j < 16; j += 4) kv_four<FORMAT>(row, dim, i + j, to + j);
    return;
  }
  UNROLL
  for (int l = 0; l < 16; l++) to[l] = i + l < dim ? kv_element<FORMAT>(row, dim, i + l) : 0.0f;
}

// The remaining scale of an element; 1 except for int8.
template <int FORMAT>
DEVICE float kv_factor(const uint8_t* row, int dim) {
  return FORMAT == INT8 ? *reinterpret_cast<const float*>(row + kv_scale_at(dim, INT8)) : 1.0f;
}
