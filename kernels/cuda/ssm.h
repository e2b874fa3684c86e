// The state-space block between its projections: convolution, time steps, recurrence, gate (kernels/cpu/ssm.inl).
//
// State [heads][lane groups][state_size][16]: value d of a head is lane d % 16 of lane group d / 16, so that a thread owns
// a value's whole state and no sum crosses threads.
#pragma once
#include "args.h"
#include "arith.h"

// log(1 + u) of u in 0..1: twice the series of atanh(z), z = u / (2 + u).
DEVICE float log1p_(float u) {
  const float z = u / (2.0f + u), w = z * z;
  float p = 1.0f / 17.0f;
  p = fma_(p, w, 1.0f / 15.0f);
  p = fma_(p, w, 1.0f / 13.0f);
  p = fma_(p, w, 1.0f / 11.0f);
  p = fma_(p, w, 1.0f / 9.0f);
  p = fma_(p, w, 1.0f / 7.0f);
  p = fma_(p, w, 1.0f / 5.0f);
  p = fma_(p, w, 1.0f / 3.0f);
  p = fma_(p, w, 1.0f);
  return (z + z) * p;
}
DEVICE float softplus(float x) { return larger(x, 0.0f) + log1p_(exp_(0.0f - abs_(x))); }

// Where the parts of a row of the tree lie.
struct TreeRow {
  int conv_dim, heads;
  DEVICE_METHOD int64_t floats() const { return 2 * conv_dim + 2 * heads; }
  DEVICE_METHOD int64_t mixed() const { return conv_dim; }
  DEVICE_METHOD int64_t dt() const { return 2 * conv_dim; }
  DEVICE_METHOD int64_t decay() const { return 2 * conv_dim + heads; }
};

// The values before the convolution that tap `tap` means.
DEVICE const float* tapped(const SsmArgs& a, const Recurrent& r, const TreeRow& part, int tap) {
  if (tap < 0) return r.history + (int64_t)(a.conv_size - 1 + tap) * part.conv_dim;
  if (tap < r.first) return r.rows + tap * part.floats();
  return a.projected + (r.call_row + tap - r.first) * a.width + a.heads * a.head_dim;
}

// A row a block: its inputs, kept for the commit.
KERNEL(ssm_inputs, SsmArgs, 128) {
  const int row = BLOCK_X;
  if (row >= a.step->rows) return;
  const Recurrent& r = a.step->recurrent[(int64_t)a.slot * a.step->sequences + a.step->sequence[row]];
  const TreeRow part = {a.heads * a.head_dim + 2 * a.groups * a.state_size, a.heads};
  const float* xbc = a.projected + (int64_t)row * a.width + a.heads * a.head_dim;
  const int32_t* taps = a.step->taps + (int64_t)row * a.step->n_taps + a.step->n_taps - a.conv_size;
  float* to = r.rows + a.step->at[row] * part.floats();
  for (int i = THREAD; i < part.conv_dim; i += THREADS) {
    float sum = a.conv[i * a.conv_size] * tapped(a, r, part, taps[0])[i];
    for (int t = 1; t < a.conv_size; t++) sum = fma_(a.conv[i * a.conv_size + t], tapped(a, r, part, taps[t])[i], sum);
    to[i] = xbc[i];
    to[part.mixed() + i] = sum + a.conv_bias[i];
  }
  // Apart from the sums, so that these stay in registers.
  for (int i = THREAD; i < part.conv_dim; i += THREADS) to[part.mixed() + i] = activate(to[part.mixed() + i], SILU);
  for (int h = THREAD; h < a.heads; h += THREADS) {
    const float dt = smaller(larger(softplus(xbc[part.conv_dim + h] + a.dt_bias[h]), a.dt_min), a.dt_max);
    to[part.dt() + h] = dt;
    to[part.decay() + h] = exp_(dt * a.a[h]);
  }
}

struct SsmHead {
  int head, value, head_dim, state_size, heads, groups;
  DEVICE_METHOD bool there() const { return head < heads; }
};

// The value that a thread owns, of those of a block.
DEVICE SsmHead ssm_head(int heads, int head_dim, int state_size, int groups) {
  const int lanes = (head_dim + 15) / 16, group = BLOCK_X * (THREADS / LANES) + THREAD / LANES;
  return {group / lanes, group % lanes * LANES + THREAD % LANES, head_dim, state_size, heads, groups};
}

// One row of one value: the state goes on; the output if `c` is wanted.
DEVICE float ssm_step(const SsmHead& s, const float* inputs, const float* from, float* to, bool out) {
  const TreeRow part = {s.heads * s.head_dim + 2 * s.groups * s.state_size, s.heads};
  const float* mixed = inputs + part.mixed();
  const float *b = mixed + s.heads * s.head_dim + s.head / (s.heads / s.groups) * s.state_size, *c = b + s.groups * s.state_size;
  const float x = s.value < s.head_dim ? mixed[s.head * s.head_dim + s.value] : 0.0f;
  const float input = inputs[part.dt() + s.head] * x, decay = inputs[part.decay() + s.head];
  const int64_t at = ((int64_t)s.head * ((s.head_dim + 15) / 16) + s.value / LANES) * s.state_size * LANES + s.value % LANES;
  float sum = 0.0f;
  for (int n = 0; n < s.state_size; n++) {
    const float state = fma_(decay, from[at + n * LANES], input * b[n]);
    to[at + n * LANES] = state;
    if (out) sum = fma_(state, c[n], sum);
  }
  return sum;
}

// Values [x] of sequences [y] through all updates: states, and y of every row, times its gate.
KERNEL(ssm_scan, SsmArgs, 32) {
  const SsmHead s = ssm_head(a.heads, a.head_dim, a.state_size, a.groups);
  if (!s.there() || BLOCK_Y >= a.step->sequences) return;
  const int64_t at = (int64_t)a.slot * a.step->sequences + BLOCK_Y;
  const Recurrent& r = a.step->recurrent[at];
  const TreeRow part = {a.heads * a.head_dim + 2 * a.groups * a.state_size, a.heads};
  const int inner = a.heads * a.head_dim, place = s.head * a.head_dim + s.value;
  for (int u = at ? a.step->update_ends[at - 1] : 0; u < a.step->update_ends[at]; u++) {
    const int32_t* update = a.step->updates + 3 * u;
    const float* inputs = r.rows + update[1] * part.floats();
    const float sum = ssm_step(s, inputs, update[0] ? r.next : r.start, r.next, update[2] >= 0);
    if (update[2] < 0 || s.value >= a.head_dim) continue;
    const float y = fma_(a.d[s.head], inputs[part.mixed() + place], sum);
    const float gate = activate(a.projected[(int64_t)update[2] * a.width + place], SILU);
    a.y[(int64_t)update[2] * inner + place] = gate * y;
  }
}

// The state after a path of rows.
KERNEL(ssm_advance, AdvanceArgs, 32) {
  const SsmHead s = ssm_head(a.heads, a.head_dim, a.state_size, a.groups);
  if (!s.there()) return;
  const TreeRow part = {a.heads * a.head_dim + 2 * a.groups * a.state_size, a.heads};
  for (int i = 0; i < a.n; i++) ssm_step(s, a.rows + a.path[i] * part.floats(), i ? a.to : a.from, a.to, false);
}
