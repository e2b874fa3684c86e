// Functions of router scores, and the weighted sum of a row's experts.
#pragma once
#include "kernels.h"
#include "simd/wide.h"

namespace ED_NS {

static void exp_shifted(const float* x, int n, float shift, float* y) {
  for (int i = 0; i < n; i += 16) vstore_n(y + i, vexp(vsub(vload_n(x + i, n - i), vset(shift))), n - i);
}

static void sigmoid(const float* x, int n, float* y) {
  const vf one = vset(1.0f), zero = vset(0.0f);
  for (int i = 0; i < n; i += 16)
    vstore_n(y + i, vdiv(one, vadd(one, vexp(vsub(zero, vload_n(x + i, n - i))))), n - i);
}

static void scale_add(const float* x, int n, float scale, float* y) {
  for (int i = 0; i < n; i += 16)
    vstore_n(y + i, vfma(vset(scale), vload_n(x + i, n - i), vload_n(y + i, n - i)), n - i);
}

}  // namespace ED_NS
