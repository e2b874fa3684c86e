// Attention over cached keys, a chunk of ranks at a time.
//
// For one query and one chunk: scores = scale * (query . key), the dot product in 16 lanes and their
// halves; the chunk's maximum; p = exp(score - maximum); the sum of p in 16 lanes by rank; the weighted
// values one key after another. Queries are worked on in tiles that share the expanded keys, and a tile
// spans all ranks that any of its queries sees. Hidden keys have p = 0 and add nothing; -0 in the sums, their
// only possible effect, is removed. So no result depends on the tile.
#pragma once
#include <cmath>

#include "attention_int8.inl"

namespace ED_NS {

using edgedec::Attention;
using edgedec::CHUNK;
using edgedec::PAGE_SLOTS;
using edgedec::QUERY_TILE;
using edgedec::SCORE_KEYS;
using edgedec::VALUE_KEYS;

constexpr int KEYS_AHEAD = 2048;  // bytes: how far ahead keys and values are prefetched
constexpr int DOT_KEYS = NV == 1 ? 16 : 4;  // keys of one query that stay in registers while they are scored

struct Span {
  int lo, hi;
  bool empty() const { return lo >= hi; }
};
ED_IN Span intersect(Span a, Span b) { return {max(a.lo, b.lo), min(a.hi, b.hi)}; }

// What a query sees of a chunk, in ranks counted from the chunk's first: sinks [0, sinks), then [lo, hi).
struct Sight {
  int sinks, lo, hi;
};
struct Spans {
  Span v[2];
};
ED_IN Spans exact(const Sight& s) { return {{{0, s.sinks}, {s.lo, s.hi}}}; }

static Sight sight(const Attention& a, int row, int base) {
  const int hi = min(a.rank(row) + 1 - base, CHUNK), lo = max(a.first_rank(row) - base, 0);
  const int sinks = max(min(a.sinks - base, hi), 0);
  if (hi <= 0) return {0, 0, 0};
  if (lo >= hi) return {sinks, sinks, sinks};
  return sinks >= lo ? Sight{0, 0, hi} : Sight{sinks, lo, hi};
}

// The slots of consecutive ranks: from `start` on, or, after the committed ones, along a path.
struct Slots {
  const int32_t* path;
  int start;
  int64_t offset;  // of the head's keys or values in a page
};

// Rows that lie side by side in a page from `row` on, or along a path.
struct Run {
  const int32_t* path;
  int64_t offset;
  int n;
  const uint8_t *row, *end;  // the end of the page's rows
  int64_t turn;              // from there to the rows of the next page

  void skip(int rows, int64_t row_bytes) { path ? (void)(path += rows) : (void)(row += rows * row_bytes); }
};

struct Work {
  const Attention& a;
  int head, row0, base, q0, n;  // queries q0 to q0 + n of kv head `head`, counted from row0
  int pieces, width;            // of 16; floats of a padded query
  float *score, *q, *sum, *block, *factor;
  Sight all;                    // what any of them sees
  int last_page;                // of what any of them sees in the slots of their number
  Sight sights[QUERY_TILE];

  int row(int i) const { return row0 + (q0 + i) / a.group(); }
  float* scores(int i) const { return score + i * CHUNK; }
  // What is added to the scores of query i by distance, by rank.
  const float* distances(int i) const {
    const int of = head * a.group() + (q0 + i) % a.group();
    return a.distance + of * a.distance_stride - (a.length + row(i));
  }
  const float* relative(int i) const {
    const int of = head * a.group() + (q0 + i) % a.group();
    return a.relative + ((int64_t)row(i) * a.heads + of) * a.relative_stride;
  }
  // Ranks of this chunk that lie in the slots of their number.
  int dense() const { return a.begin ? max(min(a.length - base, CHUNK), 0) : CHUNK; }
  const uint8_t* at(int slot, int64_t offset) const {
    return a.pages[slot / PAGE_SLOTS] + offset + slot % PAGE_SLOTS * a.row_bytes;
  }
};

// The first run of at most n slots; `slots` goes on after it.
ED_IN Run take_run(const Work& w, Slots& slots, int n) {
  if (slots.path) return {slots.path, slots.offset, n, nullptr, nullptr, 0};
  const int64_t row_bytes = w.a.row_bytes;
  const int page = slots.start / PAGE_SLOTS, in_page = slots.start % PAGE_SLOTS, next = page + (page < w.last_page);
  n = min(n, PAGE_SLOTS - in_page);
  slots.start += n;
  const uint8_t *rows = w.a.pages[page] + slots.offset, *end = rows + PAGE_SLOTS * row_bytes;
  return {nullptr, slots.offset, n, rows + in_page * row_bytes, end, w.a.pages[next] + slots.offset - end};
}

static Sight see(Work& w) {
  Sight all = {0, CHUNK, 0};
  for (int i = 0; i < w.n; i++) {
    const Sight s = w.sights[i] = i && w.row(i) == w.row(i - 1) ? w.sights[i - 1] : sight(w.a, w.row(i), w.base);
    all = {max(all.sinks, s.sinks), s.lo < s.hi ? min(all.lo, s.lo) : all.lo, max(all.hi, s.hi)};
  }
  return {min(all.sinks, all.lo), min(all.lo, all.hi), all.hi};
}

static Work begin_tile(const Attention& a, int head, int row0, int chunk, int q0, int n, uint8_t* scratch) {
  const int width = (a.dim + 15) / 16 * 16;
  float *score = (float*)scratch, *q = score + n * CHUNK, *sum = q + n * width, *block = sum + n * width;
  Work w = {a, head, row0, chunk * CHUNK, q0, n, width / 16, width, score, q, sum, block, block + VALUE_KEYS * width,
            {}, 0, {}};
  w.all = see(w);
  w.last_page = max(w.base + min(w.all.hi, w.dense()) - 1, 0) / PAGE_SLOTS;
  for (int i = 0; i < n; i++) {
    const float* x = a.q + w.row(i) * a.q_stride + (head * a.group() + (q0 + i) % a.group()) * a.dim;
    for (int p = 0; p < w.pieces; p++) vstore(w.q + i * w.width + 16 * p, vload_n(x + 16 * p, a.dim - 16 * p));
  }
  return w;
}

// ---- bringing keys and values in -------------------------------------------------------------------

ED_IN int64_t rows_ahead(const Run& run) { return KEYS_AHEAD + (run.end - run.row > KEYS_AHEAD ? 0 : run.turn); }

// Rows become floats at block + key * key_step + piece * piece_step; `factor` is the scale of INT8 rows, times `scale`.
template <int F>
ED_IN void expand_rows(const Work& w, int dim, const Run& run, int n, int key_step, int piece_step, float scale) {
  const int64_t row_bytes = w.a.row_bytes;
  float *out = w.block, *factor = w.factor;
  const uint8_t* row = run.row;
  const int64_t ahead = rows_ahead(run);
  for (int i = 0; i < n; i++, out += key_step, row += row_bytes) {
    if (run.path) row = w.at(w.a.length + run.path[i], run.offset);
    else nprefetch(row + ahead);
    expand<F>(row, dim, [=](int piece, const vf& v) { vstore(out + piece * piece_step, v); });
    if (F == edgedec::INT8) factor[i] = int8_scale(row, dim) * scale;
  }
}

// Whether rows of a run are floats already, whole pieces of them one after another.
template <int F>
ED_IN bool in_place(int dim, const Run& run) {
  return F == edgedec::F32 && dim % 16 == 0 && !run.path;
}

// These, while those ahead are prefetched.
ED_IN const float* rows_in_place(const Run& run, int n, int64_t row_bytes) {
  const int64_t ahead = rows_ahead(run);
  for (int i = 0; i < n; i++) nprefetch(run.row + i * row_bytes + ahead);
  return (const float*)run.row;
}

// ---- scores ----------------------------------------------------------------------------------------

// A query times SCORE_KEYS keys; `key`, `piece`: from one to the next.
ED_IN vf dots(const float* q, const float* keys, int pieces, int key, int piece) {
  vf sums[SCORE_KEYS];
  for (int k0 = 0; k0 < SCORE_KEYS; k0 += DOT_KEYS) {
    vf acc[DOT_KEYS];
    for (int k = 0; k < DOT_KEYS; k++) acc[k] = vset(0.0f);
    for (int p = 0; p < pieces; p++) {
      const vf x = vload(q + 16 * p);
      for (int k = 0; k < DOT_KEYS; k++)
        acc[k] = vfma(x, vload(keys + p * piece + (k0 + k) * key), acc[k]);
    }
    for (int k = 0; k < DOT_KEYS; k++) sums[k0 + k] = acc[k];
  }
  return vsums(sums);
}

// Scores of queries i0 to i1 with the ranks of a span, which lie in `slots`.
template <int F>
ED_IN void score_span(const Work& w, int dim, Slots slots, Span span, int i0, int i1) {
  const int width = (dim + 15) / 16 * 16;
  for (int k = span.lo; k < span.hi;) {
    Run run = take_run(w, slots, span.hi - k);
    for (const int end = k + run.n; k < end;) {
      const int n = min(SCORE_KEYS, end - k);
      const bool whole = n == SCORE_KEYS && in_place<F>(dim, run);
      const float* keys = whole ? rows_in_place(run, n, w.a.row_bytes) : w.block;
      if (!whole) expand_rows<F>(w, dim, run, n, 16, 16 * SCORE_KEYS, w.a.scale);
      run.skip(n, w.a.row_bytes);
      const vf factor = F == edgedec::INT8 ? vload_n(w.factor, n) : vset(w.a.scale);
      for (int i = i0; i < i1; i++) {
        if (w.sights[i].hi <= k) continue;
        const float* q = w.q + i * width;
        const vf sums = whole ? dots(q, keys, width / 16, dim, 16) : dots(q, keys, width / 16, 16, 16 * SCORE_KEYS);
        vstore_n(w.scores(i) + k, vmul(sums, factor), n);
      }
      k += n;
    }
  }
}

template <int F>
static void score(const Work& w, Slots slots, Span span, int i0, int i1) {
  switch (w.a.dim) {  // the usual ones unrolled
    case 32: return score_span<F>(w, 32, slots, span, i0, i1);
    case 64: return score_span<F>(w, 64, slots, span, i0, i1);
    case 128: return score_span<F>(w, 128, slots, span, i0, i1);
    default: return score_span<F>(w, w.a.dim, slots, span, i0, i1);
  }
}

// ---- from scores to weights ------------------------------------------------------------------------

// Sets the ranks of a span that a query does not see.
ED_IN void hide(const Work& w, int query, Span span, float value) {
  const Sight& s = w.sights[query];
  float* x = w.scores(query);
  for (int i = max(span.lo, s.sinks); i < min(span.hi, s.lo); i++) x[i] = value;
  for (int i = max(span.lo, s.hi); i < span.hi; i++) x[i] = value;
  if (!w.a.slot_positions) return;
  const int row = w.row(query);
  for (int i = span.lo; i < min(span.hi, s.hi); i++)
    if (w.a.hides(row, w.a.slot(row, w.base + i))) x[i] = value;
}

// What is seen, in whole vectors of scores: sinks, then the rest; the first is empty if they touch.
static Spans vectors(const Sight& all) {
  const Span sinks = {0, (all.sinks + 15) & ~15}, rest = {all.lo & ~15, (all.hi + 15) & ~15};
  if (sinks.hi >= rest.lo) return {{{0, 0}, {sinks.empty() ? rest.lo : 0, max(sinks.hi, rest.hi)}}};
  return {{sinks, rest}};
}

// ALiBi: what is taken from the scores of a query by the distances of keys, on both sides of it.
ED_IN void slope(const Work& w, int query, Span span) {
  static const float LANE[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int row = w.row(query);
  const float by = w.a.slopes[w.head * w.a.group() + (w.q0 + query) % w.a.group()];
  const int64_t own = w.a.row_at[row];
  float* x = w.scores(query);
  if (!w.a.slot_at) {
    for (int k = span.lo; k < span.hi; k += 16) {
      const vf apart = vabs(vadd(vload(LANE), vset((float)(w.base + k - own))));
      vstore(x + k, vadd(vload(x + k), vmul(vset(-by), apart)));
    }
    return;
  }
  for (int k = span.lo; k < min(span.hi, w.sights[query].hi); k++)
    x[k] += -by * std::fabs((float)(w.a.slot_at[w.a.slot(row, w.base + k)] - own));
}

// Softcap and bias; -inf where the query does not see; the maximum.
static float top(const Work& w, int query) {
  float* x = w.scores(query);
  vf m = vset(-INFINITY);
  const vf cap = vset(w.a.softcap);
  for (const Span& span : vectors(w.all).v) {
    if (w.a.softcap != 0.0f)
      for (int k = span.lo; k < span.hi; k += 16) vstore(x + k, vmul(cap, vtanh(vdiv(vload(x + k), cap))));
    if (w.a.distance) {
      const float* of_key = w.distances(query) + w.base;
      for (int k = span.lo; k < span.hi; k += 16) vstore(x + k, vadd(vload(x + k), vload(of_key + k)));
    }
    if (w.a.relative) {
      const float* of_key = w.relative(query) + w.base;
      for (int k = span.lo; k < span.hi; k += 16) vstore(x + k, vadd(vload(x + k), vload(of_key + k)));
    }
    if (w.a.slopes) slope(w, query, span);
    if (w.a.bias)
      for (int k = span.lo; k < span.hi; k += 16) vstore(x + k, vadd(vload(x + k), vload(w.a.bias + w.base + k)));
    hide(w, query, span, -INFINITY);
    for (int k = span.lo; k < span.hi; k += 16) m = vmax(vload(x + k), m);
  }
  return vtop(m) + 0.0f;  // not -0
}

// exp(score - m), 0 where the query does not see; their sum.
static float weigh(const Work& w, int query, float m) {
  float* x = w.scores(query);
  vf sum = vset(0.0f);
  for (const Span& span : vectors(w.all).v) {
    for (int k = span.lo; k < span.hi; k += 16) vstore(x + k, vexp(vsub(vload(x + k), vset(m))));
    hide(w, query, span, 0.0f);
    for (int k = span.lo; k < span.hi; k += 16) sum = vadd(sum, vload(x + k));
  }
  return vsum(sum);
}

// ---- weighted values -------------------------------------------------------------------------------

ED_IN void times_factors(float* p, const float* factor, int n) {
  for (int k = 0; k < n; k += 16) vstore_n(p + k, vmul(vload_n(p + k, n - k), vload_n(factor + k, n - k)), n - k);
}

// Queries i0 to i1 add n values, the first of rank k.
template <int F>
ED_IN void sum_block(const Work& w, const float* rows, int width, int k, int n, int i0, int i1) {
  for (int i = i0; i < i1; i += SUM_QUERIES) {
    const int nq = min(SUM_QUERIES, i1 - i);
    if (F == edgedec::INT8)
      for (int q = i; q < i + nq; q++) times_factors(w.scores(q) + k, w.factor, n);
    sum_queries(w.scores(i) + k, CHUNK, 1, rows, width, n, w.sum + i * width, nq);
  }
}

// Queries i0 to i1 add the values of a span, which lie in `slots`.
template <int F>
ED_IN void sum_span(const Work& w, int dim, Slots slots, Span span, int i0, int i1) {
  for (int k = span.lo; k < span.hi;) {
    const int width = (dim + 15) / 16 * 16;
    Run run = take_run(w, slots, span.hi - k);
    for (const int end = k + run.n; k < end;) {
      const int n = min(VALUE_KEYS, end - k);
      const bool whole = in_place<F>(dim, run);
      const float* rows = whole ? rows_in_place(run, n, w.a.row_bytes) : w.block;
      if (!whole) expand_rows<F>(w, dim, run, n, width, 16, 1.0f);
      run.skip(n, w.a.row_bytes);
      sum_block<F>(w, rows, width, k, n, i0, i1);
      k += n;
    }
  }
}

template <int F>
static void values(const Work& w, Slots slots, Span span, int i0, int i1) {
  switch (w.a.dim) {
    case 32: return sum_span<F>(w, 32, slots, span, i0, i1);
    case 64: return sum_span<F>(w, 64, slots, span, i0, i1);
    case 128: return sum_span<F>(w, 128, slots, span, i0, i1);
    default: return sum_span<F>(w, w.a.dim, slots, span, i0, i1);
  }
}

// ---- what every tile goes through ------------------------------------------------------------------

// work(slots, span, i0, i1) for all ranks the tile sees, in order: those that lie in the slot of their number for all
// queries at once, those on a path row by row. `values`: of the values, not the keys.
template <class Do>
ED_IN void over_ranks(const Work& w, bool values, Do work) {
  const Attention& a = w.a;
  const int64_t offset = w.head * a.head_stride + (values ? a.values : 0);
  for (const Span& part : exact(w.all).v) {
    const Span span = intersect(part, {0, w.dense()});
    if (!span.empty()) work(Slots{nullptr, w.base + span.lo, offset}, span, 0, w.n);
  }
  if (w.all.hi <= w.dense()) return;
  for (int i = 0, next; i < w.n; i = next) {
    for (next = i + 1; next < w.n && w.row(next) == w.row(i);) next++;
    for (const Span& part : exact(w.sights[i]).v) {
      const Span span = intersect(part, {w.dense(), CHUNK});
      if (span.empty()) continue;
      work(Slots{a.path + (a.begin[w.row(i)] + w.base + span.lo - a.length), 0, offset}, span, i, next);
    }
  }
}

template <int F>
static void all_scores(const Work& w) {
  over_ranks(w, false, [&](Slots slots, Span span, int i0, int i1) { score<F>(w, slots, span, i0, i1); });
}

// The weights of a query and their maximum, for attention sums.
static void keep(const Work& w, int query, float m) {
  const int group = w.a.group();
  float* to = w.a.kept_of(w.row(query), w.head * group + (w.q0 + query) % group, w.base / CHUNK);
  for (const Span& span : vectors(w.all).v)
    for (int k = span.lo; k < span.hi; k += 16) vstore(to + k, vload(w.scores(query) + k));
  to[CHUNK] = m;
}

template <int F>
static void attend_tile(Work w, float* part) {
  const int dim = w.a.dim;
  all_scores<F>(w);
  for (int i = 0; i < w.n; i++) {
    float* to = part + (int64_t)i * (dim + 2);
    to[0] = top(w, i);
    to[1] = weigh(w, i, to[0]);
    if (w.a.kept) keep(w, i, to[0]);
    for (int p = 0; p < w.pieces; p++) vstore(w.sum + i * w.width + 16 * p, vset(0.0f));
  }
  over_ranks(w, true, [&](Slots slots, Span span, int i0, int i1) { values<F>(w, slots, span, i0, i1); });
  for (int i = 0; i < w.n; i++)
    for (int j = 0; j < dim; j += 16)
      vstore_n(part + (int64_t)i * (dim + 2) + 2 + j, vadd(vload(w.sum + i * w.width + j), vset(0.0f)), dim - j);
}

template <int F>
static void attend_as(const Attention& a, int h, int row0, int row1, int chunk, float* part, uint8_t* scratch) {
  const int queries = (row1 - row0) * a.group();
  if (a.lanes && F == edgedec::INT8) return attend_int8(a, h, row0, queries, chunk * CHUNK, part, scratch);
  if (a.lanes && F == edgedec::F32) {
    for (int q0 = 0; q0 < queries; q0 += QUERY_TILE, part += (int64_t)QUERY_TILE * (a.dim + 2))
      attend_lanes(a, h, row0, chunk * CHUNK, q0, min(QUERY_TILE, queries - q0), part, scratch);
    return;
  }
  for (int q0 = 0; q0 < queries; q0 += QUERY_TILE)
    attend_tile<F>(begin_tile(a, h, row0, chunk, q0, min(QUERY_TILE, queries - q0), scratch),
                   part + (int64_t)q0 * (a.dim + 2));
}

static void attend(const Attention& a, int h, int row0, int row1, int chunk, float* part, uint8_t* scratch) {
  switch (a.format) {
    case edgedec::F32: return attend_as<edgedec::F32>(a, h, row0, row1, chunk, part, scratch);
    case edgedec::F16: return attend_as<edgedec::F16>(a, h, row0, row1, chunk, part, scratch);
    case edgedec::INT8: return attend_as<edgedec::INT8>(a, h, row0, row1, chunk, part, scratch);
    case edgedec::INT4: return attend_as<edgedec::INT4>(a, h, row0, row1, chunk, part, scratch);
  }
}

// ---- putting chunks together -----------------------------------------------------------------------

ED_IN float exp_one(float x) {
  float y[16];
  vstore(y, vexp(vset(x)));
  return y[0];
}

static void merge(float* total, const float* part, int n, int dim) {
  for (; n > 0; n--, total += dim + 2, part += dim + 2) {
    if (part[0] == -INFINITY) continue;
    if (total[0] == -INFINITY) {
      std::memcpy(total, part, (size_t)(dim + 2) * 4);
      continue;
    }
    // exp(0) is 1, so that only one of them is computed.
    const float m = total[0] > part[0] ? total[0] : part[0];
    const vf old = vset(total[0] == m ? 1.0f : exp_one(total[0] - m)), more = vset(part[0] == m ? 1.0f : exp_one(part[0] - m));
    total[0] = m;
    for (int i = 1; i < dim + 2; i += 16)
      vstore_n(total + i, vfma(vload_n(part + i, dim + 2 - i), more, vmul(vload_n(total + i, dim + 2 - i), old)),
               dim + 2 - i);
  }
}

static void finish(const Attention& a, int h, int row0, int row1, const float* total) {
  for (int q = 0; q < (row1 - row0) * a.group(); q++, total += a.dim + 2) {
    float* out = a.out + (row0 + q / a.group()) * a.out_stride + (h * a.group() + q % a.group()) * a.dim;
    const vf sum = vset(total[1] == 0.0f ? 1.0f : total[1]);  // a query that sees nothing gives zeros
    for (int i = 0; i < a.dim; i += 16)
      vstore_n(out + i, vdiv(vload_n(total + 2 + i, a.dim - i), sum), a.dim - i);
  }
}

// ---- attention sums --------------------------------------------------------------------------------

// Weights of one query and chunk, exp(score - m), times `factor`, added to the slots it sees.
static void add_sums(const Attention& a, int row, int base, const float* weights, float factor, float* sums) {
  for (const Span& span : exact(sight(a, row, base)).v) {
    const int dense = a.begin ? min(span.hi, a.length - base) : span.hi;  // ranks in the slots of their number
    int k = span.lo;
    for (; k + 16 <= dense; k += 16)
      vstore(sums + base + k, vadd(vload(sums + base + k), vmul(vload(weights + k), vset(factor))));
    for (; k < span.hi; k++) sums[a.slot(row, base + k)] += weights[k] * factor;
  }
}

// exp(maximum of the chunk - of all) / sum of all.
ED_IN float sums_factor(float m, const float* total) { return exp_one(m - total[0]) / total[1]; }

static void sums_of_kept(const Attention& a, int h, int row0, int row1, int chunk, const float* total, float* sums) {
  for (int i = 0; i < (row1 - row0) * a.group(); i++, total += a.dim + 2) {
    const int row = row0 + i / a.group();
    if (sight(a, row, chunk * CHUNK).hi <= 0) continue;
    const float* kept = a.kept_of(row, h * a.group() + i % a.group(), chunk);
    if (kept[CHUNK] != -INFINITY) add_sums(a, row, chunk * CHUNK, kept, sums_factor(kept[CHUNK], total), sums);
  }
}

template <int F>
static void attention_sums_as(const Attention& a, int h, int row0, int row1, const float* total, float* sums, uint8_t* scratch) {
  const int queries = (row1 - row0) * a.group();
  int top_rank = 0;
  for (int row = row0; row < row1; row++) top_rank = max(top_rank, a.rank(row));
  for (int chunk = 0; chunk * CHUNK <= top_rank; chunk++) {
    if (a.kept) {
      if (a.sees(row0, row1, chunk)) sums_of_kept(a, h, row0, row1, chunk, total, sums);
      continue;
    }
    for (int q0 = 0; q0 < queries; q0 += QUERY_TILE) {
      const Work w = begin_tile(a, h, row0, chunk, q0, min(QUERY_TILE, queries - q0), scratch);
      all_scores<F>(w);
      for (int i = 0; i < w.n; i++) {
        const float m = top(w, i);
        weigh(w, i, m);
        if (m != -INFINITY)
          add_sums(a, w.row(i), w.base, w.scores(i), sums_factor(m, total + (int64_t)(q0 + i) * (a.dim + 2)), sums);
      }
    }
  }
}

static void attention_sums(const Attention& a, int h, int row0, int row1, const float* total, float* sums, uint8_t* scratch) {
  switch (a.format) {
    case edgedec::F32: return attention_sums_as<edgedec::F32>(a, h, row0, row1, total, sums, scratch);
    case edgedec::F16: return attention_sums_as<edgedec::F16>(a, h, row0, row1, total, sums, scratch);
    case edgedec::INT8: return attention_sums_as<edgedec::INT8>(a, h, row0, row1, total, sums, scratch);
    case edgedec::INT4: return attention_sums_as<edgedec::INT4>(a, h, row0, row1, total, sums, scratch);
  }
}

// ---- scores alone ----------------------------------------------------------------------------------

template <int F>
static void scores_as(const Attention& a, int h, int chunk, float* out, uint8_t* scratch) {
  for (int q0 = 0; q0 < a.group(); q0 += QUERY_TILE) {
    const Work w = begin_tile(a, h, 0, chunk, q0, min(QUERY_TILE, a.group() - q0), scratch);
    all_scores<F>(w);
    for (int i = 0; i < w.n; i++) {
      top(w, i);
      std::memcpy(out + (q0 + i) * CHUNK, w.scores(i), 4 * (size_t)CHUNK);
    }
  }
}

static void scores(const Attention& a, int h, int chunk, float* out, uint8_t* scratch) {
  switch (a.format) {
    case edgedec::F32: return scores_as<edgedec::F32>(a, h, chunk, out, scratch);
    case edgedec::F16: return scores_as<edgedec::F16>(a, h, chunk, out, scratch);
    case edgedec::INT8: return scores_as<edgedec::INT8>(a, h, chunk, out, scratch);
    case edgedec::INT4: return scores_as<edgedec::INT4>(a, h, chunk, out, scratch);
  }
}

}  // namespace ED_NS
