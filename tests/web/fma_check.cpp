// For test_fma.py: multiply-adds of simd/wasm.h over arrays.
#define ED_NS checked
#include "kernels.h"
#include "simd/wasm.h"

extern "C" __attribute__((visibility("default"))) void fma_all(const float* a, const float* b, const float* c, float* out,
                                                               int n) {
  for (int i = 0; i < n; i += 4)
    checked::nstore(out + i, checked::nfma(checked::nload(a + i), checked::nload(b + i), checked::nload(c + i)));
}

extern "C" __attribute__((visibility("default"))) void halves_all(const uint16_t* from, float* out, int n) {
  for (int i = 0; i < n; i += 4) checked::nstore(out + i, checked::nload_f16(from + i));
}

extern "C" __attribute__((visibility("default"))) void to_halves_all(const float* from, uint16_t* out, int n) {
  for (int i = 0; i < n; i += 4) checked::nstore_f16(out + i, checked::nload(from + i));
}
