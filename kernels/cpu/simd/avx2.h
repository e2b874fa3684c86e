// AVX2 with FMA and F16C: 8 lanes. With ED_VNNI the products go through vpdpbusd, else through
// vpmaddubsw: int4 pair sums (at most 3810) add up in 16 bits over a step of 32 (at most 30480); int8
// weights are split into sign and size, so that no 16-bit sum saturates (at most 2 * 128 * 127).
#pragma once
#include <immintrin.h>

#include <cstdint>

// A value that the compiler must take as changed.
#if defined(_MSC_VER)
#define ED_OPAQUE(x) (void)(x)
#else
#define ED_OPAQUE(x) asm volatile("" : "+x"(x))
#endif

namespace ED_NS {

constexpr int W = 8;
constexpr int TILE_M = 4;
constexpr int TILE_MANY = 4;
#ifdef ED_VNNI
constexpr int ROWS_M = 6;  // of matrices with one scale a row: sums for as many products as are under way at once
#else
constexpr int ROWS_M = 4;
#endif
constexpr int TILE_V = 2;

using nf = __m256;
using ni = __m256i;

ED_IN nf nzero() { return _mm256_setzero_ps(); }
ED_IN nf nset(float x) { return _mm256_set1_ps(x); }
ED_IN nf nload(const float* p) { return _mm256_loadu_ps(p); }
ED_IN void nstore(float* p, nf x) { _mm256_storeu_ps(p, x); }
ED_IN nf nadd(nf a, nf b) { return _mm256_add_ps(a, b); }
ED_IN nf nsub(nf a, nf b) { return _mm256_sub_ps(a, b); }
ED_IN nf nmul(nf a, nf b) { return _mm256_mul_ps(a, b); }
ED_IN nf ndiv(nf a, nf b) { return _mm256_div_ps(a, b); }
ED_IN nf nmax(nf a, nf b) { return _mm256_max_ps(a, b); }
ED_IN nf nmin(nf a, nf b) { return _mm256_min_ps(a, b); }
ED_IN uint32_t nat_least(nf a, nf b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
ED_IN nf nabs(nf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
ED_IN nf nfma(nf a, nf b, nf c) { return _mm256_fmadd_ps(a, b, c); }
ED_IN nf nfloat(ni a) { return _mm256_cvtepi32_ps(a); }
ED_IN ni nround(nf a) { return _mm256_cvtps_epi32(a); }
ED_IN nf nexp2(ni n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23)); }
ED_IN ni niset(int x) { return _mm256_set1_epi32(x); }
ED_IN ni niadd(ni a, ni b) { return _mm256_add_epi32(a, b); }
ED_IN ni nishl8(ni a) { return _mm256_slli_epi32(a, 8); }
ED_IN void nistore(uint8_t* p, ni x) { _mm256_storeu_si256((__m256i*)p, x); }
ED_IN nf nload_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
ED_IN void nstore_f16(uint16_t* p, nf x) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ED_IN nf nload_i8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
ED_IN void nstore_i8(int8_t* p, ni x) {
  __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(w, w));
}
ED_IN nf nload_u4(const uint8_t* p) {
  __m128i b = _mm_cvtsi32_si128(*(const int32_t*)p), low = _mm_set1_epi8(15);
  __m128i n = _mm_unpacklo_epi8(_mm_and_si128(b, low), _mm_and_si128(_mm_srli_epi16(b, 4), low));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(n));
}
ED_IN float nsum(nf a) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
ED_IN float ntop(nf a) {
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

// Lane i is nsum(a[i]): the same halves, two vectors of a kind in one.
ED_IN nf nsums(const nf* a) {
  nf four[4], two[2];
  for (int i = 0; i < 4; i++)
    four[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[i], a[i + 4], 0x20), _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  for (int i = 0; i < 2; i++)
    two[i] = _mm256_add_ps(_mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                           _mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0xEE));
  return _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xDD));
}
ED_IN nf nload_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
ED_IN void nspread_bf16(const uint8_t* p, nf& low, nf& high) {
  ni pair = _mm256_set1_epi32(*(const int32_t*)p);
  low = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
  high = _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000)));
}
ED_IN void nload_nibbles(const uint8_t* p, nf& low, nf& high) {
  ni b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
  low = _mm256_cvtepi32_ps(_mm256_and_si256(b, _mm256_set1_epi32(15)));
  high = _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 4));
}

// The zero points of W outputs of a block of int4: the nibbles at `shift` of 8 bytes.
ED_IN ni nint_zeros4(const uint8_t* p, int shift) {
  return _mm256_and_si256(_mm256_srli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)), shift), _mm256_set1_epi32(15));
}
// Zero points times what fits 16 bits: where the sum of a step begins.
ED_IN ni begin_zeros4(ni zeros, int times) { return _mm256_madd_epi16(zeros, _mm256_set1_epi32(times)); }
// 8 or 128 less the zero points of W outputs of a block.
ED_IN nf nload_zeros4(const uint8_t* p, int shift) {
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_set1_epi32(8), nint_zeros4(p, shift)));
}
// 15 less the same zero points, in each of an output's four bytes.
ED_IN ni nspread_zeros4(const uint8_t* p, int shift) {
  ni one = _mm256_sub_epi32(_mm256_set1_epi32(15), nint_zeros4(p, shift));
  return _mm256_shuffle_epi8(one, _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4,
                                                   4, 8, 8, 8, 8, 12, 12, 12, 12));
}
ED_IN ni nadd8(ni a, ni b) { return _mm256_add_epi8(a, b); }
ED_IN nf nload_zeros8(const uint8_t* p) {
  ni z = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_set1_epi32(128), z));
}

// A tile's vectors have their steps summed together.
constexpr int step_vectors(int, int v) { return v; }
// Whether the sums of m rows by v vectors stay in registers beside those of a step.
constexpr bool keeps_sums(int m, int v) { return m * v <= 8; }
struct Pair {
  ni lo, hi;
};
ED_IN ni nbytes(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
ED_IN ni nspread(const int8_t* x) { return _mm256_set1_epi32(*(const int32_t*)x); }
ED_IN Pair nibbles(ni raw) {
  const ni low = _mm256_set1_epi8(15);
  return {_mm256_and_si256(raw, low), _mm256_and_si256(_mm256_srli_epi16(raw, 4), low)};
}
// Of each byte the bits of MASK, after a shift to the right by BY (to the left where it is negative).
template <int BY, int MASK>
ED_IN ni nbits(ni raw) {
  const ni mask = _mm256_set1_epi8(MASK);
  if constexpr (BY < 0) return _mm256_and_si256(_mm256_slli_epi16(raw, -BY), mask);
  else return _mm256_and_si256(_mm256_srli_epi16(raw, BY), mask);
}
ED_IN ni nor8(ni a, ni b) { return _mm256_or_si256(a, b); }
// What MX4 has for codes of 0 to 15, a byte each.
ED_IN ni nlooked(ni codes) {
  const __m128i table = _mm_loadu_si128((const __m128i*)edgedec::MX4_VALUES);
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
}
using w4 = ni;
ED_IN w4 ready4(ni bytes) { return bytes; }
using acc4 = ni;
using acc8 = ni;
// Of each value of NL4 `of` it: 16 bytes in both halves.
template <class F>
ED_IN ni nl4_table(F of) {
  alignas(16) int8_t t[16];
  for (int i = 0; i < 16; i++) t[i] = (int8_t)of(edgedec::NL4_VALUES[i]);
  return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)t));
}
#ifdef ED_VNNI
constexpr bool ZERO_BYTES = true;
constexpr bool SUMS16 = false;
constexpr int OFFSET8 = 128;
using w8 = ni;
ED_IN acc4 begin4(int c) { return _mm256_set1_epi32(c); }
ED_IN acc4 dot4(acc4 a, ni w, ni x) { return _mm256_dpbusd_avx_epi32(a, w, x); }
ED_IN ni end4(acc4 a, int) { return a; }
ED_IN w8 ready8(ni raw) { return raw; }
ED_IN acc8 begin8(int c) { return _mm256_set1_epi32(c); }
ED_IN acc8 dot8(acc8 a, w8 w, ni x) { return _mm256_dpbusd_avx_epi32(a, w, x); }
ED_IN ni end8(acc8 a, int) { return a; }
struct Looked {
  w8 lo, hi;
};
ED_IN Looked looked_up(ni raw) {
  const ni table = nl4_table([](int x) { return x + 128; });
  const Pair codes = nibbles(raw);
  return {_mm256_shuffle_epi8(table, codes.lo), _mm256_shuffle_epi8(table, codes.hi)};
}
#else
constexpr bool ZERO_BYTES = false;  // sums of 16 bits have room for nibbles only
constexpr bool SUMS16 = true;
constexpr int OFFSET8 = 0;
struct w8 {
  ni value, size;
};
ED_IN acc4 begin4(int) { return _mm256_setzero_si256(); }
// The sum so far is opaque: or else GCC adds the products in another order, and has all of a step on the stack.
ED_IN acc4 dot4(acc4 a, ni w, ni x) {
  a = _mm256_add_epi16(a, _mm256_maddubs_epi16(w, x));
  ED_OPAQUE(a);
  return a;
}
ED_IN ni end4(acc4 a, int c) { return _mm256_add_epi32(_mm256_madd_epi16(a, _mm256_set1_epi16(1)), _mm256_set1_epi32(c)); }
ED_IN w8 ready8(ni raw) {
  ni value = _mm256_xor_si256(raw, _mm256_set1_epi8(-128));
  return {value, _mm256_abs_epi8(value)};
}
ED_IN acc8 begin8(int) { return _mm256_setzero_si256(); }
ED_IN acc8 dot8(acc8 a, w8 w, ni x) {
  ni pairs = _mm256_maddubs_epi16(w.size, _mm256_sign_epi8(x, w.value));
  return _mm256_add_epi32(a, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
ED_IN ni end8(acc8 a, int) { return a; }
struct Looked {
  w8 lo, hi;
};
ED_IN Looked looked_up(ni raw) {
  const ni table = nl4_table([](int x) { return x; }), sizes = nl4_table([](int x) { return x < 0 ? -x : x; });
  const Pair codes = nibbles(raw);
  return {{_mm256_shuffle_epi8(table, codes.lo), _mm256_shuffle_epi8(sizes, codes.lo)},
          {_mm256_shuffle_epi8(table, codes.hi), _mm256_shuffle_epi8(sizes, codes.hi)}};
}
#endif
ED_IN void nprefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }

}  // namespace ED_NS
