// Sixteen lanes, however wide the machine's vectors are, and functions of them.
#pragma once
#include <cstring>
#include <utility>

#if defined(__x86_64__) || defined(_M_X64)
#include <emmintrin.h>
#endif

#include "../kernels.h"

namespace ED_NS {

constexpr int NV = 16 / W;  // native vectors of sixteen lanes

// f(0), ... f(N - 1), each with a constant: what is indexed by it stays in registers.
template <class F, int... I>
ED_IN void each_of(F f, std::integer_sequence<int, I...>) {
  (f(std::integral_constant<int, I>()), ...);
}
template <int N, class F>
ED_IN void each(F f) {
  each_of(f, std::make_integer_sequence<int, N>());
}

struct vf {
  nf r[NV];
};

#define ED_EACH for (int i = 0; i < NV; i++)
ED_IN vf vset(float x) { vf y; ED_EACH y.r[i] = nset(x); return y; }
ED_IN vf vload(const float* p) { vf y; ED_EACH y.r[i] = nload(p + i * W); return y; }
ED_IN void vstore(float* p, const vf& x) { ED_EACH nstore(p + i * W, x.r[i]); }
ED_IN vf vadd(vf a, const vf& b) { ED_EACH a.r[i] = nadd(a.r[i], b.r[i]); return a; }
ED_IN vf vsub(vf a, const vf& b) { ED_EACH a.r[i] = nsub(a.r[i], b.r[i]); return a; }
ED_IN vf vmul(vf a, const vf& b) { ED_EACH a.r[i] = nmul(a.r[i], b.r[i]); return a; }
ED_IN vf vdiv(vf a, const vf& b) { ED_EACH a.r[i] = ndiv(a.r[i], b.r[i]); return a; }
ED_IN vf vmax(vf a, const vf& b) { ED_EACH a.r[i] = nmax(a.r[i], b.r[i]); return a; }
ED_IN vf vmin(vf a, const vf& b) { ED_EACH a.r[i] = nmin(a.r[i], b.r[i]); return a; }
// Of each lane one bit: is a at least b?
ED_IN uint32_t vat_least(const vf& a, const vf& b) {
  uint32_t m = 0;
  ED_EACH m |= nat_least(a.r[i], b.r[i]) << i * W;
  return m;
}
ED_IN vf vabs(vf a) { ED_EACH a.r[i] = nabs(a.r[i]); return a; }
ED_IN vf vfma(const vf& a, const vf& b, vf c) { ED_EACH c.r[i] = nfma(a.r[i], b.r[i], c.r[i]); return c; }
ED_IN vf vload_f16(const uint16_t* p) { vf y; ED_EACH y.r[i] = nload_f16(p + i * W); return y; }
ED_IN void vstore_f16(uint16_t* p, const vf& x) { ED_EACH nstore_f16(p + i * W, x.r[i]); }
ED_IN vf vload_bf16(const uint16_t* p) { vf y; ED_EACH y.r[i] = nload_bf16(p + i * W); return y; }
ED_IN vf vload_i8(const int8_t* p) { vf y; ED_EACH y.r[i] = nload_i8(p + i * W); return y; }
ED_IN vf vload_u4(const uint8_t* p) { vf y; ED_EACH y.r[i] = nload_u4(p + i * W / 2); return y; }
ED_IN void vload_nibbles(const uint8_t* p, vf& low, vf& high) { ED_EACH nload_nibbles(p + i * W, low.r[i], high.r[i]); }
ED_IN void vspread_bf16(const uint8_t* p, vf& low, vf& high) {
  nf first, second;
  nspread_bf16(p, first, second);
  ED_EACH low.r[i] = first, high.r[i] = second;
}
// Rounded to int8; x must lie in -128..127.
ED_IN void vstore_i8(int8_t* p, const vf& x) { ED_EACH nstore_i8(p + i * W, nround(x.r[i])); }

// The first n lanes from memory, zero in the others; and back.
ED_IN vf vload_n(const float* p, int n) {
  if (n >= 16) return vload(p);
  float t[16] = {};
  for (int i = 0; i < n; i++) t[i] = p[i];
  return vload(t);
}
ED_IN void vstore_n(float* p, const vf& x, int n) {
  if (n >= 16) return vstore(p, x);
  float t[16];
  vstore(t, x);
  for (int i = 0; i < n; i++) p[i] = t[i];
}

ED_IN float vsum(vf a) {
  for (int n = NV / 2; n; n /= 2)
    for (int i = 0; i < n; i++) a.r[i] = nadd(a.r[i], a.r[i + n]);
  return nsum(a.r[0]);
}
// Lane i is vsum(a[i]), of 16.
ED_IN vf vsums(const vf* a) {
  vf y;
  for (int part = 0; part < NV; part++) {
    nf t[W];
    for (int i = 0; i < W; i++) {
      vf x = a[part * W + i];
      for (int n = NV / 2; n; n /= 2)
        for (int j = 0; j < n; j++) x.r[j] = nadd(x.r[j], x.r[j + n]);
      t[i] = x.r[0];
    }
    y.r[part] = nsums(t);
  }
  return y;
}
ED_IN float vtop(vf a) {
  for (int i = 1; i < NV; i++) a.r[0] = nmax(a.r[0], a.r[i]);
  return ntop(a.r[0]);
}

// e^x to about 1 ulp: 2^n * p(r), r = x - n ln 2. Below -87 it is that of -87, above 88 that of 88.
ED_IN nf nexp(nf x) {
  x = nmin(nmax(x, nset(-87.0f)), nset(88.0f));
  ni n = nround(nmul(x, nset(1.44269504088896341f)));
  nf fn = nfloat(n);
  nf r = nfma(fn, nset(-0.693359375f), x);
  r = nfma(fn, nset(2.12194440e-4f), r);
  nf p = nset(1.9875691500e-4f);
  p = nfma(p, r, nset(1.3981999507e-3f));
  p = nfma(p, r, nset(8.3334519073e-3f));
  p = nfma(p, r, nset(4.1665795894e-2f));
  p = nfma(p, r, nset(1.6666665459e-1f));
  p = nfma(p, r, nset(5.0000001201e-1f));
  p = nadd(nfma(p, nmul(r, r), r), nset(1.0f));
  return nmul(p, nexp2(n));
}
// 1 - 2 / (e^2x + 1), good to about 1e-7 absolute.
ED_IN nf ntanh(nf x) {
  nf e = nexp(nadd(x, x));
  return nsub(nset(1.0f), ndiv(nset(2.0f), nadd(e, nset(1.0f))));
}
// x * (1 + erf(x / sqrt 2)) / 2, good to 1e-6: erf is z times a polynomial in u = 2 (z / 5.5)^2 - 1, z = |x| up to 5.5, from
// where on it is 1.
constexpr float ERF[] = {-0.00182441855f, 0.00518571865f, -0.00503447885f, 0.00494790031f,
                         -0.0125868116f, 0.0228529368f, -0.0307461657f, 0.0400581807f,
                         -0.0518837906f, 0.0642273426f, -0.0776093975f, 0.0954712108f,
                         -0.12834394f, 0.25710389f};
ED_IN nf ngelu(nf x) {
  const nf z = nmin(nset(5.5f), nabs(x)), u = nfma(nmul(z, z), nset(0.0661157025f), nset(-1.0f));
  nf p = nset(ERF[0]);
  for (int i = 1; i < 14; i++) p = nfma(p, u, nset(ERF[i]));
  return nmul(nset(0.5f), nfma(nabs(x), nmin(nset(1.0f), nmul(z, p)), x));
}
ED_IN nf nactivate(nf x, int kind) {
  if (kind == edgedec::SILU) return ndiv(x, nadd(nset(1.0f), nexp(nsub(nzero(), x))));
  if (kind == edgedec::GELU) return ngelu(x);
  if (kind == edgedec::RELU) return nmax(nzero(), x);  // of a NaN: NaN
  if (kind == edgedec::RELU2) return nmul(nmax(nzero(), x), nmax(nzero(), x));
  nf cube = nmul(nmul(x, x), x);
  nf t = ntanh(nmul(nset(0.7978845608028654f), nfma(nset(0.044715f), cube, x)));
  return nmul(nmul(nset(0.5f), x), nadd(nset(1.0f), t));
}
// Two halves of a gated MLP: activation(gate) * up; CLAMPED_SWIGLU, of gates up to 7 and ups from -7 to 7:
// gate * sigmoid(1.702 gate) * (up + 1). Of a NaN: NaN.
ED_IN nf nglu(nf gate, nf up, int kind) {
  if (kind != edgedec::CLAMPED_SWIGLU) return nmul(nactivate(gate, kind), up);
  const nf limit = nset(7.0f), one = nset(1.0f);
  gate = nmin(limit, gate), up = nmax(nset(-7.0f), nmin(limit, up));
  const nf act = ndiv(gate, nadd(one, nexp(nsub(nzero(), nmul(nset(1.702f), gate)))));
  return nmul(act, nadd(up, one));
}
ED_IN vf vexp(vf a) { ED_EACH a.r[i] = nexp(a.r[i]); return a; }
ED_IN vf vtanh(vf a) { ED_EACH a.r[i] = ntanh(a.r[i]); return a; }
#undef ED_EACH

// Four rows of 16 bytes -> four lines, word j of all rows side by side in line j; lines are `apart` bytes apart.
ED_IN void transpose4x4(const uint8_t* from, size_t row_bytes, uint8_t* to, size_t apart) {
#if defined(__x86_64__) || defined(_M_X64)
  __m128i r[4];
  for (int i = 0; i < 4; i++) r[i] = _mm_loadu_si128((const __m128i*)(from + i * row_bytes));
  __m128i a = _mm_unpacklo_epi32(r[0], r[1]), b = _mm_unpackhi_epi32(r[0], r[1]);
  __m128i c = _mm_unpacklo_epi32(r[2], r[3]), d = _mm_unpackhi_epi32(r[2], r[3]);
  _mm_storeu_si128((__m128i*)to, _mm_unpacklo_epi64(a, c));
  _mm_storeu_si128((__m128i*)(to + apart), _mm_unpackhi_epi64(a, c));
  _mm_storeu_si128((__m128i*)(to + 2 * apart), _mm_unpacklo_epi64(b, d));
  _mm_storeu_si128((__m128i*)(to + 3 * apart), _mm_unpackhi_epi64(b, d));
#else
  for (int j = 0; j < 4; j++)
    for (int i = 0; i < 4; i++) std::memcpy(to + apart * j + 4 * i, from + i * row_bytes + 4 * j, 4);
#endif
}

}  // namespace ED_NS
