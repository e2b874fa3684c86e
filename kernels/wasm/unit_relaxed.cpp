// WebAssembly with relaxed 128-bit vectors; see simd/wasm.h.
#define ED_NS ed_relaxed
#define ED_NAME "wasm-relaxed"
#define ED_RELAXED
#include "kernels.h"
#include "simd/wasm.h"

#include "unit.inl"

const edgedec::Kernels* edgedec::kernels_relaxed() { return &ED_NS::TABLE; }

// Whether multiply-adds round once here, and dot products are as specified.
bool edgedec::relaxed_is_exact() {
  // (1 + 2^-12)^2 - 1 keeps its 2^-24 only if it is rounded once.
  volatile float near_one = 1.000244140625f, minus_one = -1.0f;
  const v128_t x = wasm_f32x4_splat(near_one), sum = wasm_f32x4_relaxed_madd(x, x, wasm_f32x4_splat(minus_one));
  if (wasm_f32x4_extract_lane(sum, 0) != 0x1.0008p-11f) return false;
  volatile int8_t weight = 15, least = -128, most = 127;
  const v128_t w = wasm_i8x16_splat(weight), one = wasm_i32x4_splat(1);
  const v128_t low = wasm_i32x4_relaxed_dot_i8x16_i7x16_add(wasm_i8x16_splat(least), w, one);
  const v128_t high = wasm_i32x4_relaxed_dot_i8x16_i7x16_add(wasm_i8x16_splat(most), w, one);
  return wasm_i32x4_extract_lane(low, 0) == 4 * 15 * -128 + 1 && wasm_i32x4_extract_lane(high, 3) == 4 * 15 * 127 + 1;
}
