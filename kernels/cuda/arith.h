// The CPU engine's functions of one float (kernels/cpu/simd/wide.h): the same operations in the same order.
#pragma once
#include "device.h"

enum Format { F32 = 1, F16 = 2, INT8 = 3, INT4 = 4, INT3 = 5, INT2 = 6 };
enum Activation { SILU = 0, GELU_TANH = 1, GELU = 2, RELU = 3, CLAMPED_SWIGLU = 4, RELU2 = 5, XIELU = 6 };
enum NormKind { NO_NORM = 0, RMS = 1, LAYER = 2 };
constexpr int LANES = 16;   // outputs of a group in the packed layout; lanes of a sum along a row
constexpr int CHUNK = 256;  // keys of an attention chunk
constexpr int PAGE_SLOTS = 64;

// Codes of weights (edgedec/bundle/integers.py): their bits, whether those lie in planes, and what is taken off a code
// times its step in sums of integers; nothing of INT8, whose bytes are made signed.
DEVICE constexpr int bits_of(int format) { return format == INT8 ? 8 : format == INT4 ? 4 : format == INT3 ? 3 : 2; }
DEVICE constexpr bool in_planes(int format) { return format == INT3 || format == INT2; }
DEVICE constexpr int off_code(int format) { return format == INT4 ? 8 : format == INT3 ? 4 : format == INT2 ? 3 : 0; }

// Of planes, the codes of inputs 4 i to 4 i + 3 of a step times their step, in bytes. low: the word of two bits that has
// them; high: of INT3, the word of one bit.
template <int FORMAT>
DEVICE uint32_t plane_bytes(uint32_t low, uint32_t high, int i) {
  const uint32_t codes = low >> 2 * (i & 3) & 0x03030303u;
  return FORMAT == INT2 ? codes << 1 : codes | (high >> i & 0x01010101u) << 2;
}

// To nearest, ties to even; what no int32 holds becomes the smallest.
DEVICE int round_int(float x) { return abs_(x) < 2147483648.0f ? (int)round_(x) : (int)0x80000000; }

DEVICE float exp_(float x) {
  x = smaller(larger(x, -87.0f), 88.0f);
  const int n = round_int(x * 1.44269504088896341f);
  float r = fma_((float)n, -0.693359375f, x);
  r = fma_((float)n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fma_(p, r, 1.3981999507e-3f);
  p = fma_(p, r, 8.3334519073e-3f);
  p = fma_(p, r, 4.1665795894e-2f);
  p = fma_(p, r, 1.6666665459e-1f);
  p = fma_(p, r, 5.0000001201e-1f);
  p = fma_(p, r * r, r) + 1.0f;
  return p * as_float(((uint32_t)n + 127u) << 23);
}

DEVICE float tanh_(float x) { return 1.0f - 2.0f / (exp_(x + x) + 1.0f); }

// erf(|x| / sqrt 2) is z times a polynomial in u = 2 (z / 5.5)^2 - 1, z = |x| up to 5.5, from where on it is 1.
DEVICE float gelu(float x) {
  const float z = smaller(5.5f, abs_(x)), u = fma_(z * z, 0.0661157025f, -1.0f);
  float p = -0.00182441855f;
  p = fma_(p, u, 0.00518571865f);
  p = fma_(p, u, -0.00503447885f);
  p = fma_(p, u, 0.00494790031f);
  p = fma_(p, u, -0.0125868116f);
  p = fma_(p, u, 0.0228529368f);
  p = fma_(p, u, -0.0307461657f);
  p = fma_(p, u, 0.0400581807f);
  p = fma_(p, u, -0.0518837906f);
  p = fma_(p, u, 0.0642273426f);
  p = fma_(p, u, -0.0776093975f);
  p = fma_(p, u, 0.0954712108f);
  p = fma_(p, u, -0.12834394f);
  p = fma_(p, u, 0.25710389f);
  return 0.5f * fma_(abs_(x), smaller(1.0f, z * p), x);
}

DEVICE float activate(float x, int kind) {
  if (kind == SILU) return x / (1.0f + exp_(0.0f - x));
  if (kind == GELU) return gelu(x);
  if (kind == RELU) return larger(0.0f, x);
  if (kind == RELU2) return larger(0.0f, x) * larger(0.0f, x);
  const float t = tanh_(0.7978845608028654f * fma_(0.044715f, x * x * x, x));
  return 0.5f * x * (1.0f + t);
}

// Two halves of a gated MLP: activation(gate) * up; CLAMPED_SWIGLU, of gates up to 7 and ups from -7 to 7:
// gate * sigmoid(1.702 gate) * (up + 1).
DEVICE float glu(float gate, float up, int kind) {
  if (kind != CLAMPED_SWIGLU) return activate(gate, kind) * up;
  gate = smaller(7.0f, gate), up = larger(-7.0f, smaller(7.0f, up));
  return gate / (1.0f + exp_(0.0f - 1.702f * gate)) * (up + 1.0f);
}

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp_(0.0f - x)); }

DEVICE uint64_t shuffle64(uint64_t x, int lane) {
  const uint32_t low = shuffle((uint32_t)x, lane), high = shuffle((uint32_t)(x >> 32), lane);
  return (uint64_t)high << 32 | low;
}

// Halves added to halves within sixteen lanes: i + (i + 8), 4, 2, 1.
DEVICE float sum16(float x) {
  x = x + shuffle_xor(x, 8);
  x = x + shuffle_xor(x, 4);
  x = x + shuffle_xor(x, 2);
  return x + shuffle_xor(x, 1);
}
