// The vocabulary's best tokens and the sums of exp, by strips of 512 logits as kernels/cpu/head.cpp has them.
#pragma once
#include "args.h"
#include "arith.h"

constexpr int STRIP = 512;

// A logit and its token as a number that sorts as they do: larger logits first, of equals the smaller token. NaN: 0.
DEVICE uint64_t rank_of(float logit, int token) {
  if (!(logit == logit)) return 0;
  const uint32_t bits = as_bits(logit + 0.0f), ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return (uint64_t)ordered << 32 | (0xffffffffu - (uint32_t)token);
}
DEVICE uint64_t more_of(uint64_t a, uint64_t b) { return a > b ? a : b; }
DEVICE uint64_t exchange64(uint64_t x, int i) {
  const uint32_t low = shuffle_xor((uint32_t)x, i), high = shuffle_xor((uint32_t)(x >> 32), i);
  return (uint64_t)high << 32 | low;
}

// The largest of a strip, and the sum of exp in 16 lanes: by one warp.
DEVICE void strip_sum(const float* x, int n, float heat, float* out) {
  const int lane = THREAD & 31;
  float most = -infinity(), sum = 0.0f, nothing = 0.0f;
  for (int i = lane; i < n; i += 32) most = larger(x[i], most);
  for (int d = 16; d; d /= 2) most = larger(shuffle_xor(most, d), most);
  for (int i = lane & 15; i < n; i += LANES) {
    sum = sum + exp_((x[i] - most) * heat);
    nothing = nothing + (x[i] - x[i]);
  }
  sum = sum16(sum) + sum16(nothing);
  if (lane == 0) out[0] = most, out[1] = sum;
}

// A strip sorted, the best first: 256 threads, a pair of places each.
DEVICE void sort_strip(uint64_t* keys) {
  for (int size = 2; size <= STRIP; size *= 2)
    for (int step = size / 2; step; step /= 2) {
      barrier();
      for (int i = THREAD; i < STRIP / 2; i += THREADS) {
        const int at = 2 * i - (i & (step - 1)), other = at + step;
        const uint64_t x = keys[at], y = keys[other];
        if ((x < y) == ((at & size) == 0)) keys[at] = y, keys[other] = x;
      }
    }
  barrier();
}

DEVICE uint64_t block_most(uint64_t x, uint64_t* memory) {
  for (int d = 16; d; d /= 2) x = more_of(exchange64(x, d), x);
  if ((THREAD & 31) == 0) memory[THREAD >> 5] = x;
  barrier();
  x = memory[0];
  for (int w = 1; w < THREADS >> 5; w++) x = more_of(memory[w], x);
  barrier();
  return x;
}

// Strips [x] of rows [y]: sums, and their best sorted.
KERNEL(strips, BestArgs, 256) {
  SHARED(memory);
  uint64_t* keys = reinterpret_cast<uint64_t*>(memory);
  const int row = BLOCK_Y, n_strips = (a.vocab + STRIP - 1) / STRIP, from = BLOCK_X * STRIP, n = min_(STRIP, a.vocab - from);
  if (row >= a.step->n_head) return;
  const float* x = a.logits + (int64_t)row * a.vocab + from;
  const int64_t at = (int64_t)row * n_strips + BLOCK_X;
  if (THREAD < 32) strip_sum(x, n, a.step->heat[row], a.strips + 2 * at);
  if (!a.top) return;
  if (a.top == 1) {
    uint64_t best = 0;
    for (int i = THREAD; i < n; i += THREADS) best = more_of(rank_of(x[i], from + i), best);
    best = block_most(best, keys);
    if (THREAD == 0) a.sorted[at] = best;
    return;
  }
  for (int i = THREAD; i < STRIP; i += THREADS) keys[i] = i < n ? rank_of(x[i], from + i) : 0;
  sort_strip(keys);
  for (int i = THREAD; i < min_(a.top, STRIP); i += THREADS) a.sorted[at * a.top + i] = keys[i];
}

// Of each row the best of all strips: a row a block. A thread keeps its place in its strips.
KERNEL(best_tokens, BestArgs, 256) {
  SHARED(memory);
  const int row = BLOCK_X, n_strips = (a.vocab + STRIP - 1) / STRIP, each = min_(a.top, STRIP);
  int32_t* next = reinterpret_cast<int32_t*>(memory + 256);
  if (row >= a.step->n_head) return;
  const uint64_t* sorted = a.sorted + (int64_t)row * n_strips * a.top;
  for (int s = THREAD; s < n_strips; s += THREADS) next[s] = 0;
  for (int j = 0; j < a.top; j++) {
    uint64_t best = 0;
    int from = -1;
    for (int s = THREAD; s < n_strips; s += THREADS) {
      const uint64_t x = next[s] < each ? sorted[(int64_t)s * a.top + next[s]] : 0;
      if (x > best) best = x, from = s;
    }
    const uint64_t found = block_most(best, reinterpret_cast<uint64_t*>(memory));
    if (from >= 0 && best == found) next[from]++;  // ranks differ by their tokens: one thread's
    if (THREAD == 0) {
      const int token = (int)(0xffffffffu - (uint32_t)found);
      const float logit = found ? a.logits[(int64_t)row * a.vocab + token] : -infinity();
      a.ids[(int64_t)row * a.top + j] = logit - logit == 0.0f ? token : -1;
      a.scores[(int64_t)row * a.top + j] = logit;
    }
  }
}
