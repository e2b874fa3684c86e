// ARM with dot products: 4 lanes. With ED_I8MM, products of two rows or more go through 8-bit matrix products.
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

// A value that the compiler must take as changed.
#if defined(_MSC_VER)
#define ED_OPAQUE(x) (void)(x)
#else
#define ED_OPAQUE(x) asm volatile("" : "+w"(x))
#endif

namespace ED_NS {

constexpr int W = 4;
constexpr int TILE_M = 4;
constexpr int TILE_MANY = 4;
constexpr int ROWS_M = TILE_MANY;
constexpr int TILE_V = 4;  // a whole group: a line of weights is read at once

using nf = float32x4_t;
using ni = int32x4_t;

ED_IN nf nzero() { return vdupq_n_f32(0.0f); }
ED_IN nf nset(float x) { return vdupq_n_f32(x); }
ED_IN nf nload(const float* p) { return vld1q_f32(p); }
ED_IN void nstore(float* p, nf x) { vst1q_f32(p, x); }
ED_IN nf nadd(nf a, nf b) { return vaddq_f32(a, b); }
ED_IN nf nsub(nf a, nf b) { return vsubq_f32(a, b); }
ED_IN nf nmul(nf a, nf b) { return vmulq_f32(a, b); }
ED_IN nf ndiv(nf a, nf b) { return vdivq_f32(a, b); }
// Not vmaxq, vminq: of NaN and of two zeros they keep another one.
ED_IN nf nmax(nf a, nf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
ED_IN nf nmin(nf a, nf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
ED_IN uint32_t nat_least(nf a, nf b) {
  const uint32_t bits[W] = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(vcgeq_f32(a, b), vld1q_u32(bits)));
}
ED_IN nf nabs(nf a) { return vabsq_f32(a); }
ED_IN nf nfma(nf a, nf b, nf c) { return vfmaq_f32(c, a, b); }
ED_IN nf nfloat(ni a) { return vcvtq_f32_s32(a); }
ED_IN ni nround(nf a) {
  return vbslq_s32(vcaltq_f32(a, vdupq_n_f32(2147483648.0f)), vcvtnq_s32_f32(a), vdupq_n_s32(INT32_MIN));
}
ED_IN nf nexp2(ni n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)); }
ED_IN ni niset(int x) { return vdupq_n_s32(x); }
ED_IN ni niadd(ni a, ni b) { return vaddq_s32(a, b); }
ED_IN ni nishl8(ni a) { return vshlq_n_s32(a, 8); }
ED_IN void nistore(uint8_t* p, ni x) { vst1q_u8(p, vreinterpretq_u8_s32(x)); }
ED_IN nf nload_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
ED_IN void nstore_f16(uint16_t* p, nf x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
ED_IN nf nload_i8(const int8_t* p) {
  uint32_t x;
  std::memcpy(&x, p, 4);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(x)))));
}
ED_IN void nstore_i8(int8_t* p, ni x) {
  int16x4_t h = vmovn_s32(x);
  int8x8_t b = vmovn_s16(vcombine_s16(h, h));
  uint32_t y = vget_lane_u32(vreinterpret_u32_s8(b), 0);
  std::memcpy(p, &y, 4);
}
ED_IN nf nload_u4(const uint8_t* p) {
  uint32_t x = p[0] | (uint32_t)p[1] << 16;
  x = (x | x << 4) & 0x0f0f0f0f;  // a nibble a byte
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(x)))));
}
ED_IN nf nload_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
ED_IN void nspread_bf16(const uint8_t* p, nf& low, nf& high) {
  uint32x4_t pair = vld1q_dup_u32((const uint32_t*)p);
  low = vreinterpretq_f32_u32(vshlq_n_u32(pair, 16));
  high = vreinterpretq_f32_u32(vandq_u32(pair, vdupq_n_u32(0xffff0000u)));
}
ED_IN void nload_nibbles(const uint8_t* p, nf& low, nf& high) {
  uint32_t x;
  std::memcpy(&x, p, 4);
  uint16x4_t b = vget_low_u16(vmovl_u8(vcreate_u8(x)));
  low = vcvtq_f32_u32(vmovl_u16(vand_u16(b, vdup_n_u16(15))));
  high = vcvtq_f32_u32(vmovl_u16(vshr_n_u16(b, 4)));
}
ED_IN float nsum(nf a) {
  float32x2_t h = vadd_f32(vget_low_f32(a), vget_high_f32(a));
  return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
ED_IN nf nsums(const nf* a) {
  float64x2_t x[4];
  for (int i = 0; i < 4; i++) x[i] = vreinterpretq_f64_f32(a[i]);
  nf y[2];
  for (int i = 0; i < 2; i++)
    y[i] = vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(x[2 * i], x[2 * i + 1])),
                     vreinterpretq_f32_f64(vzip2q_f64(x[2 * i], x[2 * i + 1])));
  return vpaddq_f32(y[0], y[1]);
}
ED_IN float ntop(nf a) { return vmaxvq_f32(a); }
ED_IN void nprefetch(const void* p) {
#ifdef _MSC_VER
  __prefetch(p);
#else
  __builtin_prefetch(p);
#endif
}

// ---- products: signed weight bytes (int4: 0 to 15) and signed activation bytes -----------------

#define ED_OWN_STEP 1  // gemm.inl leaves whole steps to `step_sums`

constexpr bool ZERO_BYTES = false;
constexpr int OFFSET8 = 0;

// How many of a tile's v vectors have a step of theirs summed at once, so that all sums stay in registers.
constexpr int step_vectors(int m, int v) { return m == 1 ? v : 1; }
// Whether the sums of m rows by v vectors stay in registers beside those of a step.
constexpr bool keeps_sums(int m, int) { return m == 1; }

using acc4 = ni;
using w8 = int8x16_t;
struct Pair {
  int8x16_t lo, hi;
};
ED_IN uint8x16_t nbytes(const uint8_t* p) { return vld1q_u8(p); }
ED_IN int8x16_t nspread(const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
ED_IN Pair nibbles(uint8x16_t raw) {
  return {vreinterpretq_s8_u8(vandq_u8(raw, vdupq_n_u8(15))), vreinterpretq_s8_u8(vshrq_n_u8(raw, 4))};
}
// What the nibbles stand for in NL4.
ED_IN Pair looked_up(uint8x16_t raw) {
  const int8x16_t table = vld1q_s8(edgedec::NL4_VALUES);
  return {vqtbl1q_s8(table, vandq_u8(raw, vdupq_n_u8(15))), vqtbl1q_s8(table, vshrq_n_u8(raw, 4))};
}
ED_IN w8 ready8(uint8x16_t raw) { return vreinterpretq_s8_u8(veorq_u8(raw, vdupq_n_u8(128))); }
ED_IN acc4 begin4(int c) { return vdupq_n_s32(c); }
ED_IN acc4 dot4(acc4 a, int8x16_t w, int8x16_t x) { return vdotq_s32(a, w, x); }
ED_IN ni end4(acc4 a, int) { return a; }
using acc8 = ni;
ED_IN acc8 begin8(int c) { return vdupq_n_s32(c); }
ED_IN acc8 dot8(acc8 a, w8 w, int8x16_t x) { return vdotq_s32(a, w, x); }
ED_IN ni end8(acc8 a, int) { return a; }

// 8 or 128 less the zero points of W outputs of a block: of int4 the nibbles at `shift` of 4 bytes.
ED_IN ni widened4(const uint8_t* p) {
  uint32_t x;
  std::memcpy(&x, p, 4);
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(x)))));
}
ED_IN nf nload_zeros4(const uint8_t* p, int shift) {
  ni z = vandq_s32(vshlq_s32(widened4(p), vdupq_n_s32(-shift)), vdupq_n_s32(15));
  return vcvtq_f32_s32(vsubq_s32(vdupq_n_s32(8), z));
}
ED_IN nf nload_zeros8(const uint8_t* p) { return vcvtq_f32_s32(vsubq_s32(vdupq_n_s32(128), widened4(p))); }

// Of each byte the bits of MASK, after a shift to the right by BY (to the left where it is negative).
template <int BY, int MASK>
ED_IN uint8x16_t nbits(uint8x16_t raw) {
  const uint8x16_t mask = vdupq_n_u8(MASK);
  if constexpr (BY < 0) return vandq_u8(vshlq_n_u8(raw, -BY), mask);
  else if constexpr (BY > 0) return vandq_u8(vshrq_n_u8(raw, BY), mask);
  else return vandq_u8(raw, mask);
}
ED_IN uint8x16_t nor8(uint8x16_t a, uint8x16_t b) { return vorrq_u8(a, b); }
// What MX4 has for codes of 0 to 15, a byte each.
ED_IN uint8x16_t nlooked(uint8x16_t codes) { return vqtbl1q_u8(vld1q_u8(edgedec::MX4_VALUES), codes); }
// See gemm.inl.
template <int FORMAT, int AT>
ED_IN auto plane_bytes(const uint8_t* step);
template <int FORMAT, int EIGHT>
ED_IN Pair planes_of_eight(const uint8_t* w) {
  return {vreinterpretq_s8_u8(plane_bytes<FORMAT, 2 * EIGHT>(w)), vreinterpretq_s8_u8(plane_bytes<FORMAT, 2 * EIGHT + 1>(w))};
}

// The weights of the first and the second four of the stored inputs 8 * eight to 8 * eight + 7 of a step, four outputs each.
template <int FORMAT>
ED_IN Pair eight_inputs(const uint8_t* w, int eight) {
  if constexpr (edgedec::in_planes(FORMAT))
    return eight == 0   ? planes_of_eight<FORMAT, 0>(w)
           : eight == 1 ? planes_of_eight<FORMAT, 1>(w)
           : eight == 2 ? planes_of_eight<FORMAT, 2>(w)
                        : planes_of_eight<FORMAT, 3>(w);
  else if constexpr (FORMAT == edgedec::INT4) return nibbles(nbytes(w + 64 * eight));
  else if constexpr (FORMAT == edgedec::NL4) return looked_up(nbytes(w + 64 * eight));
  else return {ready8(nbytes(w + 128 * eight)), ready8(nbytes(w + 128 * eight + 64))};
}

// Every lane's four weights times the same four of sixteen inputs.
template <int FOUR>
ED_IN ni dot(ni sum, int8x16_t w, int8x16_t x) {
  return vdotq_laneq_s32(sum, w, x, FOUR);
}

// sum[m][v] = the STEP inputs at q[m] times the weights at w[v], and c[m]. In planes: from the four inputs FIRST of 32 on.
template <int FORMAT, int STEP, int M, int V, int FIRST>
ED_IN void dot_sums(const uint8_t* const* w, const int8_t* const* q, const int* c, ni (&sum)[M][V]) {
  for (int m = 0; m < M; m++)
    for (int v = 0; v < V; v++) sum[m][v] = niset(c[m]);
#pragma GCC unroll 2
  for (int i = 0; i < STEP / 16; i++) {
    int8x16_t x[M];
    for (int m = 0; m < M; m++) x[m] = vld1q_s8(q[m] + 16 * i);
    for (int v = 0; v < V; v++) {
      Pair y = eight_inputs<FORMAT>(w[v], FIRST / 2 + 2 * i);
      for (int m = 0; m < M; m++) sum[m][v] = dot<1>(dot<0>(sum[m][v], y.lo, x[m]), y.hi, x[m]);
      y = eight_inputs<FORMAT>(w[v], FIRST / 2 + 2 * i + 1);
      for (int m = 0; m < M; m++) sum[m][v] = dot<3>(dot<2>(sum[m][v], y.lo, x[m]), y.hi, x[m]);
    }
  }
}

#ifdef ED_I8MM
// All eight inputs of outputs 0 and 1, and of 2 and 3.
ED_IN int8x16_t low_pairs(Pair y) {
  return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(y.lo), vreinterpretq_s32_s8(y.hi)));
}
ED_IN int8x16_t high_pairs(Pair y) {
  return vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(y.lo), vreinterpretq_s32_s8(y.hi)));
}
ED_IN int64x2_t as64(int8x16_t a) { return vreinterpretq_s64_s8(a); }

// The same; an instruction takes eight inputs of two rows and two outputs. An odd last row is its own partner.
template <int FORMAT, int STEP, int M, int V, int FIRST>
ED_IN void matrix_sums(const uint8_t* const* w, const int8_t* const* q, const int* c, ni (&sum)[M][V]) {
  constexpr int PAIRS = (M + 1) / 2;
  ni part[PAIRS][2 * V];  // row a: outputs 0 1, row b: outputs 0 1; the same of 2 3
  for (int p = 0; p < PAIRS; p++) {
    int a = 2 * p, b = a + 1 < M ? a + 1 : a;
    for (int v = 0; v < 2 * V; v++) part[p][v] = vcombine_s32(vdup_n_s32(c[a]), vdup_n_s32(c[b]));
  }
#pragma GCC unroll 2
  for (int i = 0; i < STEP / 16; i++) {
    int8x16_t x[2][PAIRS];
    for (int p = 0; p < PAIRS; p++) {
      int a = 2 * p, b = a + 1 < M ? a + 1 : a;
      int64x2_t rows[2] = {as64(vld1q_s8(q[a] + 16 * i)), as64(vld1q_s8(q[b] + 16 * i))};
      x[0][p] = vreinterpretq_s8_s64(vzip1q_s64(rows[0], rows[1]));
      x[1][p] = vreinterpretq_s8_s64(vzip2q_s64(rows[0], rows[1]));
    }
    for (int v = 0; v < V; v++) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; j++) {
        Pair y = eight_inputs<FORMAT>(w[v], FIRST / 2 + 2 * i + j);
        int8x16_t low = low_pairs(y), high = high_pairs(y);
        for (int p = 0; p < PAIRS; p++) {
          part[p][2 * v] = vmmlaq_s32(part[p][2 * v], x[j][p], low);
          part[p][2 * v + 1] = vmmlaq_s32(part[p][2 * v + 1], x[j][p], high);
        }
      }
    }
  }
  for (int p = 0; p < PAIRS; p++)
    for (int v = 0; v < V; v++) {
      int64x2_t low = vreinterpretq_s64_s32(part[p][2 * v]), high = vreinterpretq_s64_s32(part[p][2 * v + 1]);
      sum[2 * p][v] = vreinterpretq_s32_s64(vzip1q_s64(low, high));
      if (2 * p + 1 < M) sum[2 * p + 1][v] = vreinterpretq_s32_s64(vzip2q_s64(low, high));
    }
}
#endif

template <int FORMAT, int STEP, int M, int V, int FIRST>
ED_IN void step_sums(const uint8_t* const* w, const int8_t* const* q, const int* c, ni (&sum)[M][V]) {
#ifdef ED_I8MM
  if constexpr (M > 1) return matrix_sums<FORMAT, STEP, M, V, FIRST>(w, q, c, sum);
#endif
  dot_sums<FORMAT, STEP, M, V, FIRST>(w, q, c, sum);
}

}  // namespace ED_NS
