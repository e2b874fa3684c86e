// The structs of kernels/cuda/args.h: addresses as 64-bit numbers, fields in the same order.
typedef struct { ulong data, scales, zeros; int format, n, k, block; } Weights;
typedef struct { ulong weight, bias; int kind; float eps; } Norm;
typedef struct { ulong q, scale, sum, block_sum; } Prepared;
typedef struct { int length, first, pages, slots; } View;
typedef struct { ulong start, history, next, rows; long first, call_row; } Recurrent;
typedef struct {
  ulong tokens, positions, sequence, at, begin, end, part, part_row, chunks, path, items, head_rows, heat, pages, views,
      slot_positions, given, recurrent, updates, update_ends, taps;
  int rows, n_head, n_items, sequences, n_taps, reserved;
  ulong paid, bounds, plans;
} Step;
typedef struct {
  int sequence, row0, rows, first, last, chosen, n_chosen, count, left, all, seen, length, slots, n_slots, runs, striped;
  uint theta;
  int reserved;
} ViewSight;
typedef struct { ulong items, part, part_row, chunks, page_chunks, sights, lists, logs; int n_items, groups; } ViewPlan;
typedef struct { ulong step; Weights w; ulong out; float scale; int hidden; ulong positions; Norm norm; } EmbedArgs;
typedef struct { ulong step, x, normed; Weights w; Norm norm; Prepared out; int k, head, copies, reserved; } PrepareArgs;
typedef struct {
  ulong step; Weights w; Prepared a; Norm norm; ulong x, bias, out, experts;
  int epilogue, activation, fused, head, copies, spread, stride, reserved;
  float softcap;
  int tile;
} ProductArgs;
typedef struct {
  ulong step, qkv, cos, sin, q_norm, k_norm;
  long offset;
  int heads, kv_heads, dim, pairs, format, view;
  float eps;
  int row_bytes;
  int width, own, last, reserved;
  ulong q_bias, k_bias;
} RopeArgs;
typedef struct {
  ulong step, qkv, parts, out;
  long offset;
  int heads, kv_heads, dim, window, sinks, format, view, row_bytes;
  float scale, softcap;
  int tile, head0, kept_heads, keys;
  ulong kept, totals, sink_logit, slopes;
  int width, gate;
} AttendArgs;
typedef struct { AttendArgs attend; ulong sums; long width; } SumsArgs;
typedef struct { ulong pages; long offset, bounds_offset; int dim, format, row_bytes, reserved; } BoundsArgs;
typedef struct {
  AttendArgs attend;
  ulong seen, pages, bounds, near, slots, runs, counts, means, floats;
  long bounds_offset;
  int pages_stride, slots_stride, plan, listed;
} ViewArgs;
typedef struct { ViewArgs view; ulong sums; long width; } ViewSumsArgs;
typedef struct { ulong step, x, out; Norm norm; int width, part, stride, add; } RowsArgs;
typedef struct { ulong step, x, out; int inner, gated, activation, copies; float above, below, linear, most; } GluArgs;
typedef struct { ulong step, x, out; int width, stride; float limit; int reserved; } CopyArgs;
typedef struct { ulong step, logits, strips, sorted, ids, scores; int vocab, top; } BestArgs;
typedef struct {
  ulong step, logits, bias, experts, weights, scratch;
  int n, top_k, router, normalize;
  float scale;
  int groups, top_groups;
  float jitter;
} RouteArgs;
typedef struct { ulong step, experts, weights, shared, shared_gate, out; int top_k, width; } CombineArgs;
typedef struct { ulong moves, runs; int n, reserved; } MoveArgs;
typedef struct {
  ulong step, projected, conv, conv_bias, dt_bias, a, d, y;
  int heads, head_dim, state_size, groups, conv_size, slot, width, reserved;
  float dt_min, dt_max;
} SsmArgs;
typedef struct { ulong from, rows, to, path; int heads, head_dim, state_size, groups, n, decays; } AdvanceArgs;
typedef struct { ulong step, projected, conv, bias, y; int channels, conv_size, slot, reserved; } ConvArgs;
typedef struct {
  ulong step, projected, z, g, conv, dt_bias, a, gate_norm, y;
  int heads, head_dim, key_dim, groups, conv_size, slot, width, decays, beta, z_stride, g_stride, sigmoid;
  float beta_scale, eps, near, key_scale, query_scale;
  int reserved;
} DeltaArgs;

#define STEP_OF(a) AT(const Step, (a).step)

static inline int blocks_of(Weights w) { return (w.k + w.block - 1) / w.block; }
static inline int kpad_of(Weights w) { return blocks_of(w) * w.block; }
static inline int step_size(Weights w) { return w.block == 16 ? 16 : 32; }
static inline int steps_of(Weights w) { return kpad_of(w) / step_size(w); }
static inline int block_steps(Weights w) { return w.block / step_size(w); }
static inline long group_bytes(Weights w) { return (long)(LANES / 8) * bits_of(w.format) * kpad_of(w); }
// Whether zero points are part of the integer sums (kernels/cpu/kernels.h), and whether blocks are added up by themselves.
static inline bool zeros_in_steps(Weights w) { return w.zeros && w.format == INT4; }
static inline bool zeros_by_block(Weights w) { return w.zeros && !zeros_in_steps(w); }
static inline Prepared prepared_row(Prepared all, Weights w, long row) {
  const Prepared of = {all.q + row * kpad_of(w), all.scale + row * steps_of(w) * 4, all.sum + row * steps_of(w) * 4,
                       all.block_sum + row * blocks_of(w) * 4};
  return of;
}
