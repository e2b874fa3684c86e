// RWKV-7: what a head's state has of the key that is sought, the decayed state with that replaced by the row's value, and what
// it gives to r.
//
// In each lane the sum over the key's channels adds up its products one after another, an element of the state is
// fma(k, v, fma(replaced, -found, decay * before)), and an output adds up its products with r one after another.
#pragma once
#include "kernels.h"
#include "simd/wide.h"

namespace ED_NS {

// Lane groups whose sums stay in registers together.
constexpr int RWKV7_GROUPS = NV == 1 ? 4 : 2;

template <int G>
ED_IN void rwkv7_groups(const edgedec::SsmStep& s, int group) {
  const int64_t size = (int64_t)s.state_size * 16;
  const float* from = s.from + group * size;
  float* to = s.to + group * size;
  vf found[G], value[G], sum[G];
  for (int g = 0; g < G; g++) {
    const int at = (group + g) * 16;
    value[g] = vload_n(s.x + at, s.head_dim - at);
    found[g] = sum[g] = vset(0.0f);
  }
  for (int n = 0; n < s.state_size; n++)
    for (int g = 0; g < G; g++) found[g] = vfma(vload(from + g * size + n * 16), vset(s.sought[n]), found[g]);
  for (int g = 0; g < G; g++) found[g] = vsub(vset(0.0f), found[g]);
  for (int n = 0; n < s.state_size; n++) {
    const vf decay = vset(s.decays[n]), key = vset(s.b[n]), replaced = vset(s.replaced[n]), query = vset(s.c ? s.c[n] : 0.0f);
    for (int g = 0; g < G; g++) {
      const int64_t at = g * size + n * 16;
      const vf state = vfma(key, value[g], vfma(replaced, found[g], vmul(decay, vload(from + at))));
      vstore(to + at, state);
      sum[g] = vfma(state, query, sum[g]);
    }
  }
  if (!s.c) return;
  for (int g = 0; g < G; g++) vstore_n(s.y + (group + g) * 16, sum[g], s.head_dim - (group + g) * 16);
}

static void rwkv7_step(const edgedec::SsmStep& s, int group0, int group1) {
  int group = group0;
  for (; group + RWKV7_GROUPS <= group1; group += RWKV7_GROUPS) rwkv7_groups<RWKV7_GROUPS>(s, group);
  for (; group < group1; group++) rwkv7_groups<1>(s, group);
}

}  // namespace ED_NS
