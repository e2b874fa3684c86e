// Between the projections of a gated short convolution and of the gated delta rule (kernels/cpu/conv_block.cpp,
// delta_block.cpp).
#pragma once
#include "prepare.h"
#include "ssm.h"

// ---- a short convolution: a row of its tree keeps B * x ------------------------------------------------

// B * x of the row that tap `tap` means.
DEVICE float conv_input(const ConvArgs& a, const Recurrent& r, int tap, int i) {
  if (tap < 0) return r.history[(int64_t)(a.conv_size - 1 + tap) * a.channels + i];
  if (tap < r.first) return r.rows[(int64_t)tap * a.channels + i];
  const float* row = a.projected + (r.call_row + tap - r.first) * 3 * a.channels;
  return row[i] * row[2 * a.channels + i];
}

// A row a block.
KERNEL(conv_rows, ConvArgs, 128) {
  const int row = BLOCK_X;
  if (row >= a.step->rows) return;
  const Recurrent& r = a.step->recurrent[(int64_t)a.slot * a.step->sequences + a.step->sequence[row]];
  const int32_t* taps = a.step->taps + (int64_t)row * a.step->n_taps + a.step->n_taps - a.conv_size;
  const float* own = a.projected + (int64_t)row * 3 * a.channels;
  for (int i = THREAD; i < a.channels; i += THREADS) {
    float sum = a.conv[i * a.conv_size] * conv_input(a, r, taps[0], i);
    for (int t = 1; t < a.conv_size; t++) sum = sum + a.conv[i * a.conv_size + t] * conv_input(a, r, taps[t], i);
    r.rows[(int64_t)a.step->at[row] * a.channels + i] = own[i] * own[2 * a.channels + i];
    a.y[(int64_t)row * a.channels + i] = own[a.channels + i] * (sum + (a.bias ? a.bias[i] : 0.0f));
  }
}

// ---- the delta rule: a row of its tree keeps v, k and q before and after the convolution, beta, decays ---------

struct DeltaRow {
  int conv_dim, heads, decays;
  DEVICE_METHOD int64_t floats() const { return 2 * conv_dim + heads + heads * decays; }
};

DEVICE DeltaRow delta_row(const DeltaArgs& a) {
  return {a.heads * a.head_dim + 2 * a.groups * a.key_dim, a.heads, a.decays};
}

// The values before the convolution that tap `tap` means.
DEVICE const float* delta_tap(const DeltaArgs& a, const Recurrent& r, const DeltaRow& part, int tap) {
  if (tap < 0) return r.history + (int64_t)(a.conv_size - 1 + tap) * part.conv_dim;
  if (tap < r.first) return r.rows + tap * part.floats();
  return a.projected + (r.call_row + tap - r.first) * a.width;
}

// A row a block: its inputs, kept for the commit; keys and queries of a group by a warp.
KERNEL(delta_inputs, DeltaArgs, 128) {
  const int row = BLOCK_X;
  if (row >= a.step->rows) return;
  const Recurrent& r = a.step->recurrent[(int64_t)a.slot * a.step->sequences + a.step->sequence[row]];
  const DeltaRow part = delta_row(a);
  const float *own = a.projected + (int64_t)row * a.width, *g = a.g + (int64_t)row * a.g_stride;
  const int32_t* taps = a.step->taps + (int64_t)row * a.step->n_taps + a.step->n_taps - a.conv_size;
  float *to = r.rows + a.step->at[row] * part.floats(), *mixed = to + part.conv_dim, *beta = mixed + part.conv_dim;
  for (int i = THREAD; i < part.conv_dim; i += THREADS) {
    float sum = a.conv[i * a.conv_size] * delta_tap(a, r, part, taps[0])[i];
    for (int t = 1; t < a.conv_size; t++) sum = fma_(a.conv[i * a.conv_size + t], delta_tap(a, r, part, taps[t])[i], sum);
    to[i] = own[i];
    mixed[i] = activate(sum + 0.0f, SILU);
  }
  for (int h = THREAD; h < a.heads; h += THREADS) beta[h] = sigmoid(own[a.beta + h]) * a.beta_scale;
  for (int i = THREAD; i < a.heads * a.decays; i += THREADS) {
    const float step = smaller(larger(softplus(g[i] + a.dt_bias[i]), 0.0f), FLOAT_MAX);
    beta[a.heads + i] = exp_(step * a.a[i / a.decays]);
  }
  barrier();
  const Norm norm = {nullptr, nullptr, RMS, a.near};
  for (int part_at = THREAD >> 5; part_at < 2 * a.groups; part_at += THREADS >> 5) {
    float* x = mixed + a.heads * a.head_dim + part_at * a.key_dim;
    const Stats s = row_stats(x, norm, a.key_dim);
    warp_barrier();
    for (int i = THREAD & 31; i < a.key_dim; i += 32) x[i] = x[i] * s.scale * (part_at < a.groups ? a.key_scale : a.query_scale);
  }
}

// One row of one value: the state goes on; the output if it is wanted. decays: of a head, of so many groups.
DEVICE float delta_step(const SsmHead& s, int decays, const float* inputs, const float* from, float* to, bool out) {
  const DeltaRow part = {s.heads * s.head_dim + 2 * s.groups * s.state_size, s.heads, decays};
  const float *mixed = inputs + part.conv_dim, *beta = mixed + part.conv_dim, *decay = beta + s.heads + s.head * decays;
  const float *k = mixed + s.heads * s.head_dim + s.head / (s.heads / s.groups) * s.state_size, *q = k + s.groups * s.state_size;
  const float x = s.value < s.head_dim ? mixed[s.head * s.head_dim + s.value] : 0.0f;
  const int64_t at = ((int64_t)s.head * ((s.head_dim + 15) / 16) + s.value / LANES) * s.state_size * LANES + s.value % LANES;
  float recalled = 0.0f, sum = 0.0f;
  for (int n = 0; n < s.state_size; n++)
    recalled = fma_(from[at + n * LANES], decay[decays > 1 ? n : 0] * k[n], recalled);
  const float given = beta[s.head] * (x - recalled);
  for (int n = 0; n < s.state_size; n++) {
    const float state = fma_(decay[decays > 1 ? n : 0], from[at + n * LANES], k[n] * given);
    to[at + n * LANES] = state;
    if (out) sum = fma_(state, q[n], sum);
  }
  return sum;
}

// Values [x] of sequences [y] through all updates: states, and y of every row.
KERNEL(delta_scan, DeltaArgs, 32) {
  const SsmHead s = ssm_head(a.heads, a.head_dim, a.key_dim, a.groups);
  if (!s.there() || BLOCK_Y >= a.step->sequences) return;
  const int64_t at = (int64_t)a.slot * a.step->sequences + BLOCK_Y;
  const Recurrent& r = a.step->recurrent[at];
  for (int u = at ? a.step->update_ends[at - 1] : 0; u < a.step->update_ends[at]; u++) {
    const int32_t* update = a.step->updates + 3 * u;
    const float* inputs = r.rows + update[1] * delta_row(a).floats();
    const float y = delta_step(s, a.decays, inputs, update[0] ? r.next : r.start, r.next, update[2] >= 0);
    if (update[2] >= 0 && s.value < a.head_dim)
      a.y[(int64_t)update[2] * a.heads * a.head_dim + s.head * a.head_dim + s.value] = y;
  }
}

// A row a block, a head a warp: y normed, times its gate.
KERNEL(delta_gate, DeltaArgs, 256) {
  const int row = BLOCK_X;
  if (row >= a.step->rows) return;
  const Norm norm = {a.gate_norm, nullptr, RMS, a.eps};
  for (int h = THREAD >> 5; h < a.heads; h += THREADS >> 5) {
    float* y = a.y + ((int64_t)row * a.heads + h) * a.head_dim;
    const float* z = a.z + (int64_t)row * a.z_stride + h * a.head_dim;
    const Stats s = row_stats(y, norm, a.head_dim);
    warp_barrier();
    for (int i = THREAD & 31; i < a.head_dim; i += 32)
      y[i] = normed(y[i], norm, s, i) * (a.sigmoid ? sigmoid(z[i]) : activate(z[i], SILU));
  }
}

// The state after a path of rows.
KERNEL(delta_advance, AdvanceArgs, 32) {
  const SsmHead s = ssm_head(a.heads, a.head_dim, a.state_size, a.groups);
  if (!s.there()) return;
  const DeltaRow part = {a.heads * a.head_dim + 2 * a.groups * a.state_size, a.heads, a.decays};
  for (int i = 0; i < a.n; i++) delta_step(s, a.decays, a.rows + a.path[i] * part.floats(), i ? a.to : a.from, a.to, false);
}
