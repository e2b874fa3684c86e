// Attention (kernels/cuda/attention.h): heads normed and turned, keys and values into the pages, then rows by heads over
// chunks of 256 keys, each with a maximum and a sum of its own; chunks are merged in order.

// ---- what a row sees: ranks --------------------------------------------------------------------------

// Of all slots, or (length from 0 on) of the first `length` ranks in pages or slots that a view left (views.cl), and of the
// pending rows after those of pages.
typedef struct {
  __global const Step* step;
  __global const View* view;
  int window, sinks, length;
  __global const int *pages, *slots, *runs;  // slots 0: pages; runs: how many slots each stands for
  __global const float* logs;
  __global const uchar* means;
} Sight;

static inline Sight whole_sight(__global const Step* step, __global const View* view, int window, int sinks) {
  const Sight s = {step, view, window, sinks, -1, 0, 0, 0, 0, 0};
  return s;
}
static inline int length_of(Sight s) { return s.length < 0 ? s.view->length : s.length; }
static inline int rank_of_row(Sight s, int row) {
  const int begin = AT(const int, s.step->begin)[row];
  if (s.slots) return s.length - 1;
  return length_of(s) + (begin >= 0 ? AT(const int, s.step->end)[row] - begin - 1 : AT(const int, s.step->at)[row]);
}
static inline int slot_of(Sight s, int row, int rank) {
  if (s.slots) return s.slots[rank];
  const int length = length_of(s);
  if (s.pages && rank < length) return s.pages[rank / PAGE_SLOTS] * PAGE_SLOTS + rank % PAGE_SLOTS;
  const int begin = AT(const int, s.step->begin)[row];
  const bool of_path = begin >= 0 && rank >= length;
  return of_path ? s.view->length + AT(const int, s.step->path)[begin + rank - length] : s.view->length + rank - length;
}
// Ranks below this lie in the same slots whatever the row.
static inline int dense_of(Sight s, int row) {
  return !s.slots && AT(const int, s.step->begin)[row] >= 0 ? length_of(s) : 0x7fffffff;
}
// The distance of a key from the row; blocks with slopes, which use it, have no views.
static inline int apart(Sight s, int row, int rank) {
  if (s.view->slots < 0) return rank - rank_of_row(s, row);
  return AT(const int, s.step->slot_positions)[s.view->slots + slot_of(s, row, rank)] - AT(const int, s.step->positions)[row];
}
static inline bool sees(Sight s, int row, int rank) {
  const int own = rank_of_row(s, row);
  if (rank > own) return false;
  if (!s.window) return true;
  if (s.view->slots < 0) return rank > own - s.window || rank < s.sinks;
  const int position = AT(const int, s.step->slot_positions)[s.view->slots + slot_of(s, row, rank)];
  return position > AT(const int, s.step->positions)[row] - s.window || position < s.sinks;
}
// Whether the row may see any of the chunk.
static inline bool sees_any(Sight s, int row, int base) {
  const int own = rank_of_row(s, row);
  if (own < base) return false;
  return !s.window || s.view->slots >= 0 || base < s.sinks || own - s.window < base + CHUNK - 1;
}

static inline __global uchar* kv_row(__global const Step* step, __global const View* view, int slot, long offset, long row_bytes) {
  return AT(uchar, AT(const ulong, step->pages)[view->pages + slot / PAGE_SLOTS]) + offset + slot % PAGE_SLOTS * row_bytes;
}

// ---- before: a row and a kv head a block, its query heads, then its key and value -----------------------

static inline void turn(__global float* x, __global const float* cos, __global const float* sin, int pairs) {
  for (int i = THREAD; i < pairs; i += THREADS) {
    const float a = x[i], b = x[pairs + i], c = cos[i], s = sin[i];
    x[i] = a * c - b * s;
    x[pairs + i] = b * c + a * s;
  }
  BARRIER;
}

__kernel void rope_store(RopeArgs a, __local uchar* memory) {
  __local float lanes[LANES];
  __global const Step* step = STEP_OF(a);
  const int row = BLOCK_X, head = BLOCK_Y, group = a.heads / a.kv_heads;
  if (row >= step->rows) return;
  const long width = a.width, turned = (long)AT(const int, step->positions)[row] * a.pairs;
  const Norm none = {0, 0, NO_NORM, a.eps};
  __global float* key = AT(float, a.qkv) + row * width + (a.heads + head) * a.dim;
  for (int h = 0; h <= group; h++) {
    __global float* x = h == group ? key : AT(float, a.qkv) + row * width + (head * group + h) * a.dim;
    const ulong weight = h == group ? a.k_norm : a.q_norm, bias = h == group ? a.k_bias : a.q_bias;
    const long of = !a.own ? 0 : (h == group ? head : head * group + h) * a.dim * 4L;  // where the head's weights begin
    const Norm norm = {weight + of, bias ? bias + of : 0, bias ? LAYER : RMS, a.eps};
    for (int pass = 0; pass <= a.last; pass++) {
      const bool now = weight && pass == a.last;
      const Stats s = row_stats(x, now ? norm : none, a.dim, lanes);
      norm_in_place(x, now ? norm : none, s, a.dim);
      BARRIER;
      turn(x, AT(const float, a.cos) + turned, AT(const float, a.sin) + turned, a.cos && !pass ? a.pairs : 0);
    }
  }
  __global const View* view = AT(const View, step->views) + (long)a.view * step->sequences + AT(const int, step->sequence)[row];
  const long run = (long)PAGE_SLOTS * a.row_bytes;
  __global uchar* to = kv_row(step, view, view->length + AT(const int, step->at)[row], a.offset + head * run, a.row_bytes);
  for (int value = 0; value < 2; value++)
    store_kv(key + value * a.kv_heads * a.dim, a.dim, a.format, to + value * a.kv_heads * run, lanes);
}

// ---- one chunk of an item -----------------------------------------------------------------------------

// What a block works on: queries (row0 + i / group, head * group + i % group).
typedef struct {
  Sight sight;
  int row0, rows, base, head, group, dim, width;
  __local float *query, *score, *sum, *factor;  // [n, width], [n, CHUNK], [n, dim], [a->keys]
  __local uchar* tile;                          // [keys, row_bytes]
} Item;

static inline int item_queries(const Item* t) { return t->rows * t->group; }

// Loads the keys or values of ranks rank0 .. as `row` sees them.
static inline void bring(const AttendArgs* a, const Item* t, int row, int rank0, int n, bool values, int format) {
  const long run = (long)PAGE_SLOTS * a->row_bytes, offset = a->offset + (t->head + (values ? a->kv_heads : 0)) * run;
  const int words = a->row_bytes / 4;
  BARRIER;  // the tile before this one has been read
  for (int i = THREAD; i < n * words; i += THREADS) {
    const int key = i / words, word = i % words;
    const int rank = rank0 + key;
    __global const uchar* from = t->sight.means + (long)rank * a->row_bytes;
    if (!values || !t->sight.means)
      from = kv_row(t->sight.step, t->sight.view, slot_of(t->sight, row, rank), offset, a->row_bytes);
    ((__local uint*)t->tile)[i] = ((__global const uint*)from)[word];
  }
  BARRIER;
  if (THREAD < n)
    t->factor[THREAD] = kv_factor(t->tile + THREAD * a->row_bytes, a->dim, format) * (values ? 1.0f : a->scale);
  BARRIER;
}

// Queries q0 to q1 times the n keys that lie in the tile: a thread a key of a query.
static inline void score_tile(const AttendArgs* a, const Item* t, int rank0, int n, int q0, int q1, int format) {
  for (int i = THREAD; i < (q1 - q0) * n; i += THREADS) {
    const int q = q0 + i / n, key = i % n;
    __local const uchar* row = t->tile + key * a->row_bytes;
    __local const float* x = t->query + q * t->width;
    float lanes[LANES];
    for (int l = 0; l < LANES; l++) lanes[l] = 0.0f;
    for (int d = 0; d < t->dim; d += LANES)
      for (int l = 0; l < LANES; l++)
        if (d + l < t->dim) lanes[l] = fma(x[d + l], kv_element(row, t->dim, d + l, format), lanes[l]);
    t->score[q * CHUNK + rank0 - t->base + key] = sum_own(lanes) * t->factor[key];
  }
}

// Queries q0 to q1 add the n values that lie in the tile, one after another: a thread a value of a query.
static inline void value_tile(const AttendArgs* a, const Item* t, int rank0, int n, int q0, int q1, int format) {
  for (int i = q0 * t->dim + THREAD; i < q1 * t->dim; i += THREADS) {
    const int q = i / t->dim, d = i % t->dim, end = min(n, rank_of_row(t->sight, t->row0 + q / t->group) + 1 - rank0);
    __local const float* p = t->score + q * CHUNK + rank0 - t->base;
    float acc = t->sum[i];
    for (int k = 0; k < end; k++) {
      const float weight = format == INT8 ? p[k] * t->factor[k] : p[k];
      acc = fma(weight, kv_element(t->tile + k * a->row_bytes, t->dim, d, format), acc);
    }
    t->sum[i] = acc;
  }
}

// All ranks of the chunk that the item's rows see, tile by tile: those that lie in the slot of their number for all
// queries at once, others row by row.
static inline void over_tiles(const AttendArgs* a, const Item* t, bool values, int format) {
  int top = 0;
  for (int r = 0; r < t->rows; r++) top = max(top, rank_of_row(t->sight, t->row0 + r) + 1);
  const int end = min(top, t->base + CHUNK), dense = dense_of(t->sight, t->row0);
  for (int rank0 = t->base; rank0 < end; rank0 += a->keys) {
    const bool shared = min(rank0 + a->keys, end) <= dense;
    for (int r = 0; r < (shared ? 1 : t->rows); r++) {
      const int most = shared ? end : min(end, rank_of_row(t->sight, t->row0 + r) + 1);
      const int n = clamp(most - rank0, 0, a->keys);  // 0 is no reason to skip barriers: drivers fail on that
      const int q0 = shared ? 0 : r * t->group, q1 = shared ? item_queries(t) : (r + 1) * t->group;
      bring(a, t, t->row0 + r, rank0, n, values, format);
      if (values) value_tile(a, t, rank0, n, q0, q1, format);
      else score_tile(a, t, rank0, n, q0, q1, format);
    }
  }
  BARRIER;
}

// Turns scores into weights, query after query. Results: the largest score, the sum of exp.
static inline void weigh(const AttendArgs* a, const Item* t, int queries, __global float* parts, __local float* lanes) {
  for (int q = 0; q < queries; q++) {
    __local float* x = t->score + q * CHUNK;
    const int row = t->row0 + q / t->group, n = min(rank_of_row(t->sight, row) + 1 - t->base, CHUNK);
    BARRIER;
    if (THREAD < LANES) {
      float most = -INFINITY;
      for (int i = THREAD; i < n; i += LANES) {
        if (a->softcap != 0.0f) x[i] = a->softcap * tanh_(divide(x[i], a->softcap));
        if (a->slopes) {
          const float slope = AT(const float, a->slopes)[t->head * t->group + q % t->group];
          x[i] = x[i] + slope * (float)apart(t->sight, row, t->base + i);
        }
        if (t->sight.runs) x[i] = x[i] + t->sight.logs[t->sight.runs[t->base + i]];
        if (sees(t->sight, row, t->base + i)) most = larger(x[i], most);
      }
      lanes[THREAD] = most;
    }
    BARRIER;
    float most = -INFINITY;
    for (int i = 0; i < LANES; i++) most = larger(lanes[i], most);
    most = most + 0.0f;  // not -0
    for (int i = THREAD; i < n; i += THREADS) x[i] = sees(t->sight, row, t->base + i) ? exp_(x[i] - most) : 0.0f;
    BARRIER;
    if (THREAD < LANES) {
      float sum = 0.0f;
      for (int i = THREAD; i < n; i += LANES) sum = sum + x[i];
      lanes[THREAD] = sum;
    }
    BARRIER;
    __global float* part = parts + (long)q * (t->dim + 2);
    if (THREAD == 0) part[0] = most, part[1] = sum_lanes(lanes);
  }
}

// The weights of the chunk, for attention sums.
static inline void keep_weights(const AttendArgs* a, const Item* t, int n) {
  __global float* to = AT(float, a->kept) + ((long)BLOCK_X * a->kept_heads + BLOCK_Y) * a->tile * t->group * CHUNK;
  for (int i = THREAD; i < n * CHUNK; i += THREADS)
    if (t->base + i % CHUNK <= rank_of_row(t->sight, t->row0 + i / CHUNK / t->group)) to[i] = t->score[i];
}

// The work of a block: rows of an item, a kv head, its part of local memory.
static inline void attend_rows(const AttendArgs* a, Sight sight, int row0, int rows, int chunk, __local uchar* memory,
                               __local float* lanes, int format) {
  const int queries = a->tile * (a->heads / a->kv_heads);
  Item t;
  t.sight = sight, t.row0 = row0, t.rows = rows, t.base = chunk * CHUNK;
  t.head = a->head0 + BLOCK_Y, t.group = a->heads / a->kv_heads, t.dim = a->dim, t.width = (a->dim + 15) / 16 * 16;
  t.query = (__local float*)memory, t.score = t.query + queries * t.width;
  t.sum = t.score + queries * CHUNK, t.factor = t.sum + queries * t.dim;
  t.tile = (__local uchar*)(t.factor + a->keys);
  __global float* parts = AT(float, a->parts) + ((long)BLOCK_X * a->kv_heads + t.head) * queries * (t.dim + 2);
  bool any = false;
  for (int r = 0; r < t.rows; r++) any = any || sees_any(t.sight, t.row0 + r, t.base);
  const int n = item_queries(&t);
  if (!any) {
    for (int q = THREAD; q < n; q += THREADS) parts[(long)q * (t.dim + 2)] = -INFINITY;
    return;
  }
  const long width = a->width;
  for (int i = THREAD; i < n * t.dim; i += THREADS) {
    const int q = i / t.dim, d = i % t.dim;
    const long at = (t.row0 + q / t.group) * width + (t.head * t.group + q % t.group) * t.dim + d;
    t.query[q * t.width + d] = AT(const float, a->qkv)[at];
    t.sum[i] = 0.0f;
  }
  for (int pass = 0; pass < 2; pass++) {
    over_tiles(a, &t, pass, format);
    weigh(a, &t, pass ? 0 : n, parts, lanes);
    BARRIER;
    keep_weights(a, &t, a->kept && !pass ? n : 0);
  }
  for (int i = THREAD; i < n * t.dim; i += THREADS) parts[(long)(i / t.dim) * (t.dim + 2) + 2 + i % t.dim] = t.sum[i] + 0.0f;
}

// Items [x] by kv heads [y].
static inline void attend_block(const AttendArgs* a, __local uchar* memory, __local float* lanes, int format) {
  __global const Step* step = STEP_OF(*a);
  if (BLOCK_X >= step->n_items) return;
  __global const int* item = AT(const int, step->items) + 4 * BLOCK_X;
  __global const View* view = AT(const View, step->views) + (long)a->view * step->sequences + item[0];
  attend_rows(a, whole_sight(step, view, a->window, a->sinks), item[1], item[2], item[3], memory, lanes, format);
}

#define ATTEND(name, FORMAT)                                   \
  __kernel void name(AttendArgs a, __local uchar* memory) {    \
    __local float lanes[LANES];                                \
    attend_block(&a, memory, lanes, FORMAT);                   \
  }
ATTEND(attend_f32, F32)
ATTEND(attend_f16, F16)
ATTEND(attend_int8, INT8)
ATTEND(attend_int4, INT4)

// ---- chunks put together, in order: a row and a kv head a block ----------------------------------------

// What the output of a head, or of one of its values, is multiplied by.
static inline float gate_of(const AttendArgs* a, int row, int head, int d) {
  __global const float* gates = AT(const float, a->qkv) + (long)(row + 1) * a->width - a->gate;
  return sigmoid(gates[a->gate == a->heads ? head : head * a->dim + d]);
}

// first: of the row's first item; chunks: how many items it has; place: its place in them.
static inline void merge_row(const AttendArgs* a, int row, int first, int place, int chunks) {
  const int head = a->head0 + BLOCK_Y, group = a->heads / a->kv_heads;
  const long query = a->dim + 2, next = (long)a->kv_heads * a->tile * group * query;
  __global const float* parts = AT(const float, a->parts) + first * next + ((long)head * a->tile + place) * group * query;
  __global float* out = AT(float, a->out) + ((long)row * a->kv_heads + head) * group * a->dim;
  for (int i = THREAD; i < group * a->dim; i += THREADS) {
    __global const float* part = parts + i / a->dim * query;
    float most = a->sink_logit ? AT(const float, a->sink_logit)[head * group + i / a->dim] : -INFINITY;
    float sum = a->sink_logit ? 1.0f : 0.0f, value = 0.0f;
    for (int c = 0; c < chunks; c++, part += next) {
      const float other = part[0];
      if (other == -INFINITY) continue;
      if (most == -INFINITY) {
        most = other, sum = part[1], value = part[2 + i % a->dim];
        continue;
      }
      const float top = most > other ? most : other, old = exp_(most - top), more = exp_(other - top);
      sum = fma(part[1], more, sum * old), value = fma(part[2 + i % a->dim], more, value * old);
      most = top;
    }
    const float y = divide(value, sum == 0.0f ? 1.0f : sum);
    out[i] = a->gate ? y * gate_of(a, row, head * group + i / a->dim, i % a->dim) : y;
    __global float* total = AT(float, a->totals) + 2 * (((long)row * a->kv_heads + head) * group + i / a->dim);
    if (a->totals && i % a->dim == 0) total[0] = most, total[1] = sum;
  }
}

__kernel void merge_chunks(AttendArgs a, __local uchar* memory) {
  __global const Step* step = STEP_OF(a);
  const int row = BLOCK_X;
  if (row >= step->rows) return;
  merge_row(&a, row, AT(const int, step->part)[row], AT(const int, step->part_row)[row], AT(const int, step->chunks)[row]);
}
