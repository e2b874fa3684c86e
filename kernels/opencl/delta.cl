// Between the projections of a gated short convolution and of the gated delta rule (kernels/cuda/delta.h).

// ---- a short convolution: a row of its tree keeps B * x ------------------------------------------------

// B * x of the row that tap `tap` means.
static inline float conv_input(const ConvArgs* a, __global const Recurrent* r, int tap, int i) {
  if (tap < 0) return AT(const float, r->history)[(long)(a->conv_size - 1 + tap) * a->channels + i];
  if (tap < r->first) return AT(const float, r->rows)[(long)tap * a->channels + i];
  __global const float* row = AT(const float, a->projected) + (r->call_row + tap - r->first) * 3 * a->channels;
  return row[i] * row[2 * a->channels + i];
}

// A row a block.
__kernel void conv_rows(ConvArgs a, __local uchar* memory) {
  __global const Step* step = STEP_OF(a);
  const int row = BLOCK_X;
  if (row >= step->rows) return;
  __global const Recurrent* r =
      AT(const Recurrent, step->recurrent) + (long)a.slot * step->sequences + AT(const int, step->sequence)[row];
  __global const int* taps = AT(const int, step->taps) + (long)row * step->n_taps + step->n_taps - a.conv_size;
  __global const float *own = AT(const float, a.projected) + (long)row * 3 * a.channels, *conv = AT(const float, a.conv);
  for (int i = THREAD; i < a.channels; i += THREADS) {
    float sum = conv[i * a.conv_size] * conv_input(&a, r, taps[0], i);
    for (int t = 1; t < a.conv_size; t++) sum = sum + conv[i * a.conv_size + t] * conv_input(&a, r, taps[t], i);
    AT(float, r->rows)[(long)AT(const int, step->at)[row] * a.channels + i] = own[i] * own[2 * a.channels + i];
    const float biased = sum + (a.bias ? AT(const float, a.bias)[i] : 0.0f);
    AT(float, a.y)[(long)row * a.channels + i] = own[a.channels + i] * biased;
  }
}

// ---- the delta rule: a row of its tree keeps v, k and q before and after the convolution, beta, decays ---------

static inline int delta_dim(const DeltaArgs* a) { return a->heads * a->head_dim + 2 * a->groups * a->key_dim; }
static inline long delta_floats(int conv_dim, int heads, int decays) { return 2 * conv_dim + heads + heads * decays; }

// The values before the convolution that tap `tap` means.
static inline __global const float* delta_tap(const DeltaArgs* a, __global const Recurrent* r, int tap) {
  const int dim = delta_dim(a);
  if (tap < 0) return AT(const float, r->history) + (long)(a->conv_size - 1 + tap) * dim;
  if (tap < r->first) return AT(const float, r->rows) + tap * delta_floats(dim, a->heads, a->decays);
  return AT(const float, a->projected) + (r->call_row + tap - r->first) * a->width;
}

// A row a block: its inputs, kept for the commit.
__kernel void delta_inputs(DeltaArgs a, __local uchar* memory) {
  __local float lanes[LANES];
  __global const Step* step = STEP_OF(a);
  const int row = BLOCK_X, dim = delta_dim(&a);
  if (row >= step->rows) return;
  __global const Recurrent* r =
      AT(const Recurrent, step->recurrent) + (long)a.slot * step->sequences + AT(const int, step->sequence)[row];
  __global const float *own = AT(const float, a.projected) + (long)row * a.width, *g = AT(const float, a.g) + (long)row * a.g_stride;
  __global const int* taps = AT(const int, step->taps) + (long)row * step->n_taps + step->n_taps - a.conv_size;
  __global const float* conv = AT(const float, a.conv);
  __global float* to = AT(float, r->rows) + AT(const int, step->at)[row] * delta_floats(dim, a.heads, a.decays);
  __global float *mixed = to + dim, *beta = mixed + dim;
  for (int i = THREAD; i < dim; i += THREADS) {
    float sum = conv[i * a.conv_size] * delta_tap(&a, r, taps[0])[i];
    for (int t = 1; t < a.conv_size; t++) sum = fma(conv[i * a.conv_size + t], delta_tap(&a, r, taps[t])[i], sum);
    to[i] = own[i];
    mixed[i] = activate(sum + 0.0f, SILU);
  }
  for (int h = THREAD; h < a.heads; h += THREADS) beta[h] = sigmoid(own[a.beta + h]) * a.beta_scale;
  for (int i = THREAD; i < a.heads * a.decays; i += THREADS) {
    const float dt = smaller(larger(softplus(g[i] + AT(const float, a.dt_bias)[i]), 0.0f), LARGEST);
    beta[a.heads + i] = exp_(dt * AT(const float, a.a)[i / a.decays]);
  }
  const Norm norm = {0, 0, RMS, a.near};
  for (int part = 0; part < 2 * a.groups; part++) {
    __global float* x = mixed + a.heads * a.head_dim + part * a.key_dim;
    const Stats s = row_stats(x, norm, a.key_dim, lanes);
    for (int i = THREAD; i < a.key_dim; i += THREADS) x[i] = x[i] * s.scale * (part < a.groups ? a.key_scale : a.query_scale);
  }
}

// One row of one value: the state goes on; the output if it is wanted. decays: of a head.
static inline float delta_step(SsmHead s, int decays, __global const float* inputs, __global const float* from,
                               __global float* to, bool out) {
  const int dim = s.heads * s.head_dim + 2 * s.groups * s.state_size;
  __global const float *mixed = inputs + dim, *beta = mixed + dim, *decay = beta + s.heads + s.head * decays;
  __global const float* k = mixed + s.heads * s.head_dim + s.head / (s.heads / s.groups) * s.state_size;
  __global const float* q = k + s.groups * s.state_size;
  const float x = s.value < s.head_dim ? mixed[s.head * s.head_dim + s.value] : 0.0f;
  const long at = ((long)s.head * ((s.head_dim + 15) / 16) + s.value / LANES) * s.state_size * LANES + s.value % LANES;
  float recalled = 0.0f, sum = 0.0f;
  for (int n = 0; n < s.state_size; n++) recalled = fma(from[at + n * LANES], decay[decays > 1 ? n : 0] * k[n], recalled);
  const float given = beta[s.head] * (x - recalled);
  for (int n = 0; n < s.state_size; n++) {
    const float state = fma(decay[decays > 1 ? n : 0], from[at + n * LANES], k[n] * given);
    to[at + n * LANES] = state;
    if (out) sum = fma(state, q[n], sum);
  }
  return sum;
}

// Values [x] of sequences [y] through all updates: states, and y of every row.
__kernel void delta_scan(DeltaArgs a, __local uchar* memory) {
  __global const Step* step = STEP_OF(a);
  const SsmHead s = ssm_head(a.heads, a.head_dim, a.key_dim, a.groups);
  if (s.head >= s.heads || BLOCK_Y >= step->sequences) return;
  const long at = (long)a.slot * step->sequences + BLOCK_Y;
  __global const Recurrent* r = AT(const Recurrent, step->recurrent) + at;
  __global const int* ends = AT(const int, step->update_ends);
  for (int u = at ? ends[at - 1] : 0; u < ends[at]; u++) {
    __global const int* update = AT(const int, step->updates) + 3 * u;
    __global const float* inputs = AT(const float, r->rows) + update[1] * delta_floats(delta_dim(&a), a.heads, a.decays);
    __global const float* from = AT(const float, update[0] ? r->next : r->start);
    const float y = delta_step(s, a.decays, inputs, from, AT(float, r->next), update[2] >= 0);
    if (update[2] >= 0 && s.value < a.head_dim)
      AT(float, a.y)[(long)update[2] * a.heads * a.head_dim + s.head * a.head_dim + s.value] = y;
  }
}

// A row a block: y normed by heads, times its gate.
__kernel void delta_gate(DeltaArgs a, __local uchar* memory) {
  __local float lanes[LANES];
  const int row = BLOCK_X;
  if (row >= STEP_OF(a)->rows) return;
  const Norm norm = {a.gate_norm, 0, RMS, a.eps};
  for (int h = 0; h < a.heads; h++) {
    __global float* y = AT(float, a.y) + ((long)row * a.heads + h) * a.head_dim;
    __global const float* z = AT(const float, a.z) + (long)row * a.z_stride + h * a.head_dim;
    const Stats s = row_stats(y, norm, a.head_dim, lanes);
    for (int i = THREAD; i < a.head_dim; i += THREADS)
      y[i] = normed(y[i], norm, s, i) * (a.sigmoid ? sigmoid(z[i]) : activate(z[i], SILU));
  }
}

// The state after a path of rows.
__kernel void delta_advance(AdvanceArgs a, __local uchar* memory) {
  const SsmHead s = ssm_head(a.heads, a.head_dim, a.state_size, a.groups);
  if (s.head >= s.heads) return;
  const long floats = delta_floats(a.heads * a.head_dim + 2 * a.groups * a.state_size, a.heads, a.decays);
  for (int i = 0; i < a.n; i++)
    delta_step(s, a.decays, AT(const float, a.rows) + AT(const int, a.path)[i] * floats, AT(const float, i ? a.to : a.from),
               AT(float, a.to), false);
}
