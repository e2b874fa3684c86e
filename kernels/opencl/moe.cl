// Mixture of experts: which experts a row goes through, and the weighted sum of what they give (kernels/cuda/moe.h).
enum { SOFTMAX = 0, SOFTMAX_TOPK = 1, SIGMOID = 2, SPARSEMIXER = 3 };

// Sums here are one after another, as the CPU engine's: experts are few.
static inline void softmax(__global const float* x, int n, __global float* y) {
  float most = -INFINITY, total = 0.0f;
  for (int i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
  for (int i = 0; i < n; i++) y[i] = exp_(x[i] - most);
  for (int i = 0; i < n; i++) total = total + y[i];
  for (int i = 0; i < n; i++) y[i] = divide(y[i], total);
}

// The k largest in order; of equals the smaller number.
static inline void rank_experts(__global const float* scores, int n, int k, __global int* best) {
  for (int e = 0, held = 0; e < n; e++) {
    if (held == k && !(scores[e] > scores[best[held - 1]])) continue;
    int at = held < k ? held++ : held - 1;
    for (; at && scores[e] > scores[best[at - 1]]; at--) best[at] = best[at - 1];
    best[at] = e;
  }
}

// kept = scores, with -infinity for the experts of all groups but the `top` whose two best have the largest sum; of equals
// the smaller number. sums [groups]; kept may be scores.
static inline void keep_best_groups(__global const float* scores, int n, int groups, int top, __global float* kept, __global float* sums) {
  const int size = n / groups;
  for (int g = 0; g < groups; g++) {
    float first = -INFINITY, second = -INFINITY;
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
    for (int e = g * size; e < (g + 1) * size; e++) kept[e] = before < top ? scores[e] : -INFINITY;
  }
}

// Of SPARSEMIXER: each chosen expert weighed by softmax among those that are not chosen before it and near its logit.
static inline void mix_experts(__global const float* logits, int n, __global const int* chosen, int k, float jitter,
                               __global float* weights) {
  for (int j = 0; j < k; j++) {
    const float best = logits[chosen[j]];
    float total = 0.0f;
    for (int e = 0; e < n; e++) {
      const float size = fabs(logits[e]), limit = 2.0f * jitter * (size < best ? best : size);
      bool near = !(best - logits[e] > limit);
      for (int i = 0; i < j; i++) near = near && chosen[i] != e;
      if (near) total = total + exp_(logits[e] - best);
    }
    weights[j] = divide(1.0f, total);
  }
}

// A row a block, by its first thread.
__kernel void route(RouteArgs a, __local uchar* memory) {
  const int row = BLOCK_X;
  if (row >= STEP_OF(a)->rows || THREAD) return;
  __global const float *logits = AT(const float, a.logits) + (long)row * a.n, *ranked = logits;
  __global float *scores = AT(float, a.scratch) + (long)row * 3 * a.n, *biased = scores + a.n;
  __global float* weights = AT(float, a.weights) + row * a.top_k;
  __global int* experts = AT(int, a.experts) + row * a.top_k;
  if (a.router == SIGMOID) {
    for (int e = 0; e < a.n; e++) scores[e] = sigmoid(logits[e]);
    ranked = scores;
  } else {
    softmax(logits, a.n, scores);
  }
  if (a.bias) {
    for (int e = 0; e < a.n; e++) biased[e] = scores[e] + AT(const float, a.bias)[e];
    ranked = biased;
  }
  if (a.groups > 1) {
    keep_best_groups(ranked, a.n, a.groups, a.top_groups, biased, biased + a.n);
    ranked = biased;
  }
  rank_experts(ranked, a.n, a.top_k, experts);
  for (int j = 0; j < a.top_k; j++) weights[j] = a.router == SOFTMAX_TOPK ? logits[experts[j]] : scores[experts[j]];
  if (a.router == SPARSEMIXER) mix_experts(logits, a.n, experts, a.top_k, a.jitter, weights);
  if (a.router == SOFTMAX_TOPK) softmax(weights, a.top_k, weights);
  float total = a.normalize ? 0.0f : 1.0f;
  if (a.normalize)
    for (int j = 0; j < a.top_k; j++) total = total + weights[j];
  for (int j = 0; j < a.top_k; j++) weights[j] = divide(weights[j], total) * a.scale;
}

// out = the weighted sum of a row's experts in the order of their rank, the shared one last.
__kernel void combine(CombineArgs a, __local uchar* memory) {
  const int row = BLOCK_X;
  if (row >= STEP_OF(a)->rows) return;
  __global const float* weights = AT(const float, a.weights) + row * a.top_k;
  const float gate = a.shared_gate ? sigmoid(AT(const float, a.shared_gate)[row]) : 1.0f;
  for (int i = THREAD; i < a.width; i += THREADS) {
    float y = 0.0f;
    for (int j = 0; j < a.top_k; j++)
      y = fma(weights[j], AT(const float, a.experts)[((long)row * a.top_k + j) * a.width + i], y);
    if (a.shared) y = fma(gate, AT(const float, a.shared)[(long)row * a.width + i], y);
    AT(float, a.out)[(long)row * a.width + i] = y;
  }
}
