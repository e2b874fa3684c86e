// What low-rank weights add to products, for the sequences that name them: those of one adapter, or of a set of adapters
// those of the two that fit a row best (edgedec/bundle/routed.py). What a row takes depends on that row alone, and adapters
// add to it in the order of the set, so it does not matter which rows share a call.
#include <algorithm>

#include "engine.h"

namespace edgedec {

namespace {

constexpr float NORM_EPS = 1e-5f, SUM_EPS = 1e-6f;

// ones [k]: weights of the norm; normed [rows, k]; weights [rows, parts * adapters]: scores at first. Of the rows that take
// an adapter: their numbers, shares, inputs [rows, k] and outputs.
struct RoutedRows {
  Buffer<float> ones, normed, weights, shares, x, y;
  Buffer<int> rows;
};

struct LowRankRows {
  Buffer<float> low;  // [rows, rank]
};

// The scores of the adapters become their weights: the shares that the best two have of the softmax, over their sum; of
// equals the first counts as better.
void weigh(const Kernels& kernels, float* scores, int n) {
  int best = 0, next = -1;
  for (int i = 1; i < n; i++)
    if (scores[i] > scores[best]) next = best, best = i;
    else if (next < 0 || scores[i] > scores[next]) next = i;
  kernels.exp_shifted(scores, n, scores[best], scores);
  float sum = 0.0f;
  for (int i = 0; i < n; i++) sum += scores[i];
  const float one = scores[best] / sum, two = next < 0 ? 0.0f : scores[next] / sum, both = one + two + SUM_EPS;
  std::fill(scores, scores + n, 0.0f);
  scores[best] = one / both;
  if (next >= 0) scores[next] = two / both;
}

}  // namespace

bool Engine::adapted(const BlockCall& call, int which) const {
  for (const SequenceRows& s : call.sequences)
    if (s.lora && (s.lora[which].rank > 0 || s.lora[which].route)) return true;
  return false;
}

void Engine::adapt(const BlockCall& call, int which, const float* x, int k, float* y, int n) {
  for (const SequenceRows& s : call.sequences) {
    if (!s.lora) continue;
    const ed_lora& lora = s.lora[which];
    const float* in = x + (size_t)s.row * k;
    float* out = y + (size_t)s.row * n;
    if (lora.route) add_routed(*lora.route, in, k, s.rows, out, n);
    else if (lora.rank > 0) add_low_rank(lora, in, k, s.rows, nullptr, out, n, ADD);
  }
}

// y [rows, n] of b (a x), times a weight of each row if there are any; epilogue: ADD or STORE.
void Engine::add_low_rank(const ed_lora& lora, const float* x, int k, int rows, const float* weights, float* y, int n,
                          int epilogue) {
  Buffer<float>& low = shared<LowRankRows>().low;
  low.need((size_t)rows * lora.rank);
  Product down{}, up{};
  down.w = {F32, ROWS, lora.rank, k, 0, 0, (const uint8_t*)lora.a, nullptr, nullptr};
  down.a.x = x, down.rows = rows, down.out = low.p, down.stride = lora.rank;
  multiply(down);
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < lora.rank; i++) low.p[(size_t)r * lora.rank + i] *= weights ? weights[r] * lora.scale : lora.scale;
  up.w = {F32, ROWS, n, lora.rank, 0, 0, (const uint8_t*)lora.b, nullptr, nullptr};
  up.a.x = low.p, up.rows = rows, up.out = y, up.stride = n, up.epilogue = epilogue;
  multiply(up);
}

void Engine::add_routed(const ed_route& route, const float* x, int k, int rows, float* y, int n) {
  RoutedRows& s = shared<RoutedRows>();
  const int all = route.parts * route.adapters;
  s.ones.need(k), s.normed.need((size_t)rows * k), s.weights.need((size_t)rows * all);
  std::fill(s.ones.p, s.ones.p + k, 1.0f);
  pool_.parallel_for(rows, grain(rows), [&](int begin, int end, int) {
    for (int r = begin; r < end; r++)
      kernels_.layer_norm(x + (size_t)r * k, s.ones.p, nullptr, k, NORM_EPS, s.normed.p + (size_t)r * k);
  });
  Product scores{};
  scores.w = {F32, ROWS, all, k, 0, 0, (const uint8_t*)route.gates, nullptr, nullptr};
  scores.a.x = s.normed.p, scores.rows = rows, scores.out = s.weights.p, scores.stride = all;
  multiply(scores);
  for (int i = 0; i < rows * route.parts; i++) weigh(kernels_, s.weights.p + (size_t)i * route.adapters, route.adapters);
  for (int i = 0; i < all; i++) {
    const int part = i / route.adapters;
    add_taken(route.loras[i], x, k, rows, s.weights.p + i, all, y + route.first[part], n, route.count[part]);
  }
}

// y [rows, n] += what an adapter makes of the rows that take it, in the first `count` outputs; weights: of row r at
// r * stride.
void Engine::add_taken(const ed_lora& lora, const float* x, int k, int rows, const float* weights, int stride, float* y,
                       int n, int count) {
  RoutedRows& s = shared<RoutedRows>();
  s.rows.need(rows), s.shares.need(rows), s.x.need((size_t)rows * k), s.y.need((size_t)rows * count);
  int taken = 0;
  for (int r = 0; r < rows; r++) {
    if (!(weights[(size_t)r * stride] > 0)) continue;
    std::copy_n(x + (size_t)r * k, k, s.x.p + (size_t)taken * k);
    s.rows.p[taken] = r, s.shares.p[taken++] = weights[(size_t)r * stride];
  }
  if (!taken) return;
  add_low_rank(lora, s.x.p, k, taken, s.shares.p, s.y.p, count, STORE);
  for (int i = 0; i < taken; i++) kernels_.add(s.y.p + (size_t)i * count, count, y + (size_t)s.rows.p[i] * n);
}

}  // namespace edgedec
