// Plain C++: what every other instruction set must equal, bit for bit.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

// A value that the compiler must take as changed.
#if defined(_MSC_VER)
#define ED_OPAQUE(x) (void)(x)
#else
#define ED_OPAQUE(x) asm volatile("" : "+m"(x))
#endif

// Operations without an x86 instruction are separate functions, to keep the library small: inlined sixteen
// calls of fma(), or 64 products, took a quarter of it.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#define ED_OUT static __attribute__((noinline, optimize("O3")))
#elif defined(__GNUC__) && defined(__x86_64__)
#define ED_OUT static __attribute__((noinline))
#else
#define ED_OUT ED_IN
#endif

namespace ED_NS {

constexpr int W = 16;
constexpr int TILE_M = 2;
constexpr int TILE_MANY = 2;
constexpr int ROWS_M = TILE_MANY;
constexpr int TILE_V = 1;

struct nf {
  float v[W];
};
struct ni {
  int32_t v[W];
};

#define ED_LANES for (int i = 0; i < W; i++)
ED_OUT nf nset(float x) { nf r; ED_LANES r.v[i] = x; return r; }
ED_IN nf nzero() { return nset(0.0f); }
ED_IN nf nload(const float* p) { nf r; ED_LANES r.v[i] = p[i]; return r; }
ED_IN void nstore(float* p, nf x) { ED_LANES p[i] = x.v[i]; }
ED_IN nf nadd(nf a, nf b) { ED_LANES a.v[i] += b.v[i]; return a; }
ED_IN nf nsub(nf a, nf b) { ED_LANES a.v[i] -= b.v[i]; return a; }
ED_OUT nf nmul(nf a, nf b) { ED_LANES a.v[i] *= b.v[i]; return a; }
ED_IN nf ndiv(nf a, nf b) { ED_LANES a.v[i] /= b.v[i]; return a; }
ED_IN nf nmax(nf a, nf b) { ED_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
ED_IN nf nmin(nf a, nf b) { ED_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
ED_IN uint32_t nat_least(nf a, nf b) { uint32_t m = 0; ED_LANES m |= (uint32_t)(a.v[i] >= b.v[i]) << i; return m; }
ED_IN nf nabs(nf a) { ED_LANES a.v[i] = std::fabs(a.v[i]); return a; }
ED_OUT nf nfma(nf a, nf b, nf c) { ED_LANES c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]); return c; }
ED_OUT nf nfloat(ni a) { nf r; ED_LANES r.v[i] = (float)a.v[i]; return r; }
// To nearest, ties to even; what no int32 holds becomes the smallest, as on x86.
ED_OUT ni nround(nf a) {
  ni r;
  ED_LANES r.v[i] = std::fabs(a.v[i]) < 2147483648.0f ? (int32_t)std::nearbyint(a.v[i]) : INT32_MIN;
  return r;
}
ED_IN nf nexp2(ni n) {
  nf r;
  ED_LANES { uint32_t bits = ((uint32_t)n.v[i] + 127u) << 23; std::memcpy(&r.v[i], &bits, 4); }
  return r;
}
ED_IN ni niset(int x) { ni r; ED_LANES r.v[i] = x; return r; }
ED_IN ni niadd(ni a, ni b) { ED_LANES a.v[i] += b.v[i]; return a; }
ED_IN ni nishl8(ni a) { ED_LANES a.v[i] = (int32_t)((uint32_t)a.v[i] << 8); return a; }
ED_IN void nistore(uint8_t* p, ni x) { std::memcpy(p, x.v, sizeof x.v); }

ED_IN float from_half(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023, bits;
  float f;
  if (exponent == 0) {  // zero and subnormal: mantissa * 2^-24, exact
    f = (float)mantissa * 5.9604644775390625e-8f;
    std::memcpy(&bits, &f, 4);
    bits |= sign;
  } else {
    bits = sign | ((exponent == 31 ? 255u : exponent + 112u) << 23) | (mantissa << 13);
    if (exponent == 31 && mantissa) bits |= 0x400000;  // conversions quieten a NaN
  }
  std::memcpy(&f, &bits, 4);
  return f;
}
ED_IN uint16_t to_half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  uint32_t sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((size >> 13) & 0x1ff));
  if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (size < 0x38800000) {  // subnormal: round mantissa * 2^-24 to nearest even
    float scaled;
    std::memcpy(&scaled, &size, 4);
    return (uint16_t)(sign | (uint32_t)std::nearbyint(scaled * 16777216.0f));
  }
  uint32_t odd = (size >> 13) & 1;
  return (uint16_t)(sign | ((size - 0x38000000 + 0xfff + odd) >> 13));
}
ED_OUT nf nload_f16(const uint16_t* p) { nf r; ED_LANES r.v[i] = from_half(p[i]); return r; }
ED_OUT void nstore_f16(uint16_t* p, nf x) { ED_LANES p[i] = to_half(x.v[i]); }
ED_IN nf nload_i8(const int8_t* p) { nf r; ED_LANES r.v[i] = (float)p[i]; return r; }
ED_IN void nstore_i8(int8_t* p, ni x) { ED_LANES p[i] = (int8_t)x.v[i]; }
ED_OUT nf nload_u4(const uint8_t* p) {
  nf r;
  ED_LANES r.v[i] = (float)(i & 1 ? p[i / 2] >> 4 : p[i / 2] & 15);
  return r;
}
// Halves added to halves: i + (i + 8), then 4, 2, 1.
ED_OUT float nsum(nf a) {
  for (int n = W / 2; n; n /= 2)
    for (int i = 0; i < n; i++) a.v[i] += a.v[i + n];
  return a.v[0];
}
ED_IN float ntop(nf a) {
  for (int i = 1; i < W; i++) a.v[0] = a.v[i] > a.v[0] ? a.v[i] : a.v[0];
  return a.v[0];
}

// Lane i is nsum(a[i]).
ED_OUT nf nsums(const nf* a) { nf r; ED_LANES r.v[i] = nsum(a[i]); return r; }
// W bytes: the low halves and the high halves, 0 to 15.
ED_IN void nload_nibbles(const uint8_t* p, nf& low, nf& high) {
  ED_LANES low.v[i] = (float)(p[i] & 15), high.v[i] = (float)(p[i] >> 4);
}
// Four bytes are two bfloat16, in every lane: the first (low) and the second (high).
ED_IN nf nload_bf16(const uint16_t* p) {
  nf r;
  ED_LANES { const uint32_t bits = (uint32_t)p[i] << 16; std::memcpy(&r.v[i], &bits, 4); }
  return r;
}
ED_IN void nspread_bf16(const uint8_t* p, nf& low, nf& high) {
  uint32_t pair, first;
  std::memcpy(&pair, p, 4);
  first = pair << 16, pair &= 0xffff0000u;
  ED_LANES { std::memcpy(&low.v[i], &first, 4); std::memcpy(&high.v[i], &pair, 4); }
}

struct bytes {
  uint8_t v[4 * W];
};
// A tile's vectors have their steps summed together.
constexpr int step_vectors(int, int v) { return v; }
// Whether the sums of m rows by v vectors stay in registers beside those of a step.
constexpr bool keeps_sums(int m, int v) { return m * v <= 4; }
struct Pair {
  bytes lo, hi;
};
constexpr bool ZERO_BYTES = false;
constexpr bool SUMS16 = false;
constexpr int OFFSET8 = 0;
using acc4 = ni;
using acc8 = ni;
using w8 = bytes;
ED_IN bytes nbytes(const uint8_t* p) { bytes r; std::memcpy(r.v, p, sizeof r.v); return r; }
ED_OUT bytes nspread(const int8_t* x) {
  bytes r;
  for (int i = 0; i < 4 * W; i++) r.v[i] = (uint8_t)x[i & 3];
  return r;
}
ED_OUT Pair nibbles(bytes raw) {
  Pair p;
  for (int i = 0; i < 4 * W; i++) p.lo.v[i] = raw.v[i] & 15, p.hi.v[i] = raw.v[i] >> 4;
  return p;
}
// Of each byte the bits of MASK, after a shift to the right by BY (to the left where it is negative).
template <int BY, int MASK>
ED_OUT bytes nbits(bytes raw) {
  for (int i = 0; i < 4 * W; i++) raw.v[i] = (uint8_t)((BY < 0 ? raw.v[i] << (BY < 0 ? -BY : 0) : raw.v[i] >> (BY < 0 ? 0 : BY)) & MASK);
  return raw;
}
ED_OUT bytes nor8(bytes a, const bytes& b) {
  for (int i = 0; i < 4 * W; i++) a.v[i] |= b.v[i];
  return a;
}
// What MX4 has for codes of 0 to 15, a byte each.
ED_OUT bytes nlooked(bytes codes) {
  for (int i = 0; i < 4 * W; i++) codes.v[i] = edgedec::MX4_VALUES[codes.v[i]];
  return codes;
}
using w4 = bytes;
ED_IN w4 ready4(bytes b) { return b; }
ED_IN acc4 begin4(int c) { return niset(c); }
ED_OUT acc4 dot4(acc4 a, const bytes& w, const bytes& x) {
  ED_LANES for (int j = 0; j < 4; j++) a.v[i] += w.v[4 * i + j] * (int8_t)x.v[4 * i + j];
  return a;
}
ED_IN ni end4(acc4 a, int) { return a; }
ED_IN w8 ready8(bytes raw) { return raw; }
ED_IN acc8 begin8(int) { return niset(0); }
ED_OUT acc8 dot8(acc8 a, const w8& w, const bytes& x) {
  ED_LANES for (int j = 0; j < 4; j++) a.v[i] += (w.v[4 * i + j] - 128) * (int8_t)x.v[4 * i + j];
  return a;
}
ED_IN ni end8(acc8 a, int) { return a; }
// What the nibbles stand for in NL4.
using Looked = Pair;
ED_OUT Looked looked_up(bytes raw) {
  Pair p = nibbles(raw);
  for (int i = 0; i < 4 * W; i++)
    p.lo.v[i] = (uint8_t)(edgedec::NL4_VALUES[p.lo.v[i]] + 128), p.hi.v[i] = (uint8_t)(edgedec::NL4_VALUES[p.hi.v[i]] + 128);
  return p;
}
// 8 or 128 less the zero points of W outputs of a block: of int4 both nibbles of 8 bytes.
ED_OUT nf nload_zeros4(const uint8_t* p, int) { nf r; ED_LANES r.v[i] = (float)(8 - (p[i % 8] >> i / 8 * 4 & 15)); return r; }
ED_OUT nf nload_zeros8(const uint8_t* p) { nf r; ED_LANES r.v[i] = (float)(128 - p[i]); return r; }
ED_IN void nprefetch(const void*) {}
#undef ED_LANES

}  // namespace ED_NS
