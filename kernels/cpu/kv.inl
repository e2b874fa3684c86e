// Cached keys and values: one row in and out of each format. Layouts: kv.h.
#pragma once
#include <cfloat>
#include <cstring>

#include "kernels.h"
#include "simd/wide.h"

namespace ED_NS {

// The first n of 16 elements, zeros after them: nothing is read past a row's end.
template <class T>
struct Tail {
  T v[16] = {};
  Tail(const void* p, size_t bytes) { std::memcpy(v, p, bytes); }
};

// Zero in all but the first n lanes.
ED_IN vf vkeep(const vf& x, int n) {
  float t[16];
  vstore(t, x);
  return vload_n(t, n);
}

ED_IN float bf16_high(uint32_t pair) { pair &= 0xffff0000u; float f; std::memcpy(&f, &pair, 4); return f; }

template <class Do>
ED_IN void each_piece(int n, Do work) {
  int i = 0;
  for (; i + 4 <= n; i += 4) work(i), work(i + 1), work(i + 2), work(i + 3);
  for (; i < n; i++) work(i);
}

// A row is handed to put(piece, vf) in pieces of 16; those of an INT8 row are not yet scaled.
template <class Put>
ED_IN void expand_f32(const uint8_t* row, int dim, Put put) {
  const float* x = (const float*)row;
  each_piece(dim / 16, [=](int i) { put(i, vload(x + 16 * i)); });
  if (dim % 16) put(dim / 16, vload_n(x + dim / 16 * 16, dim % 16));
}

template <class Put>
ED_IN void expand_f16(const uint8_t* row, int dim, Put put) {
  const uint16_t* x = (const uint16_t*)row;
  each_piece(dim / 16, [=](int i) { put(i, vload_f16(x + 16 * i)); });
  if (dim % 16) put(dim / 16, vload_f16(Tail<uint16_t>(x + dim / 16 * 16, dim % 16 * 2).v));
}

template <class Put>
ED_IN void expand_int8(const uint8_t* row, int dim, Put put) {
  const int8_t* x = (const int8_t*)row;
  each_piece(dim / 16, [=](int i) { put(i, vload_i8(x + 16 * i)); });
  if (dim % 16) put(dim / 16, vload_i8(Tail<int8_t>(x + dim / 16 * 16, dim % 16).v));
}

template <class Put>
ED_IN void expand_int4(const uint8_t* row, int dim, Put put) {
  const uint8_t* scales = row + edgedec::kv_scale_at(dim, edgedec::INT4);
  for (int g = 0; g * 32 < dim; g++) {
    const int n = dim - g * 32;
    vf scale, least, low, high;
    if (n >= 32) {
      vload_nibbles(row + 16 * g, low, high);
    } else {
      Tail<uint8_t> t(row + 16 * g, (n + 1) / 2);
      low = vload_u4(t.v), high = vload_u4(t.v + 8);
    }
    // Past the row's end a nibble is 0 and would become `least`: those lanes are cleared.
    vspread_bf16(scales + 8 * g, scale, least);
    low = vfma(low, scale, least);
    put(2 * g, n >= 16 ? low : vkeep(low, n));
    if (n <= 16) return;
    vspread_bf16(scales + 8 * g + 4, scale, least);
    high = vfma(high, scale, least);
    put(2 * g + 1, n >= 32 ? high : vkeep(high, n - 16));
  }
}

template <int F, class Put>
ED_IN void expand(const uint8_t* row, int dim, Put put) {
  if (F == edgedec::F32) expand_f32(row, dim, put);
  if (F == edgedec::F16) expand_f16(row, dim, put);
  if (F == edgedec::INT8) expand_int8(row, dim, put);
  if (F == edgedec::INT4) expand_int4(row, dim, put);
}

ED_IN float int8_scale(const uint8_t* row, int dim) {
  float scale;
  std::memcpy(&scale, row + edgedec::kv_scale_at(dim, edgedec::INT8), 4);
  return scale;
}

static void load_kv(const uint8_t* row, int dim, int format, float* x) {
  auto put = [&](int i, const vf& v) { vstore_n(x + 16 * i, v, dim - 16 * i); };
  switch (format) {
    case edgedec::F32: return expand_f32(row, dim, put);
    case edgedec::F16: return expand_f16(row, dim, put);
    case edgedec::INT4: return expand_int4(row, dim, put);
  }
  const vf scale = vset(int8_scale(row, dim));
  expand_int8(row, dim, [&](int i, const vf& v) { put(i, vmul(v, scale)); });
}

// ---- storing ---------------------------------------------------------------------------------------

static void store_f16(const float* x, int dim, uint16_t* out) {
  for (int i = 0; i < dim; i += 16) {
    uint16_t half[16];
    vstore_f16(half, vload_n(x + i, dim - i));
    std::memcpy(out + i, half, (size_t)(dim - i < 16 ? dim - i : 16) * 2);
  }
  if (dim % 2) out[dim] = 0;  // rows are whole words
}

// 1 / scale; 0 if that is not a finite float.
ED_IN float inverse(float scale) { return scale >= FLT_MIN ? 1.0f / scale : 0.0f; }

static void store_int8(const float* x, int dim, uint8_t* out) {
  vf top = vset(0.0f);
  for (int i = 0; i < dim; i += 16) top = vmax(vabs(vload_n(x + i, dim - i)), top);  // NaN is ignored
  float scale = vtop(vmin(top, vset(FLT_MAX))) / 127.0f;
  if (scale < FLT_MIN) scale = 0.0f;
  const vf unit = vset(inverse(scale)), most = vset(127.0f);
  const auto rounded = [&](const vf& v) ED_INLINED { return vmin(vmax(vmul(v, unit), vset(-127.0f)), most); };
  int i = 0;
  for (; i + 16 <= dim; i += 16) vstore_i8((int8_t*)out + i, rounded(vload(x + i)));
  if (i < dim) {
    int8_t q[16];
    vstore_i8(q, rounded(vload_n(x + i, dim - i)));
    std::memcpy(out + i, q, (size_t)(dim - i));
  }
  for (int i = dim; i < edgedec::kv_scale_at(dim, edgedec::INT8); i++) out[i] = 0;
  std::memcpy(out + edgedec::kv_scale_at(dim, edgedec::INT8), &scale, 4);
}

ED_IN uint32_t float_bits(float x) { uint32_t b; std::memcpy(&b, &x, 4); return b; }
// The bfloat16 next to x on the side away from zero (toward zero if not `away`), in the high half.
ED_IN uint32_t bf16_bits(float x, bool away) { return (float_bits(x) + (away ? 0xffffu : 0)) & 0xffff0000u; }

struct Int4Scale {
  uint32_t pair;  // as stored
  float scale, least;
};

// Scale and least value are rounded so that 0 to 15 still cover the whole group.
static Int4Scale int4_scale(const float* x, int n) {
  const float limit = 1e38f;
  float least = limit, most = -limit;
  for (int i = 0; i < n; i++) {
    if (x[i] < least) least = x[i];
    if (x[i] > most) most = x[i];
  }
  if (!(most >= least)) least = most = 0.0f;  // nothing but NaN
  least = least < -limit ? -limit : least, most = most > limit ? limit : most;
  const uint32_t low = bf16_bits(least, least < 0.0f);
  least = bf16_high(low);
  uint32_t step = bf16_bits((most - least) / 15.0f, true);
  if (bf16_high(step) < FLT_MIN) step = 0;
  return {low | step >> 16, bf16_high(step), least};
}

static void store_int4(const float* x, int dim, uint8_t* out) {
  uint8_t* scales = out + edgedec::kv_scale_at(dim, edgedec::INT4);
  for (uint8_t* p = out; p < scales; p++) *p = 0;
  for (int g = 0; g * 32 < dim; g++) {
    const int n = dim - g * 32 < 32 ? dim - g * 32 : 32;
    int8_t u[32] = {};
    for (int i = 0; i < n; i += 16) {
      const Int4Scale s = int4_scale(x + g * 32 + i, n - i < 16 ? n - i : 16);
      std::memcpy(scales + 8 * g + i / 4, &s.pair, 4);
      const vf least = vset(s.least), unit = vset(inverse(s.scale)), most = vset(15.0f);
      vstore_i8(u + i, vmin(vmax(vmul(vsub(vload_n(x + g * 32 + i, n - i), least), unit), vset(0.0f)), most));
    }
    for (int i = 0; i < n; i++) {
      const int byte = n == 32 ? i % 16 : i / 2, high = n == 32 ? i / 16 : i % 2;
      out[16 * g + byte] |= (uint8_t)(u[i] << (4 * high));
    }
  }
}

static void store_kv(const float* x, int dim, int format, uint8_t* out) {
  switch (format) {
    case edgedec::F32: std::memcpy(out, x, (size_t)dim * 4); return;
    case edgedec::F16: return store_f16(x, dim, (uint16_t*)out);
    case edgedec::INT8: return store_int8(x, dim, out);
    case edgedec::INT4: return store_int4(x, dim, out);
  }
}

}  // namespace ED_NS
