// The ceilings: reading memory, and multiply-adds from registers.
#pragma once
#include "kernels.h"
#include "simd/wide.h"

namespace ED_NS {

// Reads `bytes` (a multiple of 4096).
static void probe_read(const uint8_t* p, uint64_t bytes) {
  nf a = nzero(), b = nzero(), c = nzero(), d = nzero();
  constexpr int N = W * 4;
  for (uint64_t i = 0; i < bytes; i += 4 * N) {
    nprefetch(p + i + 2048);
    if (N == 64) nprefetch(p + i + 2112), nprefetch(p + i + 2176), nprefetch(p + i + 2240);
    a = nmax(a, nload((const float*)(p + i)));
    b = nmax(b, nload((const float*)(p + i + N)));
    c = nmax(c, nload((const float*)(p + i + 2 * N)));
    d = nmax(d, nload((const float*)(p + i + 3 * N)));
  }
  volatile float keep = ntop(nmax(nmax(a, b), nmax(c, d)));
  (void)keep;
}

// `rounds` times twelve int4 products of 4 W each; the multiply-adds done.
static int64_t probe_int8(int64_t rounds) {
  constexpr int SUMS = 12;  // enough independent products to keep two multipliers busy
  alignas(64) uint8_t bytes[64 + 8] = {};
  for (int i = 0; i < 72; i++) bytes[i] = (uint8_t)(i % 7);
  auto w = nibbles(nbytes(bytes)).lo;
  const auto x = nspread((const int8_t*)bytes + 64);
  acc4 acc[SUMS];
#pragma GCC unroll 12
  for (int j = 0; j < SUMS; j++) acc[j] = begin4(0);
  for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 12
    for (int j = 0; j < SUMS; j++) {
      ED_OPAQUE(w);  // the compiler must not see that all products are alike
      acc[j] = dot4(acc[j], w, x);
    }
  }
  ni sum = niset(0);
#pragma GCC unroll 12
  for (int j = 0; j < SUMS; j++) sum = niadd(sum, end4(acc[j], 0));
  volatile float keep = nsum(nfloat(sum));
  (void)keep;
  return rounds * SUMS * 4 * W;
}

}  // namespace ED_NS
