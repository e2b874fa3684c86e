#include "differential.h"

#include <cmath>

namespace edgedec {

namespace {

double dot(const float* a, const float* b, int n) {
  double sum = 0.0;
  for (int i = 0; i < n; i++) sum += (double)a[i] * b[i];
  return sum;
}

// What the second head of each pair is multiplied by.
float factor_of(const ed_attention& m) {
  const int n = m.head_dim / 2;
  const float* l = m.lambdas;
  return (float)(std::exp(dot(l, l + n, n)) - std::exp(dot(l + 2 * n, l + 3 * n, n)) + m.differential);
}

}  // namespace

HeadPairs::HeadPairs(Engine& engine, const ed_attention& m)
    : engine_(engine),
      m_(m),
      half_(m.head_dim / 2),
      narrow_(m.heads * half_),
      factor_(factor_of(m)),
      s_(engine.shared<Scratch>()) {}

void HeadPairs::widen(int rows, float* qkv, int64_t width) {
  const int rest = m_.qkv.n - narrow_;
  engine_.pool().parallel_for(rows, engine_.grain(rows), [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      const float* from = s_.rows.p + (size_t)r * m_.qkv.n;
      float* to = qkv + r * width;
      for (int h = 0; h < m_.heads; h++, from += half_, to += m_.head_dim) {
        std::fill_n(to, m_.head_dim, 0.0f);
        std::copy_n(from, half_, to + h % 2 * half_);
      }
      std::copy_n(from, rest, to);
    }
  });
}

const float* HeadPairs::subtract(const float* attended, int rows) {
  const int d = m_.head_dim;
  engine_.pool().parallel_for(rows, engine_.grain(rows), [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      const float* a = attended + (size_t)r * m_.heads * d;
      float* to = s_.rows.p + (size_t)r * narrow_;
      for (int h = 0; h < m_.heads; h += 2, a += 2 * d, to += d) {
        for (int i = 0; i < d; i++) {
          const float less = factor_ * a[d + i];
          to[i] = a[i] - less;
        }
        engine_.kernels().norm(to, m_.pair_norm, d, engine_.model().norm_eps, to);
      }
    }
  });
  return s_.rows.p;
}

}  // namespace edgedec
