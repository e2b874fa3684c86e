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

// `rounds` times ten int4 products of 4 W each; the multiply-adds done.
static int64_t probe_int8(int64_t rounds) {
  alignas(64) uint8_t bytes[64 + 8] = {};
  for (int i = 0; i < 72; i++) bytes[i] = (uint8_t)(i % 7);
  auto w = nibbles(nbytes(bytes)).lo;
  auto x = nspread((const int8_t*)bytes + 64);
  acc4 acc[10];
  for (auto& a : acc) a = begin4(0);
  for (int64_t i = 0; i < rounds; i++) {
    for (auto& a : acc) a = dot4(a, w, x);
    // The compiler must not see that every round is alike.
    ED_OPAQUE(acc[0]);
    ED_OPAQUE(w);
  }
  ni sum = niset(0);
  for (auto& a : acc) sum = niadd(sum, end4(a, 0));
  volatile float keep = nsum(nfloat(sum));
  (void)keep;
  return rounds * 10 * 4 * W;
}

}  // namespace ED_NS
