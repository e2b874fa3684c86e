// WebAssembly's 128-bit vectors: 4 lanes. With ED_RELAXED: relaxed vectors, of which two instructions are used, and only so
// that their result is fixed: the dot product with one factor below 128, and the multiply-add where it is found to be fused,
// which the specification makes a constant of the machine.
#pragma once
#include <wasm_simd128.h>

#include <cmath>
#include <cstdint>
#include <cstring>

// A value that the compiler must take as changed.
#define ED_OPAQUE(x) opaque(x)

namespace ED_NS {

constexpr int W = 4;
constexpr int TILE_M = 4;
constexpr int TILE_MANY = 4;
constexpr int ROWS_M = TILE_MANY;
constexpr int TILE_V = 4;

struct nf {
  v128_t v;
};
struct ni {
  v128_t v;
};

ED_IN nf nset(float x) { return {wasm_f32x4_splat(x)}; }
ED_IN nf nzero() { return nset(0.0f); }
ED_IN nf nload(const float* p) { return {wasm_v128_load(p)}; }
ED_IN void nstore(float* p, nf x) { wasm_v128_store(p, x.v); }
ED_IN nf nadd(nf a, nf b) { return {wasm_f32x4_add(a.v, b.v)}; }
ED_IN nf nsub(nf a, nf b) { return {wasm_f32x4_sub(a.v, b.v)}; }
ED_IN nf nmul(nf a, nf b) { return {wasm_f32x4_mul(a.v, b.v)}; }
ED_IN nf ndiv(nf a, nf b) { return {wasm_f32x4_div(a.v, b.v)}; }
// Of NaN and of two zeros b, as on x86.
ED_IN nf nmax(nf a, nf b) { return {wasm_f32x4_pmax(b.v, a.v)}; }
ED_IN nf nmin(nf a, nf b) { return {wasm_f32x4_pmin(b.v, a.v)}; }
ED_IN uint32_t nat_least(nf a, nf b) { return wasm_i32x4_bitmask(wasm_f32x4_ge(a.v, b.v)); }
ED_IN nf nabs(nf a) { return {wasm_f32x4_abs(a.v)}; }

#ifdef ED_RELAXED
ED_IN nf nfma(nf a, nf b, nf c) { return {wasm_f32x4_relaxed_madd(a.v, b.v, c.v)}; }
#else
ED_IN v128_t upper(v128_t a) { return wasm_f64x2_promote_low_f32x4(wasm_i32x4_shuffle(a, a, 2, 3, 2, 3)); }
ED_IN v128_t lower(v128_t a) { return wasm_f64x2_promote_low_f32x4(a); }
ED_IN v128_t joined(v128_t low, v128_t high) {
  return wasm_i32x4_shuffle(wasm_f32x4_demote_f64x2_zero(low), wasm_f32x4_demote_f64x2_zero(high), 0, 1, 4, 5);
}
// The sum of a product, which a double holds, and c, rounded to odd: rounded once more, to a float, it is as if rounded once.
// `error` is what the sum to nearest lacks (Knuth's two-sum); where it points to zero the sum is a unit too large.
ED_IN v128_t fused(v128_t a, v128_t b, v128_t c) {
  const v128_t p = wasm_f64x2_mul(a, b), sum = wasm_f64x2_add(p, c), part = wasm_f64x2_sub(sum, p);
  const v128_t error = wasm_f64x2_add(wasm_f64x2_sub(p, wasm_f64x2_sub(sum, part)), wasm_f64x2_sub(c, part));
  const v128_t side = wasm_f64x2_mul(error, sum), zero = wasm_f64x2_splat(0.0);
  const v128_t less = wasm_f64x2_lt(side, zero), more = wasm_f64x2_gt(side, zero);
  return wasm_v128_or(wasm_i64x2_add(sum, less), wasm_v128_and(wasm_v128_or(less, more), wasm_i64x2_splat(1)));
}
static __attribute__((noinline)) v128_t fma_exact(v128_t a, v128_t b, v128_t c) {
  return joined(fused(lower(a), lower(b), lower(c)), fused(upper(a), upper(b), upper(c)));
}
// Rounding the double to nearest first can only matter where it lies halfway between two floats: where the 29 bits that a
// normal float lacks are 100..., or the float is subnormal and lacks more.
ED_IN nf nfma(nf a, nf b, nf c) {
  const v128_t low = wasm_f64x2_add(wasm_f64x2_mul(lower(a.v), lower(b.v)), lower(c.v));
  const v128_t high = wasm_f64x2_add(wasm_f64x2_mul(upper(a.v), upper(b.v)), upper(c.v));
  const v128_t least = wasm_i32x4_shuffle(low, high, 0, 2, 4, 6), most = wasm_i32x4_shuffle(low, high, 1, 3, 5, 7);
  const v128_t half = wasm_i32x4_eq(wasm_v128_and(least, wasm_i32x4_splat(0x1fffffff)), wasm_i32x4_splat(0x10000000));
  // 0 < |sum| < 2^-126, by the upper word less its sign, less one, as if unsigned.
  const v128_t size = wasm_i32x4_add(wasm_i32x4_shl(most, 1), wasm_i32x4_splat(0x7fffffff));
  const v128_t small = wasm_i32x4_lt(size, wasm_i32x4_splat((int)(0x701fffffu ^ 0x80000000u)));
  if (__builtin_expect(wasm_v128_any_true(wasm_v128_or(half, small)), 0)) return {fma_exact(a.v, b.v, c.v)};
  return {joined(low, high)};
}
#endif

ED_IN nf nfloat(ni a) { return {wasm_f32x4_convert_i32x4(a.v)}; }
ED_IN ni nround(nf a) {
  const v128_t fits = wasm_f32x4_lt(wasm_f32x4_abs(a.v), wasm_f32x4_splat(2147483648.0f));
  return {wasm_v128_bitselect(wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(a.v)), wasm_i32x4_splat(INT32_MIN), fits)};
}
ED_IN nf nexp2(ni n) { return {wasm_i32x4_shl(wasm_i32x4_add(n.v, wasm_i32x4_splat(127)), 23)}; }
ED_IN ni niset(int x) { return {wasm_i32x4_splat(x)}; }
ED_IN ni niadd(ni a, ni b) { return {wasm_i32x4_add(a.v, b.v)}; }
ED_IN ni nishl8(ni a) { return {wasm_i32x4_shl(a.v, 8)}; }
ED_IN void nistore(uint8_t* p, ni x) { wasm_v128_store(p, x.v); }

// Bits of a half, moved to where a float has them: normal ones get the larger exponent added, subnormal ones, of which there
// is no such float, are made by a subtraction.
ED_IN nf nload_f16(const uint16_t* p) {
  const v128_t h = wasm_u32x4_load16x4(p);
  const v128_t size = wasm_i32x4_shl(wasm_v128_and(h, wasm_i32x4_splat(0x7fff)), 13);
  const v128_t top = wasm_i32x4_splat(0x0f800000);
  const v128_t large = wasm_i32x4_gt(size, wasm_i32x4_splat(0x0f7fffff)), small = wasm_i32x4_lt(size, wasm_i32x4_splat(1 << 23));
  const v128_t normal = wasm_i32x4_add(size, wasm_i32x4_splat(112 << 23));
  const v128_t subnormal = wasm_f32x4_sub(wasm_i32x4_add(size, wasm_i32x4_splat(113 << 23)), wasm_f32x4_splat(6.103515625e-5f));
  v128_t y = wasm_v128_bitselect(subnormal, normal, small);
  y = wasm_v128_or(y, wasm_v128_and(large, wasm_i32x4_splat(0x7f800000)));
  y = wasm_v128_or(y, wasm_v128_and(wasm_i32x4_gt(size, top), wasm_i32x4_splat(0x400000)));  // NaN becomes quiet
  return {wasm_v128_or(y, wasm_i32x4_shl(wasm_v128_and(h, wasm_i32x4_splat(0x8000)), 16))};
}
ED_IN uint16_t to_half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const uint32_t sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((size >> 13) & 0x1ff));
  if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (size < 0x38800000) {  // subnormal: mantissa * 2^-24, rounded to nearest even
    float scaled;
    std::memcpy(&scaled, &size, 4);
    return (uint16_t)(sign | (uint32_t)__builtin_rintf(scaled * 16777216.0f));
  }
  const uint32_t odd = (size >> 13) & 1;
  return (uint16_t)(sign | ((size - 0x38000000 + 0xfff + odd) >> 13));
}
ED_IN void nstore_f16(uint16_t* p, nf x) {
  float t[4];
  nstore(t, x);
  for (int i = 0; i < 4; i++) p[i] = to_half(t[i]);
}

ED_IN v128_t widened4(const uint8_t* p) { return wasm_u32x4_extend_low_u16x8(wasm_u16x8_extend_low_u8x16(wasm_v128_load32_zero(p))); }
ED_IN nf nload_i8(const int8_t* p) {
  const v128_t h = wasm_i16x8_extend_low_i8x16(wasm_v128_load32_zero(p));
  return {wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(h))};
}
ED_IN void nstore_i8(int8_t* p, ni x) {
  const v128_t bytes = wasm_i8x16_shuffle(x.v, x.v, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
  wasm_v128_store32_lane(p, bytes, 0);
}
ED_IN nf nload_u4(const uint8_t* p) {
  uint32_t x = p[0] | (uint32_t)p[1] << 16;
  x = (x | x << 4) & 0x0f0f0f0f;  // a nibble a byte
  return {wasm_f32x4_convert_u32x4(widened4((const uint8_t*)&x))};
}
ED_IN nf nload_bf16(const uint16_t* p) { return {wasm_i32x4_shl(wasm_u32x4_load16x4(p), 16)}; }
ED_IN void nspread_bf16(const uint8_t* p, nf& low, nf& high) {
  const v128_t pair = wasm_v128_load32_splat(p);
  low.v = wasm_i32x4_shl(pair, 16);
  high.v = wasm_v128_and(pair, wasm_i32x4_splat((int)0xffff0000));
}
ED_IN void nload_nibbles(const uint8_t* p, nf& low, nf& high) {
  const v128_t b = widened4(p);
  low.v = wasm_f32x4_convert_u32x4(wasm_v128_and(b, wasm_i32x4_splat(15)));
  high.v = wasm_f32x4_convert_u32x4(wasm_u32x4_shr(b, 4));
}
ED_IN float nsum(nf a) {
  const v128_t h = wasm_f32x4_add(a.v, wasm_i32x4_shuffle(a.v, a.v, 2, 3, 2, 3));
  return wasm_f32x4_extract_lane(h, 0) + wasm_f32x4_extract_lane(h, 1);
}
// Lane i is nsum(a[i]).
ED_IN nf nsums(const nf* a) {
  v128_t y[2];
  for (int i = 0; i < 2; i++)
    y[i] = wasm_f32x4_add(wasm_i32x4_shuffle(a[2 * i].v, a[2 * i + 1].v, 0, 1, 4, 5),
                          wasm_i32x4_shuffle(a[2 * i].v, a[2 * i + 1].v, 2, 3, 6, 7));
  return {wasm_f32x4_add(wasm_i32x4_shuffle(y[0], y[1], 0, 2, 4, 6), wasm_i32x4_shuffle(y[0], y[1], 1, 3, 5, 7))};
}
ED_IN float ntop(nf a) {
  const nf h = nmax(a, {wasm_i32x4_shuffle(a.v, a.v, 2, 3, 2, 3)});
  const float x = wasm_f32x4_extract_lane(h.v, 0), y = wasm_f32x4_extract_lane(h.v, 1);
  return x > y ? x : y;
}
ED_IN void nprefetch(const void*) {}

// ---- products: four inputs of four outputs in a vector of bytes -----------------------------------------------------

constexpr bool ZERO_BYTES = false;
constexpr bool SUMS16 = false;

// A tile's vectors have their steps summed together.
constexpr int step_vectors(int, int v) { return v; }
// Whether the sums of m rows by v vectors stay in registers beside those of a step.
constexpr bool keeps_sums(int m, int v) { return m * v <= 4; }

// 8 or 128 less the zero points of W outputs of a block: of int4 the nibbles at `shift` of 4 bytes.
ED_IN nf nload_zeros4(const uint8_t* p, int shift) {
  const v128_t z = wasm_v128_and(wasm_u32x4_shr(widened4(p), (uint32_t)shift), wasm_i32x4_splat(15));
  return {wasm_f32x4_convert_i32x4(wasm_i32x4_sub(wasm_i32x4_splat(8), z))};
}
ED_IN nf nload_zeros8(const uint8_t* p) {
  return {wasm_f32x4_convert_i32x4(wasm_i32x4_sub(wasm_i32x4_splat(128), widened4(p)))};
}

using acc4 = ni;
using acc8 = ni;
ED_IN v128_t nbytes(const uint8_t* p) { return wasm_v128_load(p); }
// Of each byte the bits of MASK, after a shift to the right by BY (to the left where it is negative).
template <int BY, int MASK>
ED_IN v128_t nbits(v128_t raw) {
  const v128_t mask = wasm_i8x16_splat(MASK);
  return wasm_v128_and(BY < 0 ? wasm_i8x16_shl(raw, BY < 0 ? -BY : 0) : wasm_u8x16_shr(raw, BY < 0 ? 0 : BY), mask);
}
ED_IN v128_t nor8(v128_t a, v128_t b) { return wasm_v128_or(a, b); }
// What MX4 has for codes of 0 to 15, a byte each.
ED_IN v128_t nlooked(v128_t codes) { return wasm_i8x16_swizzle(wasm_v128_load(edgedec::MX4_VALUES), codes); }
ED_IN acc4 begin4(int c) { return niset(c); }
ED_IN ni end4(acc4 a, int) { return a; }
ED_IN acc8 begin8(int c) { return niset(c); }
ED_IN ni end8(acc8 a, int) { return a; }

#ifdef ED_RELAXED
constexpr int OFFSET8 = 128;  // int8 weights stand as q + 128; the offset is taken off through `c`
ED_IN void opaque(v128_t& x) { asm volatile("" : "+r"(x)); }
struct Pair {
  v128_t lo, hi;
};
using w4 = v128_t;
ED_IN w4 ready4(v128_t bytes) { return bytes; }
using w8 = Pair;  // a byte is its low nibble and 16 times its high one
ED_IN v128_t nspread(const int8_t* x) { return wasm_v128_load32_splat(x); }
ED_IN Pair nibbles(v128_t raw) { return {wasm_v128_and(raw, wasm_i8x16_splat(15)), wasm_u8x16_shr(raw, 4)}; }
ED_IN acc4 dot4(acc4 a, v128_t w, v128_t x) { return {wasm_i32x4_relaxed_dot_i8x16_i7x16_add(x, w, a.v)}; }
ED_IN w8 ready8(v128_t raw) { return nibbles(raw); }
ED_IN acc8 dot8(acc8 a, w8 w, v128_t x) {
  const v128_t high = wasm_i32x4_relaxed_dot_i8x16_i7x16_add(x, w.hi, wasm_i32x4_splat(0));
  const v128_t low = wasm_i32x4_relaxed_dot_i8x16_i7x16_add(x, w.lo, a.v);
  return {wasm_i32x4_add(low, wasm_i32x4_shl(high, 4))};
}
#else
constexpr int OFFSET8 = 0;
// The even and the odd ones of sixteen bytes, as words.
struct Words {
  v128_t even, odd;
};
ED_IN void opaque(Words& x) { asm volatile("" : "+r"(x.even), "+r"(x.odd)); }
struct Pair {
  Words lo, hi;
};
using w8 = Words;
using w4 = Words;
ED_IN w4 ready4(v128_t b) { return {wasm_v128_and(b, wasm_i16x8_splat(255)), wasm_u16x8_shr(b, 8)}; }
ED_IN Words signed_words(v128_t b) { return {wasm_i16x8_shr(wasm_i16x8_shl(b, 8), 8), wasm_i16x8_shr(b, 8)}; }
ED_IN Words nspread(const int8_t* x) { return signed_words(wasm_v128_load32_splat(x)); }
ED_IN Pair nibbles(v128_t raw) {
  const v128_t low = wasm_i16x8_splat(15);
  return {{wasm_v128_and(raw, low), wasm_v128_and(wasm_u16x8_shr(raw, 8), low)},
          {wasm_v128_and(wasm_u16x8_shr(raw, 4), low), wasm_u16x8_shr(raw, 12)}};
}
ED_IN ni dot(ni a, Words w, Words x) {
  const v128_t even = wasm_i32x4_dot_i16x8(w.even, x.even), odd = wasm_i32x4_dot_i16x8(w.odd, x.odd);
  return {wasm_i32x4_add(a.v, wasm_i32x4_add(even, odd))};
}
ED_IN acc4 dot4(acc4 a, Words w, Words x) { return dot(a, w, x); }
ED_IN w8 ready8(v128_t raw) { return signed_words(wasm_v128_xor(raw, wasm_i8x16_splat(-128))); }
ED_IN acc8 dot8(acc8 a, w8 w, Words x) { return dot(a, w, x); }
#endif
// What the nibbles stand for in NL4.
struct Looked {
  w8 lo, hi;
};
ED_IN Looked looked_up(v128_t raw) {
  uint8_t t[16];
  for (int i = 0; i < 16; i++) t[i] = (uint8_t)(edgedec::NL4_VALUES[i] + 128);
  const v128_t table = wasm_v128_load(t);
  return {ready8(wasm_i8x16_swizzle(table, wasm_v128_and(raw, wasm_i8x16_splat(15)))),
          ready8(wasm_i8x16_swizzle(table, wasm_u8x16_shr(raw, 4)))};
}

}  // namespace ED_NS
