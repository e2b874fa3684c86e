// The gated delta rule: what a head's state recalls of a key, the state with the difference added, and what it gives to
// the query.
//
// Whatever the lanes and however many rows follow one another, in each lane: the recalled value adds up the products
// state * (decay * key) one after another, an element of the state is fma(decay, before, key * change), and an output adds
// up its products with the query one after another.
#pragma once
#include <cstring>

#include "kernels.h"
#include "simd/wide.h"

namespace ED_NS {

// Lane groups whose sums stay in registers together.
constexpr int DELTA_GROUPS = NV == 1 ? 4 : 2;

// What a step has of each channel of its key. In variables: the compiler takes the stores of the state for changes of a
// step, and would load its pointers for each channel.
struct DeltaChannels {
  const float *decays, *b, *c;
  int each;  // 0: one decay of all channels

  explicit DeltaChannels(const edgedec::SsmStep& s)
      : decays(s.decays ? s.decays : &s.decay), b(s.b), c(s.c), each(s.decays ? 1 : 0) {}
  vf decay(int n) const { return vset(decays[n * each]); }
  vf key(int n) const { return vset(b[n]); }
};

// Of the state at `from`, before it decays.
template <int G>
ED_IN void recall(const edgedec::SsmStep& s, const float* from, vf* recalled) {
  const int width = s.state_size;
  const int64_t size = (int64_t)width * 16;
  const DeltaChannels own(s);
  for (int g = 0; g < G; g++) recalled[g] = vset(0.0f);
  for (int n = 0; n < width; n++) {
    const vf key = vmul(own.decay(n), own.key(n));
    for (int g = 0; g < G; g++) recalled[g] = vfma(vload(from + g * size + n * 16), key, recalled[g]);
  }
}

// One row. recalled: of the row's key, and then of that of row `next`, if NEXT.
template <int G, bool OUT, bool NEXT>
ED_IN void change(const edgedec::SsmStep& s, const edgedec::SsmStep* next, int group, vf* recalled) {
  const int width = s.state_size;
  const int64_t size = (int64_t)width * 16;
  const DeltaChannels own(s), after(NEXT ? *next : s);
  const float* from = s.from + group * size;
  float* to = s.to + group * size;
  vf given[G], sum[G];
  for (int g = 0; g < G; g++) {
    const int at = (group + g) * 16;
    given[g] = vmul(vset(s.dt), vsub(vload_n(s.x + at, s.head_dim - at), recalled[g]));
    sum[g] = recalled[g] = vset(0.0f);
  }
  for (int n = 0; n < width; n++) {
    const vf decay = own.decay(n), key = own.key(n), query = vset(OUT ? own.c[n] : 0.0f);
    const vf later = NEXT ? vmul(after.decay(n), after.key(n)) : key;
    for (int g = 0; g < G; g++) {
      const int64_t at = g * size + n * 16;
      const vf state = vfma(decay, vload(from + at), vmul(key, given[g]));
      vstore(to + at, state);
      if constexpr (OUT) sum[g] = vfma(state, query, sum[g]);
      if constexpr (NEXT) recalled[g] = vfma(state, later, recalled[g]);
    }
  }
  if constexpr (OUT)
    for (int g = 0; g < G; g++) vstore_n(s.y + (group + g) * 16, sum[g], s.head_dim - (group + g) * 16);
}

template <int G>
ED_IN void delta_groups(const edgedec::SsmStep* s, int n, int group) {
  vf recalled[G];
  recall<G>(s[0], s[0].from + (int64_t)group * s[0].state_size * 16, recalled);
  for (int i = 0; i + 1 < n; i++)
    s[i].c ? change<G, true, true>(s[i], s + i + 1, group, recalled)
           : change<G, false, true>(s[i], s + i + 1, group, recalled);
  s += n - 1;
  s->c ? change<G, true, false>(*s, nullptr, group, recalled) : change<G, false, false>(*s, nullptr, group, recalled);
}

static void delta_steps(const edgedec::SsmStep* steps, int n, int group0, int group1) {
  int group = group0;
  for (; group + DELTA_GROUPS <= group1; group += DELTA_GROUPS) delta_groups<DELTA_GROUPS>(steps, n, group);
  for (; group < group1; group++) delta_groups<1>(steps, n, group);
}

}  // namespace ED_NS
