// Mixture of experts: which experts a row goes through, and the weighted sum of what they give.
#pragma once
#include "args.h"
#include "arith.h"

enum Router { SOFTMAX = 0, SOFTMAX_TOPK = 1, SIGMOID = 2, SPARSEMIXER = 3 };

// Sums here are one after another, as the CPU engine's: experts are few.
DEVICE void softmax(const float* x, int n, float* y) {
  float most = -infinity(), total = 0.0f;
  for (int i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
  for (int i = 0; i < n; i++) y[i] = exp_(x[i] - most);
  for (int i = 0; i < n; i++) total = total + y[i];
  for (int i = 0; i < n; i++) y[i] = y[i] / total;
}

// The k largest in order; of equals the smaller number.
DEVICE void rank_experts(const float* scores, int n, int k, int32_t* best) {
  for (int e = 0, held = 0; e < n; e++) {
    if (held == k && !(scores[e] > scores[best[held - 1]])) continue;
    int at = held < k ? held++ : held - 1;
    for (; at && scores[e] > scores[best[at - 1]]; at--) best[at] = best[at - 1];
    best[at] = e;
  }
}

// kept = scores, with -infinity for the experts of all groups but the `top` whose two best have the largest sum; of equals
// the smaller number. sums [groups]; kept may be scores.
DEVICE void keep_best_groups(const float* scores, int n, int groups, int top, float* kept, float* sums) {
  const int size = n / groups;
  for (int g = 0; g < groups; g++) {
    float first = -infinity(), second = -infinity();
    for (int e = g * size; e < (g + 1) * size; e++) {
      const float x = scores[e];
      second = x > first ? first : x > second ? x : second;
      first = x > first ? x : first;
    }
    sums[g] = first + second;
  }
  for (int g = 0; g < groups; g++) {
    int before = 0;
    for (int o = 0; o < groups; o++) before += sums[o] > sums[g] || (sums[o] == sums[g] && o < g);
    for (int e = g * size; e < (g + 1) * size; e++) kept[e] = before < top ? scores[e] : -infinity();
  }
}

// Of SPARSEMIXER: each chosen expert weighed by softmax among those that are not chosen before it and near its logit.
DEVICE void mix_experts(const float* logits, int n, const int32_t* chosen, int k, float jitter, float* weights) {
  for (int j = 0; j < k; j++) {
    const float best = logits[chosen[j]];
    float total = 0.0f;
    for (int e = 0; e < n; e++) {
      const float size = abs_(logits[e]), limit = 2.0f * jitter * (size < best ? best : size);
      bool near = !(best - logits[e] > limit);
      for (int i = 0; i < j; i++) near = near && chosen[i] != e;
      if (near) total = total + exp_(logits[e] - best);
    }
    weights[j] = 1.0f / total;
  }
}

// A row a block, by its first thread.
KERNEL(route, RouteArgs, 32) {
  const int row = BLOCK_X;
  if (row >= a.step->rows || THREAD) return;
  const float *logits = a.logits + (int64_t)row * a.n, *ranked = logits;
  float *scores = a.scratch + (int64_t)row * 3 * a.n, *biased = scores + a.n, *weights = a.weights + row * a.top_k;
  int32_t* experts = a.experts + row * a.top_k;
  if (a.router == SIGMOID) {
    for (int e = 0; e < a.n; e++) scores[e] = sigmoid(logits[e]);
    ranked = scores;
  } else {
    softmax(logits, a.n, scores);
  }
  if (a.bias) {
    for (int e = 0; e < a.n; e++) biased[e] = scores[e] + a.bias[e];
    ranked = biased;
  }
  if (a.groups > 1) {
    keep_best_groups(ranked, a.n, a.groups, a.top_groups, biased, biased + a.n);
    ranked = biased;
  }
  rank_experts(ranked, a.n, a.top_k, experts);
  for (int j = 0; j < a.top_k; j++) weights[j] = (a.router == SOFTMAX_TOPK ? logits : scores)[experts[j]];
  if (a.router == SPARSEMIXER) mix_experts(logits, a.n, experts, a.top_k, a.jitter, weights);
  if (a.router == SOFTMAX_TOPK) softmax(weights, a.top_k, weights);
  float total = a.normalize ? 0.0f : 1.0f;
  if (a.normalize)
    for (int j = 0; j < a.top_k; j++) total = total + weights[j];
  for (int j = 0; j < a.top_k; j++) weights[j] = weights[j] / total * a.scale;
}

// out = the weighted sum of a row's experts in the order of their rank, the shared one last.
KERNEL(combine, CombineArgs, 256) {
  const int row = BLOCK_X;
  if (row >= a.step->rows) return;
  const float* weights = a.weights + row * a.top_k;
  const float gate = a.shared_gate ? sigmoid(a.shared_gate[row]) : 1.0f;
  for (int i = THREAD; i < a.width; i += THREADS) {
    float y = 0.0f;
    for (int j = 0; j < a.top_k; j++)
      y = fma_(weights[j], a.experts[((int64_t)row * a.top_k + j) * a.width + i], y);
    if (a.shared) y = fma_(gate, a.shared[(int64_t)row * a.width + i], y);
    a.out[(int64_t)row * a.width + i] = y;
  }
}
