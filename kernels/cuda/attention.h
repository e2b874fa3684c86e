// Attention: heads normed and turned, keys and values into the pages, then rows by heads over chunks of 256 keys.
//
// For one query and one chunk, as kernels/cpu/attention.inl: scores = scale * (query . key), the dot product in 16 lanes
// and their halves; the chunk's maximum; p = exp(score - maximum); the sum of p in 16 lanes by rank; the weighted values
// one key after another. Chunks are merged in order.
#pragma once
#include "kv.h"
#include "prepare.h"

constexpr int MOST_QUERIES = 16;  // of an item
constexpr int AT_ONCE = 16;       // words of keys on their way to a lane; divides a warp

DEVICE uint8_t* kv_row(const Step* step, const View* view, int slot, int64_t offset, int64_t row_bytes) {
  return reinterpret_cast<uint8_t*>(step->pages[view->pages + slot / PAGE_SLOTS]) + offset + slot % PAGE_SLOTS * row_bytes;
}

// ---- what a row sees: ranks (kernels/cpu/kernels.h) --------------------------------------------------

struct Sight {
  const Step* step;
  const View* view;
  int window, sinks;

  DEVICE_METHOD int rank(int row) const {
    const int begin = step->begin[row];
    return view->length + (begin >= 0 ? step->end[row] - begin - 1 : step->at[row]);
  }
  DEVICE_METHOD int slot(int row, int rank) const {
    const int begin = step->begin[row];
    return begin >= 0 && rank >= view->length ? view->length + step->path[begin + rank - view->length] : rank;
  }
  // Ranks below this lie in the slot of their number, whatever the row.
  DEVICE_METHOD int dense(int row) const { return step->begin[row] >= 0 ? view->length : 0x7fffffff; }
  // The distance of a key from the row.
  DEVICE_METHOD int apart(int row, int rank) const {
    if (view->slots < 0) return rank - this->rank(row);
    return step->slot_positions[view->slots + slot(row, rank)] - step->positions[row];
  }
  DEVICE_METHOD bool sees(int row, int rank) const {
    const int own = this->rank(row);
    if (rank > own) return false;
    if (!window) return true;
    if (view->slots < 0) return rank > own - window || rank < sinks;
    const int position = step->slot_positions[view->slots + slot(row, rank)];
    return position > step->positions[row] - window || position < sinks;
  }
  DEVICE_METHOD const uint8_t* at(int row, int rank, bool values, int64_t offset, int64_t row_bytes) const {
    (void)values;
    return kv_row(step, view, slot(row, rank), offset, row_bytes);
  }
  DEVICE_METHOD float biased(float score, int rank) const { return (void)rank, score; }
  // Whether the row may see any of the chunk.
  DEVICE_METHOD bool sees_any(int row, int base) const {
    const int own = rank(row);
    if (own < base) return false;
    return !window || view->slots >= 0 || base < sinks || own - window < base + CHUNK - 1;
  }
};

// ---- before: a warp a head ----------------------------------------------------------------------------

DEVICE void norm_head(float* x, const Norm& norm, int dim) {
  const Stats s = row_stats(x, norm, dim);
  warp_barrier();
  for (int i = THREAD & 31; i < dim; i += 32) x[i] = normed(x[i], norm, s, i);
  warp_barrier();
}

DEVICE void turn(float* x, const float* cos, const float* sin, int pairs) {
  for (int i = THREAD & 31; i < pairs; i += 32) {
    const float a = x[i], b = x[pairs + i], c = cos[i], s = sin[i];
    x[i] = a * c - b * s;
    x[pairs + i] = b * c + a * s;
  }
  warp_barrier();
}

// A row and a kv head a block: its query heads, then its key and value, by warps.
KERNEL(rope_store, RopeArgs, 1024) {
  const int row = BLOCK_X, head = BLOCK_Y, group = a.heads / a.kv_heads, lane = THREAD & 31;
  if (row >= a.step->rows) return;
  const int64_t width = a.width, turned = (int64_t)a.step->positions[row] * a.pairs;
  for (int h = THREAD >> 5; h <= group; h += THREADS >> 5) {
    const bool key = h == group;
    float* x = a.qkv + row * width + (key ? a.heads + head : head * group + h) * a.dim;
    const int of = !a.own ? 0 : (key ? head : head * group + h) * a.dim;  // where the head's weights begin
    const float *weight = key ? a.k_norm : a.q_norm, *bias = key ? a.k_bias : a.q_bias;
    const Norm norm = {weight + of, bias ? bias + of : nullptr, bias ? LAYER : RMS, a.eps};
    if (weight && !a.last) norm_head(x, norm, a.dim);
    if (a.cos) turn(x, a.cos + turned, a.sin + turned, a.pairs);
    if (weight && a.last) norm_head(x, norm, a.dim);
    if (!key) continue;
    const View* view = a.step->views + (int64_t)a.view * a.step->sequences + a.step->sequence[row];
    const int64_t run = (int64_t)PAGE_SLOTS * a.row_bytes;
    uint8_t* to = kv_row(a.step, view, view->length + a.step->at[row], a.offset + head * run, a.row_bytes);
    store_kv(x, a.dim, a.format, to);
    store_kv(x + a.kv_heads * a.dim, a.dim, a.format, to + a.kv_heads * run);
  }
  (void)lane;
}

// ---- one chunk of an item -----------------------------------------------------------------------------

// What a block works on: queries (row0 + i / group, head * group + i % group).
template <class Seen>
struct Item {
  Seen sight;
  int row0, rows, base, head, group, dim, width;  // width: dim in whole sixteens
  float *query, *score, *sum, *factor;            // [n, width], [n, CHUNK], [n, dim], [a.keys]
  uint8_t* tile;                                  // [keys, row_bytes]

  DEVICE_METHOD int row(int query) const { return row0 + query / group; }
  DEVICE_METHOD int queries() const { return rows * group; }
};

// Loads the keys or values of ranks rank0 .. as `row` sees them: a lane finds where a key lies, its warp brings it.
template <int FORMAT, class Seen>
DEVICE void bring(const AttendArgs& a, const Item<Seen>& t, int row, int rank0, int n, bool values) {
  const int64_t run = (int64_t)PAGE_SLOTS * a.row_bytes, offset = a.offset + (t.head + (values ? a.kv_heads : 0)) * run;
  const int words = a.row_bytes / 4, lane = THREAD & 31;
  uint32_t* tile = reinterpret_cast<uint32_t*>(t.tile);
  barrier();  // the tile before this one has been read
  for (int first = THREAD / 32 * 32; first < n; first += THREADS) {
    const uint8_t* own = first + lane < n ? t.sight.at(row, rank0 + first + lane, values, offset, a.row_bytes) : nullptr;
    const int there = min_(32, n - first);
    for (int key = 0; key < there; key += AT_ONCE)
      for (int word = lane; word - lane < words; word += 32) {
        uint32_t found[AT_ONCE];  // all are asked for before the first is stored
        UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
          const uint32_t* from = reinterpret_cast<const uint32_t*>(shuffle64(reinterpret_cast<uint64_t>(own), key + j));
          found[j] = key + j < there && word < words ? from[word] : 0;
        }
        UNROLL
        for (int j = 0; j < AT_ONCE; j++)
          if (key + j < there && word < words) tile[(first + key + j) * words + word] = found[j];
      }
  }
  barrier();
  for (int i = THREAD; i < n; i += THREADS)
    t.factor[i] = kv_factor<FORMAT>(t.tile + i * a.row_bytes, a.dim) * (values ? 1.0f : a.scale);
  barrier();
}

template <int N>
DEVICE void add_halves(float* x) {
  UNROLL
  for (int i = 0; i < N; i++) x[i] = x[i] + x[i + N];
}

// Queries q0 to q1 times the n keys that lie in the tile: a query and a key a thread.
template <int FORMAT, class Seen>
DEVICE void score_tile(const AttendArgs& a, const Item<Seen>& t, int rank0, int n, int q0, int q1) {
  const int whole = (n + 31) / 32 * 32;  // a warp has one query
  for (int at = THREAD; at < (q1 - q0) * whole; at += THREADS) {
    const int q = q0 + at / whole, key = at % whole;
    if (key >= n) continue;
    const uint8_t* row = t.tile + key * a.row_bytes;
    const float* x = t.query + q * t.width;
    float lanes[LANES], values[LANES];
    UNROLL
    for (int l = 0; l < LANES; l++) lanes[l] = 0.0f;
    for (int i = 0; i < t.dim; i += LANES) {
      kv_sixteen<FORMAT>(row, t.dim, i, values);
      UNROLL
      for (int l = 0; l < LANES; l += 4) {
        const Quad four = *reinterpret_cast<const Quad*>(x + i + l);
        UNROLL
        for (int j = 0; j < 4; j++)
          if (i + l + j < t.dim) lanes[l + j] = fma_(as_float(four.v[j]), values[l + j], lanes[l + j]);
      }
    }
    add_halves<8>(lanes), add_halves<4>(lanes), add_halves<2>(lanes);
    t.score[q * CHUNK + rank0 - t.base + key] = (lanes[0] + lanes[1]) * t.factor[key];
  }
}

// Queries q0 to q1 add the n values that lie in the tile, one after another: EACH elements of a query a thread.
template <int FORMAT, int EACH, class Seen>
DEVICE void value_tile(const AttendArgs& a, const Item<Seen>& t, int rank0, int n, int q0, int q1) {
  const int parts = t.dim / EACH;
  for (int i = q0 * parts + THREAD; i < q1 * parts; i += THREADS) {
    const int q = i / parts, d = i % parts * EACH;
    const int end = min_(n, t.sight.rank(t.row(q)) + 1 - rank0);
    const float* p = t.score + q * CHUNK + rank0 - t.base;
    const uint8_t* row = t.tile;
    float acc[EACH], value[EACH];
    UNROLL
    for (int j = 0; j < EACH; j++) acc[j] = t.sum[q * t.dim + d + j];
    UNROLL_8
    for (int k = 0; k < end; k++, row += a.row_bytes) {
      const float weight = FORMAT == INT8 ? p[k] * t.factor[k] : p[k];
      if (EACH == 4) kv_four<FORMAT>(row, t.dim, d, value);
      else value[0] = kv_element<FORMAT>(row, t.dim, d);
      UNROLL
      for (int j = 0; j < EACH; j++) acc[j] = fma_(weight, value[j], acc[j]);
    }
    UNROLL
    for (int j = 0; j < EACH; j++) t.sum[q * t.dim + d + j] = acc[j];
  }
}

// All ranks of the chunk that the item's rows see, tile by tile: those that lie in the slot of their number for all
// queries at once, others row by row.
template <int FORMAT, class Seen>
DEVICE void over_tiles(const AttendArgs& a, const Item<Seen>& t, bool values) {
  int top = 0;
  for (int r = 0; r < t.rows; r++) top = max_(top, t.sight.rank(t.row0 + r) + 1);
  const int end = min_(top, t.base + CHUNK), dense = t.sight.dense(t.row0);
  for (int rank0 = t.base; rank0 < end; rank0 += a.keys) {
    const bool shared = min_(rank0 + a.keys, end) <= dense;
    for (int r = 0; r < (shared ? 1 : t.rows); r++) {
      const int most = shared ? end : min_(end, t.sight.rank(t.row0 + r) + 1), n = min_(a.keys, most - rank0);
      if (n <= 0) continue;
      const int q0 = shared ? 0 : r * t.group, q1 = shared ? t.queries() : (r + 1) * t.group;
      bring<FORMAT>(a, t, t.row0 + r, rank0, n, values);
      if (values && t.dim % 4 == 0) value_tile<FORMAT, 4>(a, t, rank0, n, q0, q1);
      else if (values) value_tile<FORMAT, 1>(a, t, rank0, n, q0, q1);
      else score_tile<FORMAT>(a, t, rank0, n, q0, q1);
    }
  }
  barrier();
}

// Turns scores into weights: a query a warp. Results: the largest score, the sum of exp.
template <class Seen>
DEVICE void weigh(const AttendArgs& a, const Item<Seen>& t, float* parts) {
  const int lane = THREAD & 31;
  for (int q = THREAD >> 5; q < t.queries(); q += THREADS >> 5) {
    float* x = t.score + q * CHUNK;
    const int row = t.row(q), n = min_(t.sight.rank(row) + 1 - t.base, CHUNK);
    const float slope = a.slopes ? a.slopes[t.head * t.group + q % t.group] : 0.0f;
    float most = -infinity(), sum = 0.0f;
    for (int i = lane; i < n; i += 32) {
      if (a.softcap != 0.0f) x[i] = a.softcap * tanh_(x[i] / a.softcap);
      if (a.slopes) x[i] = x[i] + slope * (float)t.sight.apart(row, t.base + i);
      x[i] = t.sight.biased(x[i], t.base + i);
      if (t.sight.sees(row, t.base + i)) most = larger(x[i], most);
    }
    for (int d = 16; d; d /= 2) most = larger(shuffle_xor(most, d), most);
    most = most + 0.0f;  // not -0
    for (int i = lane; i < n; i += 32) x[i] = t.sight.sees(row, t.base + i) ? exp_(x[i] - most) : 0.0f;
    warp_barrier();
    for (int i = lane & 15; i < n; i += LANES) sum = sum + x[i];
    sum = sum16(sum);
    float* part = parts + (int64_t)q * (t.dim + 2);
    if (lane == 0) part[0] = most, part[1] = sum;
  }
}

// The weights of the chunk, for attention sums.
template <class Seen>
DEVICE void keep_weights(const AttendArgs& a, const Item<Seen>& t) {
  float* to = a.kept + ((int64_t)BLOCK_X * a.kept_heads + BLOCK_Y) * a.tile * t.group * CHUNK;
  for (int i = THREAD; i < t.queries() * CHUNK; i += THREADS)
    if (t.base + i % CHUNK <= t.sight.rank(t.row(i / CHUNK))) to[i] = t.score[i];
}

template <int FORMAT, class Seen>
DEVICE void attend_item(const AttendArgs& a, const Item<Seen>& t, float* parts) {
  const int64_t width = a.width;
  for (int i = THREAD; i < t.queries() * t.dim; i += THREADS) {
    const int q = i / t.dim, d = i % t.dim;
    t.query[q * t.width + d] = a.qkv[t.row(q) * width + (t.head * t.group + q % t.group) * t.dim + d];
    t.sum[i] = 0.0f;
  }
  over_tiles<FORMAT>(a, t, false);
  weigh(a, t, parts);
  barrier();
  if (a.kept) keep_weights(a, t);
  over_tiles<FORMAT>(a, t, true);
  for (int i = THREAD; i < t.queries() * t.dim; i += THREADS)
    parts[(int64_t)(i / t.dim) * (t.dim + 2) + 2 + i % t.dim] = t.sum[i] + 0.0f;
}

template <class Seen>
DEVICE bool item_sees(const Item<Seen>& t) {
  for (int r = 0; r < t.rows; r++)
    if (t.sight.sees_any(t.row0 + r, t.base)) return true;
  return false;
}

// The work of a block: rows of an item, a kv head, its part of shared memory.
template <int FORMAT, class Seen>
DEVICE void attend_rows(const AttendArgs& a, const Seen& sight, int row0, int rows, int chunk, uint8_t* memory) {
  Item<Seen> t;
  t.sight = sight, t.row0 = row0, t.rows = rows, t.base = chunk * CHUNK;
  t.head = a.head0 + BLOCK_Y, t.group = a.heads / a.kv_heads, t.dim = a.dim, t.width = (a.dim + 15) / 16 * 16;
  const int queries = a.tile * t.group;
  t.query = reinterpret_cast<float*>(memory), t.score = t.query + queries * t.width;
  t.sum = t.score + queries * CHUNK, t.factor = t.sum + queries * t.dim;
  t.tile = reinterpret_cast<uint8_t*>(t.factor + a.keys);
  float* parts = a.parts + ((int64_t)BLOCK_X * a.kv_heads + t.head) * queries * (t.dim + 2);
  if (item_sees(t)) return attend_item<FORMAT>(a, t, parts);
  for (int q = THREAD; q < t.queries(); q += THREADS) parts[(int64_t)q * (t.dim + 2)] = -infinity();
}

// Items [x] by kv heads [y].
template <int FORMAT>
DEVICE void attend_block(const AttendArgs& a, uint8_t* memory) {
  if (BLOCK_X >= a.step->n_items) return;
  const int32_t* item = a.step->items + 4 * BLOCK_X;
  const Sight sight = {a.step, a.step->views + (int64_t)a.view * a.step->sequences + item[0], a.window, a.sinks};
  attend_rows<FORMAT>(a, sight, item[1], item[2], item[3], memory);
}

#define ATTEND(name, FORMAT)                                            \
  KERNEL(name, AttendArgs, 256) {                                       \
    SHARED(memory);                                                     \
    attend_block<FORMAT>(a, memory);                                    \
  }
ATTEND(attend_f32, F32)
ATTEND(attend_f16, F16)
ATTEND(attend_int8, INT8)
ATTEND(attend_int4, INT4)

// ---- chunks put together, in order: a row and a kv head a block ----------------------------------------

// What the output of a head, or of one of its values, is multiplied by.
DEVICE float gate_of(const AttendArgs& a, int row, int head, int d) {
  const float* gates = a.qkv + (int64_t)(row + 1) * a.width - a.gate;
  return sigmoid(gates[a.gate == a.heads ? head : head * a.dim + d]);
}

// first: of the row's first item; chunks: how many items it has; place: its place in them.
DEVICE void merge_row(const AttendArgs& a, int row, int first, int place, int chunks) {
  const int head = a.head0 + BLOCK_Y, group = a.heads / a.kv_heads;
  const int64_t query = a.dim + 2, next = (int64_t)a.kv_heads * a.tile * group * query;
  const float* parts = a.parts + first * next + ((int64_t)head * a.tile + place) * group * query;
  float* out = a.out + ((int64_t)row * a.kv_heads + head) * group * a.dim;
  for (int i = THREAD; i < group * a.dim; i += THREADS) {
    const float* part = parts + i / a.dim * query;
    float most = a.sink_logit ? a.sink_logit[head * group + i / a.dim] : -infinity();
    float sum = a.sink_logit ? 1.0f : 0.0f, value = 0.0f;
    for (int c = 0; c < chunks; c++, part += next) {
      const float other = part[0];
      if (other == -infinity()) continue;
      if (most == -infinity()) {
        most = other, sum = part[1], value = part[2 + i % a.dim];
        continue;
      }
      const float top = most > other ? most : other, old = exp_(most - top), more = exp_(other - top);
      sum = fma_(part[1], more, sum * old), value = fma_(part[2 + i % a.dim], more, value * old);
      most = top;
    }
    const float y = value / (sum == 0.0f ? 1.0f : sum);
    out[i] = a.gate ? y * gate_of(a, row, head * group + i / a.dim, i % a.dim) : y;
    if (!a.totals || i % a.dim) continue;
    float* total = a.totals + 2 * (((int64_t)row * a.kv_heads + head) * group + i / a.dim);
    total[0] = most, total[1] = sum;
  }
}

KERNEL(merge_chunks, AttendArgs, 128) {
  const int row = BLOCK_X;
  if (row < a.step->rows) merge_row(a, row, a.step->part[row], a.step->part_row[row], a.step->chunks[row]);
}
