// The state-space block between its projections (kernels/cuda/ssm.h): convolution, time steps, recurrence, gate. A thread
// owns a value's whole state.
static inline float log1p_(float u) {
  const float z = divide(u, 2.0f + u), w = z * z;
  float p = 1.0f / 17.0f;
  p = fma(p, w, 1.0f / 15.0f);
  p = fma(p, w, 1.0f / 13.0f);
  p = fma(p, w, 1.0f / 11.0f);
  p = fma(p, w, 1.0f / 9.0f);
  p = fma(p, w, 1.0f / 7.0f);
  p = fma(p, w, 1.0f / 5.0f);
  p = fma(p, w, 1.0f / 3.0f);
  p = fma(p, w, 1.0f);
  return (z + z) * p;
}
static inline float softplus(float x) { return larger(x, 0.0f) + log1p_(exp_(0.0f - fabs(x))); }

// Where the parts of a row of the tree lie: values before the convolution, after it, dt, decay.
typedef struct { int conv_dim, heads; } TreeRow;
static inline long row_floats(TreeRow r) { return 2 * r.conv_dim + 2 * r.heads; }
static inline TreeRow tree_row(int heads, int head_dim, int groups, int state_size) {
  const TreeRow r = {heads * head_dim + 2 * groups * state_size, heads};
  return r;
}

// The values before the convolution that tap `tap` means.
static inline __global const float* tapped(const SsmArgs* a, __global const Recurrent* r, TreeRow part, int tap) {
  if (tap < 0) return AT(const float, r->history) + (long)(a->conv_size - 1 + tap) * part.conv_dim;
  if (tap < r->first) return AT(const float, r->rows) + tap * row_floats(part);
  return AT(const float, a->projected) + (r->call_row + tap - r->first) * a->width + a->heads * a->head_dim;
}

// A row a block: its inputs, kept for the commit.
__kernel void ssm_inputs(SsmArgs a, __local uchar* memory) {
  __global const Step* step = STEP_OF(a);
  const int row = BLOCK_X;
  if (row >= step->rows) return;
  __global const Recurrent* r =
      AT(const Recurrent, step->recurrent) + (long)a.slot * step->sequences + AT(const int, step->sequence)[row];
  const TreeRow part = tree_row(a.heads, a.head_dim, a.groups, a.state_size);
  __global const float* xbc = AT(const float, a.projected) + (long)row * a.width + a.heads * a.head_dim;
  __global const int* taps = AT(const int, step->taps) + (long)row * step->n_taps + step->n_taps - a.conv_size;
  __global const float* conv = AT(const float, a.conv);
  __global float* to = AT(float, r->rows) + AT(const int, step->at)[row] * row_floats(part);
  for (int i = THREAD; i < part.conv_dim; i += THREADS) {
    float sum = conv[i * a.conv_size] * tapped(&a, r, part, taps[0])[i];
    for (int t = 1; t < a.conv_size; t++) sum = fma(conv[i * a.conv_size + t], tapped(&a, r, part, taps[t])[i], sum);
    to[i] = xbc[i];
    to[part.conv_dim + i] = activate(sum + AT(const float, a.conv_bias)[i], SILU);
  }
  for (int h = THREAD; h < a.heads; h += THREADS) {
    const float x = softplus(xbc[part.conv_dim + h] + AT(const float, a.dt_bias)[h]);
    const float dt = smaller(larger(x, a.dt_min), a.dt_max);
    to[2 * part.conv_dim + h] = dt;
    to[2 * part.conv_dim + a.heads + h] = exp_(dt * AT(const float, a.a)[h]);
  }
}

typedef struct { int head, value, head_dim, state_size, heads, groups; } SsmHead;

// The value that a thread owns, of those of a block.
static inline SsmHead ssm_head(int heads, int head_dim, int state_size, int groups) {
  const int lanes = (head_dim + 15) / 16, group = BLOCK_X * (THREADS / LANES) + THREAD / LANES;
  const SsmHead s = {group / lanes, group % lanes * LANES + THREAD % LANES, head_dim, state_size, heads, groups};
  return s;
}

// One row of one value: the state goes on; the output if it is wanted.
static inline float ssm_step(SsmHead s, __global const float* inputs, __global const float* from, __global float* to, bool out) {
  const TreeRow part = tree_row(s.heads, s.head_dim, s.groups, s.state_size);
  __global const float* mixed = inputs + part.conv_dim;
  __global const float* b = mixed + s.heads * s.head_dim + s.head / (s.heads / s.groups) * s.state_size;
  __global const float* c = b + s.groups * s.state_size;
  const float x = s.value < s.head_dim ? mixed[s.head * s.head_dim + s.value] : 0.0f;
  const float input = inputs[2 * part.conv_dim + s.head] * x, decay = inputs[2 * part.conv_dim + s.heads + s.head];
  const long at = ((long)s.head * ((s.head_dim + 15) / 16) + s.value / LANES) * s.state_size * LANES + s.value % LANES;
  float sum = 0.0f;
  for (int n = 0; n < s.state_size; n++) {
    const float state = fma(decay, from[at + n * LANES], input * b[n]);
    to[at + n * LANES] = state;
    if (out) sum = fma(state, c[n], sum);
  }
  return sum;
}

// Values [x] of sequences [y] through all updates: states, and y of every row, times its gate.
__kernel void ssm_scan(SsmArgs a, __local uchar* memory) {
  __global const Step* step = STEP_OF(a);
  const SsmHead s = ssm_head(a.heads, a.head_dim, a.state_size, a.groups);
  if (s.head >= s.heads || BLOCK_Y >= step->sequences) return;
  const long at = (long)a.slot * step->sequences + BLOCK_Y;
  __global const Recurrent* r = AT(const Recurrent, step->recurrent) + at;
  const TreeRow part = tree_row(a.heads, a.head_dim, a.groups, a.state_size);
  const int inner = a.heads * a.head_dim, place = s.head * a.head_dim + s.value;
  __global const int* ends = AT(const int, step->update_ends);
  for (int u = at ? ends[at - 1] : 0; u < ends[at]; u++) {
    __global const int* update = AT(const int, step->updates) + 3 * u;
    __global const float* inputs = AT(const float, r->rows) + update[1] * row_floats(part);
    const float sum = ssm_step(s, inputs, AT(const float, update[0] ? r->next : r->start), AT(float, r->next), update[2] >= 0);
    if (update[2] < 0 || s.value >= a.head_dim) continue;
    const float y = fma(AT(const float, a.d)[s.head], inputs[part.conv_dim + place], sum);
    const float gate = activate(AT(const float, a.projected)[(long)update[2] * a.width + place], SILU);
    AT(float, a.y)[(long)update[2] * inner + place] = gate * y;
  }
}

// The state after a path of rows.
__kernel void ssm_advance(AdvanceArgs a, __local uchar* memory) {
  const SsmHead s = ssm_head(a.heads, a.head_dim, a.state_size, a.groups);
  if (s.head >= s.heads) return;
  const TreeRow part = tree_row(a.heads, a.head_dim, a.groups, a.state_size);
  for (int i = 0; i < a.n; i++)
    ssm_step(s, AT(const float, a.rows) + AT(const int, a.path)[i] * row_floats(part), AT(const float, i ? a.to : a.from),
             AT(float, a.to), false);
}
