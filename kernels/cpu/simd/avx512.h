// AVX-512 with VNNI: 16 lanes, u8 x s8 products summed straight into 32 bits.
#pragma once
#include <immintrin.h>

#include <cstdint>

// A value that the compiler must take as changed.
#if defined(_MSC_VER)
#define ED_OPAQUE(x) (void)(x)
#else
#define ED_OPAQUE(x) asm volatile("" : "+v"(x))
#endif

namespace ED_NS {

constexpr int W = 16;      // lanes of a native vector
// Rows and native vectors of the largest tile; and of those that many rows are cut into: eight rows by
// two vectors spill a few registers, which costs less than reading the weights of so few rows twice.
constexpr int TILE_M = 8;
constexpr int TILE_MANY = 6;
constexpr int ROWS_M = 10;  // of matrices with one scale a row: their sums are all that is kept; of twelve rows GCC spills some
constexpr int TILE_V = 2;

using nf = __m512;
using ni = __m512i;

ED_IN nf nzero() { return _mm512_setzero_ps(); }
ED_IN nf nset(float x) { return _mm512_set1_ps(x); }
ED_IN nf nload(const float* p) { return _mm512_loadu_ps(p); }
ED_IN void nstore(float* p, nf x) { _mm512_storeu_ps(p, x); }
ED_IN nf nadd(nf a, nf b) { return _mm512_add_ps(a, b); }
ED_IN nf nsub(nf a, nf b) { return _mm512_sub_ps(a, b); }
ED_IN nf nmul(nf a, nf b) { return _mm512_mul_ps(a, b); }
ED_IN nf ndiv(nf a, nf b) { return _mm512_div_ps(a, b); }
ED_IN nf nmax(nf a, nf b) { return _mm512_max_ps(a, b); }
ED_IN nf nmin(nf a, nf b) { return _mm512_min_ps(a, b); }
ED_IN uint32_t nat_least(nf a, nf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }  // by bit
ED_IN nf nabs(nf a) { return _mm512_abs_ps(a); }
ED_IN nf nfma(nf a, nf b, nf c) { return _mm512_fmadd_ps(a, b, c); }
ED_IN nf nfloat(ni a) { return _mm512_cvtepi32_ps(a); }
ED_IN ni nround(nf a) { return _mm512_cvtps_epi32(a); }  // to nearest, ties to even
ED_IN nf nexp2(ni n) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23)); }
ED_IN ni niset(int x) { return _mm512_set1_epi32(x); }
ED_IN ni niadd(ni a, ni b) { return _mm512_add_epi32(a, b); }
ED_IN ni nishl8(ni a) { return _mm512_slli_epi32(a, 8); }
ED_IN void nistore(uint8_t* p, ni x) { _mm512_storeu_si512(p, x); }
ED_IN nf nload_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
ED_IN void nstore_f16(uint16_t* p, nf x) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ED_IN nf nload_i8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
ED_IN void nstore_i8(int8_t* p, ni x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(x)); }
// W nibbles, low first: values 0 to 15.
ED_IN nf nload_u4(const uint8_t* p) {
  __m128i b = _mm_loadl_epi64((const __m128i*)p), low = _mm_set1_epi8(15);
  __m128i n = _mm_unpacklo_epi8(_mm_and_si128(b, low), _mm_and_si128(_mm_srli_epi16(b, 4), low));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(n));
}
ED_IN float nsum(nf a) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
ED_IN float ntop(nf a) { return _mm512_reduce_max_ps(a); }

// Lane i is nsum(a[i]): the same halves, vectors packed as they shrink.
ED_IN nf nsums(const nf* a) {
  nf eight[8], four[4], two[2];
  for (int i = 0; i < 8; i++) {  // keys i and i + 4 of 0..7 and of 8..15
    const nf x = a[i % 4 + i / 4 * 8], y = a[i % 4 + i / 4 * 8 + 4];
    eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xEE));
  }
  for (int i = 0; i < 4; i++)
    four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(eight[i], eight[i + 4], 0x88),
                            _mm512_shuffle_f32x4(eight[i], eight[i + 4], 0xDD));
  for (int i = 0; i < 2; i++)
    two[i] = _mm512_add_ps(_mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                           _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0xEE));
  return _mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xDD));
}
ED_IN nf nload_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
ED_IN void nspread_bf16(const uint8_t* p, nf& low, nf& high) {
  ni pair = _mm512_set1_epi32(*(const int32_t*)p);
  low = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
  high = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000)));
}
ED_IN void nload_nibbles(const uint8_t* p, nf& low, nf& high) {
  ni b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  low = _mm512_cvtepi32_ps(_mm512_and_si512(b, _mm512_set1_epi32(15)));
  high = _mm512_cvtepi32_ps(_mm512_srli_epi32(b, 4));
}

// ---- products of unsigned weight bytes and signed activation bytes, 4 a lane -------------------

constexpr bool ZERO_BYTES = true;  // zero points of int4 may be added to weight bytes
constexpr bool SUMS16 = false;
constexpr int OFFSET8 = 128;  // int8 weights stand as q + 128; the offset is taken off through `c`
// A tile's vectors have their steps summed together.
constexpr int step_vectors(int, int v) { return v; }
// Whether the sums of m rows by v vectors stay in registers beside those of a step.
constexpr bool keeps_sums(int m, int v) { return m * v <= 16; }
struct Pair {
  ni lo, hi;
};
using acc4 = ni;
using acc8 = ni;
using w8 = ni;
ED_IN ni nbytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
ED_IN ni nspread(const int8_t* x) { return _mm512_set1_epi32(*(const int32_t*)x); }
ED_IN Pair nibbles(ni raw) {
  const ni low = _mm512_set1_epi8(15);
  return {_mm512_and_si512(raw, low), _mm512_and_si512(_mm512_srli_epi16(raw, 4), low)};
}
// Of each byte the bits of MASK, after a shift to the right by BY (to the left where it is negative).
template <int BY, int MASK>
ED_IN ni nbits(ni raw) {
  const ni mask = _mm512_set1_epi8(MASK);
  if constexpr (BY < 0) return _mm512_and_si512(_mm512_slli_epi16(raw, -BY), mask);
  else return _mm512_and_si512(_mm512_srli_epi16(raw, BY), mask);
}
ED_IN ni nor8(ni a, ni b) { return _mm512_or_si512(a, b); }
// What MX4 has for codes of 0 to 15, a byte each.
ED_IN ni nlooked(ni codes) {
  const __m128i table = _mm_loadu_si128((const __m128i*)edgedec::MX4_VALUES);
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
}
using w4 = ni;
ED_IN w4 ready4(ni bytes) { return bytes; }
ED_IN acc4 begin4(int c) { return _mm512_set1_epi32(c); }
ED_IN acc4 dot4(acc4 a, ni w, ni x) { return _mm512_dpbusd_epi32(a, w, x); }
ED_IN ni end4(acc4 a, int) { return a; }
ED_IN w8 ready8(ni raw) { return raw; }
ED_IN acc8 begin8(int c) { return _mm512_set1_epi32(c); }
ED_IN acc8 dot8(acc8 a, w8 w, ni x) { return _mm512_dpbusd_epi32(a, w, x); }
ED_IN ni end8(acc8 a, int) { return a; }
struct Looked {
  w8 lo, hi;
};
// What the nibbles stand for in NL4.
ED_IN Looked looked_up(ni raw) {
  alignas(16) uint8_t t[16];
  for (int i = 0; i < 16; i++) t[i] = (uint8_t)(edgedec::NL4_VALUES[i] + 128);
  const ni table = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)t));
  const Pair codes = nibbles(raw);
  return {_mm512_shuffle_epi8(table, codes.lo), _mm512_shuffle_epi8(table, codes.hi)};
}

// The zero points of W outputs of a block of int4: both nibbles of 8 bytes.
ED_IN ni nint_zeros4(const uint8_t* p, int) {
  const __m128i both = _mm_srlv_epi64(_mm_set1_epi64x(*(const int64_t*)p), _mm_set_epi64x(4, 0));
  return _mm512_cvtepu8_epi32(_mm_and_si128(both, _mm_set1_epi8(15)));
}
// 8 less the same.
ED_IN nf nload_zeros4(const uint8_t* p, int) { return nfloat(_mm512_sub_epi32(niset(8), nint_zeros4(p, 0))); }
// Zero points times what fits 16 bits: where the sum of a step begins.
ED_IN acc4 begin_zeros4(ni zeros, int times) { return _mm512_madd_epi16(zeros, _mm512_set1_epi32(times)); }
// 15 less the same zero points, in each of an output's four bytes.
ED_IN ni nspread_zeros4(const uint8_t* p, int) {
  const ni shifts = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
  const ni values = _mm512_setr_epi32(0x0f0f0f0f, 0x0e0e0e0e, 0x0d0d0d0d, 0x0c0c0c0c, 0x0b0b0b0b, 0x0a0a0a0a, 0x09090909,
                                      0x08080808, 0x07070707, 0x06060606, 0x05050505, 0x04040404, 0x03030303, 0x02020202,
                                      0x01010101, 0);
  ni z = _mm512_cvtepu8_epi32(_mm_set1_epi64x(*(const int64_t*)p));
  return _mm512_permutexvar_epi32(_mm512_srlv_epi32(z, shifts), values);
}
ED_IN ni nadd8(ni a, ni b) { return _mm512_add_epi8(a, b); }
// 128 less the zero points of W outputs of a block.
ED_IN nf nload_zeros8(const uint8_t* p) {
  ni z = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(128), z));
}
ED_IN void nprefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }

}  // namespace ED_NS
