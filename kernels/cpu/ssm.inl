// The state-space block between its projections: convolution, time steps, recurrence.
//
// An element of the state is fma(decay, before, (dt * x) * b), whatever the lanes; an output adds up the state_size
// products of its lane one after another, then fma(d, x, sum).
#pragma once
#include <cstring>

#include "kernels.h"
#include "simd/wide.h"

namespace ED_NS {

// Lane groups whose sums stay in registers together.
constexpr int SSM_GROUPS = NV == 1 ? 4 : 2;

static void conv(const float* const* taps, int n_taps, const float* weights, int64_t stride, const float* bias, int n,
                 float* out) {
  for (int i = 0; i < n; i += 16) {
    vf sum = vmul(vload_n(weights + i, n - i), vload_n(taps[0] + i, n - i));
    for (int t = 1; t < n_taps; t++)
      sum = vfma(vload_n(weights + t * stride + i, n - i), vload_n(taps[t] + i, n - i), sum);
    sum = vadd(sum, vload_n(bias + i, n - i));
    for (int j = 0; j < NV; j++) sum.r[j] = nactivate(sum.r[j], edgedec::SILU);
    vstore_n(out + i, sum, n - i);
  }
}

// log(1 + u) of u in 0..1: twice the series of atanh(z), z = u / (2 + u), z^2 at most 1/9.
ED_IN nf nlog1p(nf u) {
  const nf z = ndiv(u, nadd(nset(2.0f), u)), w = nmul(z, z);
  nf p = nset(1.0f / 17.0f);
  p = nfma(p, w, nset(1.0f / 15.0f));
  p = nfma(p, w, nset(1.0f / 13.0f));
  p = nfma(p, w, nset(1.0f / 11.0f));
  p = nfma(p, w, nset(1.0f / 9.0f));
  p = nfma(p, w, nset(1.0f / 7.0f));
  p = nfma(p, w, nset(1.0f / 5.0f));
  p = nfma(p, w, nset(1.0f / 3.0f));
  p = nfma(p, w, nset(1.0f));
  return nmul(nadd(z, z), p);
}
ED_IN nf nsoftplus(nf x) { return nadd(nmax(x, nzero()), nlog1p(nexp(nsub(nzero(), nabs(x))))); }

static void ssm_dt(const float* x, const float* bias, const float* a, int n, float min, float max, float* dt,
                   float* decay) {
  for (int i = 0; i < n; i += 16) {
    vf step = vadd(vload_n(x + i, n - i), vload_n(bias + i, n - i));
    for (int j = 0; j < NV; j++) step.r[j] = nmin(nmax(nsoftplus(step.r[j]), nset(min)), nset(max));
    vstore_n(dt + i, step, n - i);
    vstore_n(decay + i, vexp(vmul(step, vload_n(a + i, n - i))), n - i);
  }
}

template <int G, bool OUT>
ED_IN void step_groups(const edgedec::SsmStep& s, int group) {
  const int64_t size = (int64_t)s.state_size * 16;
  const float* from = s.from + group * size;
  float* to = s.to + group * size;
  vf x[G], input[G], sum[G];
  for (int g = 0; g < G; g++) {
    const int at = (group + g) * 16;
    x[g] = vload_n(s.x + at, s.head_dim - at);
    input[g] = vmul(vset(s.dt), x[g]);
    sum[g] = vset(0.0f);
  }
  const vf decay = vset(s.decay);
  for (int n = 0; n < s.state_size; n++) {
    const vf b = vset(s.b[n]), c = vset(OUT ? s.c[n] : 0.0f);
    for (int g = 0; g < G; g++) {
      const int64_t at = g * size + n * 16;
      const vf state = vfma(decay, vload(from + at), vmul(input[g], b));
      vstore(to + at, state);
      if constexpr (OUT) sum[g] = vfma(state, c, sum[g]);
    }
  }
  if constexpr (OUT)
    for (int g = 0; g < G; g++) {
      const int at = (group + g) * 16;
      vstore_n(s.y + at, vfma(vset(s.d), x[g], sum[g]), s.head_dim - at);
    }
}

template <bool OUT>
ED_IN void step_all(const edgedec::SsmStep& s, int group0, int group1) {
  int group = group0;
  for (; group + SSM_GROUPS <= group1; group += SSM_GROUPS) step_groups<SSM_GROUPS, OUT>(s, group);
  for (; group < group1; group++) step_groups<1, OUT>(s, group);
}

static void ssm_step(const edgedec::SsmStep& step, int group0, int group1) {
  edgedec::SsmStep s = step;
  if (!s.from) {
    const size_t size = (size_t)s.state_size * 16;
    std::memset(s.to + group0 * size, 0, (group1 - group0) * size * sizeof(float));
    s.from = s.to;
  }
  s.c ? step_all<true>(s, group0, group1) : step_all<false>(s, group0, group1);
}

static void softplus(const float* x, const float* bias, int n, float* y) {
  for (int i = 0; i < n; i += 16) {
    vf step = vadd(vload_n(x + i, n - i), vload_n(bias + i, n - i));
    for (int j = 0; j < NV; j++) step.r[j] = nsoftplus(step.r[j]);
    vstore_n(y + i, step, n - i);
  }
}

template <bool OUT>
ED_IN void s6_group(const edgedec::S6Step& s, int group) {
  const int at = group * 16, left = s.channels - at;
  const int64_t size = (int64_t)s.state_size * 16;
  const float *from = s.from + group * size, *a = s.a + group * size;
  float* to = s.to + group * size;
  const vf x = vload_n(s.x + at, left), dt = vload_n(s.dt + at, left), input = vmul(dt, x);
  vf sum = vset(0.0f);
  for (int n = 0; n < s.state_size; n++) {
    const vf state = vfma(vexp(vmul(dt, vload(a + n * 16))), vload(from + n * 16), vmul(input, vset(s.b[n])));
    vstore(to + n * 16, state);
    if constexpr (OUT) sum = vfma(state, vset(s.c[n]), sum);
  }
  if constexpr (OUT) vstore_n(s.y + at, vfma(vload_n(s.d + at, left), x, sum), left);
}

static void s6_step(const edgedec::S6Step& step, int group0, int group1) {
  edgedec::S6Step s = step;
  if (!s.from) {
    const size_t size = (size_t)s.state_size * 16;
    std::memset(s.to + group0 * size, 0, (group1 - group0) * size * sizeof(float));
    s.from = s.to;
  }
  for (int group = group0; group < group1; group++) s.c ? s6_group<true>(s, group) : s6_group<false>(s, group);
}

}  // namespace ED_NS
