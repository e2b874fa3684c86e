// The vocabulary's best tokens and the sums of exp, by strips of 512 logits (kernels/cuda/head.h).
#define STRIP 512

// A logit and its token as a number that sorts as they do: larger logits first, of equals the smaller token. NaN: 0.
static inline ulong rank_of(float logit, int token) {
  if (!(logit == logit)) return 0;
  const uint bits = as_uint(logit + 0.0f), ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return (ulong)ordered << 32 | (0xffffffffu - (uint)token);
}

// The largest of a strip, and the sum of exp in 16 lanes; `lanes` [32].
static inline void strip_sum(__global const float* x, int n, float heat, __global float* out, __local float* lanes) {
  if (THREAD < LANES) {
    float most = -INFINITY;
    for (int i = THREAD; i < n; i += LANES) most = larger(x[i], most);
    lanes[THREAD] = most;
  }
  BARRIER;
  float most = -INFINITY;
  for (int i = 0; i < LANES; i++) most = larger(lanes[i], most);
  BARRIER;
  if (THREAD < LANES) {
    float sum = 0.0f, nothing = 0.0f;
    for (int i = THREAD; i < n; i += LANES) {
      sum = sum + exp_((x[i] - most) * heat);
      nothing = nothing + (x[i] - x[i]);
    }
    lanes[THREAD] = sum, lanes[LANES + THREAD] = nothing;
  }
  BARRIER;
  if (THREAD == 0) out[0] = most, out[1] = sum_lanes(lanes) + sum_lanes(lanes + LANES);
}

// A strip sorted, the best first; n 0: left as it is.
static inline void sort_strip(__local ulong* keys, int n) {
  for (int size = 2; size <= n; size *= 2)
    for (int step = size / 2; step; step /= 2) {
      BARRIER;
      for (int i = THREAD; i < STRIP / 2; i += THREADS) {
        const int at = 2 * i - (i & (step - 1)), other = at + step;
        const ulong x = keys[at], y = keys[other];
        if ((x < y) == ((at & size) == 0)) keys[at] = y, keys[other] = x;
      }
    }
  BARRIER;
}

// The largest that any thread has; `all` [THREADS].
static inline ulong block_most(ulong x, __local ulong* all) {
  BARRIER;
  all[THREAD] = x;
  BARRIER;
  for (int i = 0; i < THREADS; i++) x = max(all[i], x);
  return x;
}

// Strips [x] of rows [y]: sums, and their best sorted.
__kernel void strips(BestArgs a, __local uchar* memory) {
  __local float lanes[2 * LANES];
  __local ulong* keys = (__local ulong*)memory;
  __global const Step* step = STEP_OF(a);
  const int row = BLOCK_Y, n_strips = (a.vocab + STRIP - 1) / STRIP, from = BLOCK_X * STRIP, n = min(STRIP, a.vocab - from);
  if (row >= step->n_head) return;
  __global const float* x = AT(const float, a.logits) + (long)row * a.vocab + from;
  const long at = (long)row * n_strips + BLOCK_X;
  strip_sum(x, n, AT(const float, step->heat)[row], AT(float, a.strips) + 2 * at, lanes);
  ulong best = 0;
  for (int i = THREAD; i < (a.top ? n : 0); i += THREADS) best = max(rank_of(x[i], from + i), best);
  best = block_most(best, keys);
  if (THREAD == 0 && a.top) AT(ulong, a.sorted)[at * a.top] = best;
  BARRIER;
  for (int i = THREAD; i < STRIP; i += THREADS) keys[i] = i < n ? rank_of(x[i], from + i) : 0;
  sort_strip(keys, a.top > 1 ? STRIP : 0);
  for (int i = a.top > 1 ? THREAD : STRIP; i < min(a.top, STRIP); i += THREADS) AT(ulong, a.sorted)[at * a.top + i] = keys[i];
}

// Of each row the best of all strips: a row a block. A thread keeps its place in its strips.
__kernel void best_tokens(BestArgs a, __local uchar* memory) {
  __local ulong all[256];
  const int row = BLOCK_X, n_strips = (a.vocab + STRIP - 1) / STRIP, each = min(a.top, STRIP);
  __local int* next = (__local int*)(memory + 256);
  if (row >= STEP_OF(a)->n_head) return;
  __global const ulong* sorted = AT(const ulong, a.sorted) + (long)row * n_strips * a.top;
  for (int s = THREAD; s < n_strips; s += THREADS) next[s] = 0;
  for (int j = 0; j < a.top; j++) {
    ulong best = 0;
    int from = -1;
    for (int s = THREAD; s < n_strips; s += THREADS) {
      const ulong x = next[s] < each ? sorted[(long)s * a.top + next[s]] : 0;
      if (x > best) best = x, from = s;
    }
    const ulong found = block_most(best, all);
    if (from >= 0 && best == found) next[from]++;  // ranks differ by their tokens: one thread's
    if (THREAD == 0) {
      const int token = (int)(0xffffffffu - (uint)found);
      const float logit = found ? AT(const float, a.logits)[(long)row * a.vocab + token] : -INFINITY;
      AT(int, a.ids)[(long)row * a.top + j] = logit - logit == 0.0f ? token : -1;
      AT(float, a.scores)[(long)row * a.top + j] = logit;
    }
  }
}
