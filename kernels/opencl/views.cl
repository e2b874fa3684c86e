// Rows that see some of a block's committed slots (kernels/cuda/views.h), by kv head: pages by their bounds, then slots one
// by one; ranks are counted among what is seen.

// ---- one value of a row in a page ----------------------------------------------------------------------

// Of int8 not yet scaled.
static inline float page_element(__global const uchar* row, int dim, int i, int format) {
  if (format == F32) return ((__global const float*)row)[i];
  if (format == F16) return vload_half(i, (__global const half*)row);
  if (format == INT8) return (float)((__global const char*)row)[i];
  const int g = i / 32, in = i % 32, whole = dim - g * 32 >= 32, byte = whole ? in % 16 : in / 2, high = whole ? in / 16 : in & 1;
  const uint pair = ((__global const uint*)(row + kv_scale_at(dim, INT4)))[2 * g + in / 16];
  return fma((float)(row[16 * g + byte] >> 4 * high & 15), as_float(pair << 16), as_float(pair & 0xffff0000u));
}
static inline float page_factor(__global const uchar* row, int dim, int format) {
  return format == INT8 ? *(__global const float*)(row + kv_scale_at(dim, INT8)) : 1.0f;
}
static inline float page_value(__global const uchar* row, int dim, int i, int format) {
  const float x = page_element(row, dim, i, format);
  return format == INT8 ? x * page_factor(row, dim, format) : x;
}

// ---- bounds of pages [x] by kv heads [y] -----------------------------------------------------------------

__kernel void page_bounds(BoundsArgs a, __local uchar* memory) {
  __global const ulong* page = AT(const ulong, a.pages) + 2 * BLOCK_X;
  const int width = (a.dim + 15) / 16 * 16;
  __global const uchar* rows = AT(const uchar, page[0]) + a.offset + (long)BLOCK_Y * PAGE_SLOTS * a.row_bytes;
  __global ushort* out = AT(ushort, page[1] + a.bounds_offset) + (long)BLOCK_Y * 2 * width;
  for (int d = THREAD; d < width; d += THREADS) {
    float low = LARGEST, high = -LARGEST;
    for (int i = 0; i < PAGE_SLOTS; i++) {
      const float x = d < a.dim ? page_value(rows + (long)i * a.row_bytes, a.dim, d, a.format) : 0.0f;
      low = smaller(x, low), high = larger(x, high);
    }
    out[d] = (ushort)(bf16_bits(low, low < 0.0f) >> 16);
    out[width + d] = (ushort)(bf16_bits(high, high > 0.0f) >> 16);
  }
}

// ---- which pages ---------------------------------------------------------------------------------------

// One group of rows and kv head of a view.
typedef struct {
  __global const ViewPlan* plan;
  __global const ViewSight* sight;
  __global const View* view;
  int number, head;
} Place;

static inline __global const ViewPlan* plan_of(const ViewArgs* a) {
  return AT(const ViewPlan, STEP_OF(a->attend)->plans) + a->plan;
}
static inline Place place_of(const ViewArgs* a, int group, int head) {
  __global const Step* step = STEP_OF(a->attend);
  Place p;
  p.plan = plan_of(a), p.head = head, p.number = group * a->attend.kv_heads + head;
  p.sight = AT(const ViewSight, p.plan->sights) + p.number;
  p.view = AT(const View, step->views) + (long)a->attend.view * step->sequences + p.sight->sequence;
  return p;
}
static inline __global const float* query_of(const AttendArgs* a, int row, int head) {
  return AT(const float, a->qkv) + row * (long)a->width + head * a->dim;
}

// The most that any query of the place can score among the keys of a page.
static inline float page_bound(const ViewArgs* a, Place p, int page) {
  const AttendArgs* t = &a->attend;
  const int width = (t->dim + 15) / 16 * 16, group = t->heads / t->kv_heads;
  const ulong at = AT(const ulong, STEP_OF(*t)->bounds)[p.view->pages + page] + a->bounds_offset;
  __global const ushort *low = AT(const ushort, at) + (long)p.head * 2 * width, *high = low + width;
  float best = -INFINITY;
  for (int i = 0; i < p.sight->rows * group; i++) {
    __global const float* q = query_of(t, p.sight->row0 + i / group, p.head * group + i % group);
    float lanes[LANES];
    for (int l = 0; l < LANES; l++) lanes[l] = 0.0f;
    for (int d = 0; d < width; d += LANES)
      for (int l = 0; l < LANES; l++) {
        const float x = d + l < t->dim ? q[d + l] : 0.0f, above = x < 0.0f ? 0.0f : x, below = 0.0f < x ? 0.0f : x;
        const float up = as_float((uint)high[d + l] << 16), down = as_float((uint)low[d + l] << 16);
        lanes[l] = fma(above, up, fma(below, down, lanes[l]));
      }
    best = larger(sum_own(lanes), best);
  }
  return best == best ? best : -INFINITY;
}

// Which of some numbers stay: those whose flag is set, or of `numbers` those on pages whose flag is not.
typedef struct {
  __global const uchar* flags;
  __global const int* numbers;
} Keeping;

static inline bool keeps(Keeping k, int i) { return k.numbers ? !k.flags[k.numbers[i] / PAGE_SLOTS] : k.flags[i] != 0; }

// Writes those of n that stay, ascending, and what stands beside them (1 if nothing does); how many they are.
static inline int compacted(Keeping k, int n, __global const int* beside, __global int* to, __global int* to_beside,
                            __local int* counts) {
  const int each = (n + THREADS - 1) / THREADS, from = min(n, THREAD * each), end = min(n, from + each);
  int own = 0, before = 0, all = 0;
  for (int i = from; i < end; i++) own += keeps(k, i) ? 1 : 0;
  counts[THREAD] = own;
  BARRIER;
  for (int t = 0; t < THREADS; t++) before += t < THREAD ? counts[t] : 0, all += counts[t];
  for (int i = from; i < end; i++)
    if (keeps(k, i)) {
      to[before] = k.numbers ? k.numbers[i] : i;
      if (to_beside) to_beside[before] = beside ? beside[i] : 1;
      before++;
    }
  BARRIER;
  return all;
}

// Groups of rows [x] by kv heads [y]: the pages that they see.
__kernel void select_pages(ViewArgs a, __local uchar* memory) {
  if (BLOCK_X >= plan_of(&a)->groups) return;
  const Place p = place_of(&a, BLOCK_X, BLOCK_Y);
  __global const ViewSight* s = p.sight;
  __global uchar* seen = AT(uchar, a.seen) + (long)p.number * a.pages_stride;
  __global int* list = AT(int, a.pages) + (long)p.number * a.pages_stride;
  __global float* bounds = AT(float, a.bounds) + (long)p.number * a.pages_stride;
  const bool search = s->count > 0 && s->count < s->left;
  for (int i = THREAD; i < s->all; i += THREADS) seen[i] = i < s->first || i >= s->last;
  BARRIER;
  for (int i = THREAD; i < s->n_chosen; i += THREADS) seen[AT(const int, p.plan->lists)[s->chosen + i]] = 1;
  BARRIER;
  for (int i = THREAD; i < s->all; i += THREADS)
    if (search && !seen[i]) bounds[i] = page_bound(&a, p, i);
  BARRIER;
  for (int i = THREAD; i < s->all; i += THREADS) {
    int better = 0;
    for (int j = 0; search && !seen[i] && j < s->all; j++)
      better += !seen[j] && (bounds[j] > bounds[i] || (bounds[j] == bounds[i] && j < i)) ? 1 : 0;
    if (s->count > 0) list[i] = better < s->count;
  }
  BARRIER;
  for (int i = THREAD; i < s->all; i += THREADS) seen[i] = seen[i] | (s->count > 0 ? (uchar)list[i] : 0);
  BARRIER;
  const Keeping k = {seen, 0};
  compacted(k, s->all, 0, list, 0, (__local int*)memory);
}

// ---- what a row sees of them ---------------------------------------------------------------------------

static inline Sight selected(const ViewArgs* a, Place p, bool listed) {
  const long at = (long)p.number * a->slots_stride;
  Sight s = whole_sight(STEP_OF(a->attend), p.view, a->attend.window, a->attend.sinks);
  s.length = listed ? AT(const int, a->counts)[p.number] : p.sight->length;
  s.pages = AT(const int, a->pages) + (long)p.number * a->pages_stride;
  if (!listed) return s;
  s.slots = AT(const int, a->slots) + at;
  if (!a->means) return s;
  s.runs = AT(const int, a->runs) + at, s.logs = AT(const float, p.plan->logs);
  s.means = AT(const uchar, a->means) + at * a->attend.row_bytes;
  return s;
}

// Items [x] by kv heads [y], those of pages or of slots.
static inline void attend_view(const ViewArgs* a, __local uchar* memory, __local float* lanes, int format) {
  __global const ViewPlan* plan = plan_of(a);
  if (BLOCK_X >= plan->n_items) return;
  __global const int* item = AT(const int, plan->items) + 6 * BLOCK_X;
  if (item[4] != a->listed) return;
  const Place p = place_of(a, item[5], a->attend.head0 + BLOCK_Y);
  attend_rows(&a->attend, selected(a, p, a->listed), item[1], item[2], item[3], memory, lanes, format);
}

#define ATTEND_VIEW(name, FORMAT)                              \
  __kernel void name(ViewArgs a, __local uchar* memory) {      \
    __local float lanes[LANES];                                \
    attend_view(&a, memory, lanes, FORMAT);                    \
  }
ATTEND_VIEW(attend_view_f32, F32)
ATTEND_VIEW(attend_view_f16, F16)
ATTEND_VIEW(attend_view_int8, INT8)
ATTEND_VIEW(attend_view_int4, INT4)

__kernel void merge_view(ViewArgs a, __local uchar* memory) {
  __global const ViewPlan* plan = plan_of(&a);
  const int row = BLOCK_X;
  if (row >= STEP_OF(a.attend)->rows) return;
  const int first = AT(const int, plan->part)[row], place = AT(const int, plan->part_row)[row];
  merge_row(&a.attend, row, first, place, AT(const int, plan->chunks)[row]);
}

// ---- slots near the anchor ------------------------------------------------------------------------------

// The highest score that a query head of a row has so far.
static inline float top_score(const AttendArgs* a, Place p, int row, int j) {
  float most = a->sink_logit ? AT(const float, a->sink_logit)[p.head * (a->heads / a->kv_heads) + j] : -INFINITY;
  const long part = AT(const int, p.plan->part)[row], place = AT(const int, p.plan->part_row)[row];
  for (int c = 0; c < AT(const int, p.plan->page_chunks)[row]; c++) {
    const long query = (((part + c) * a->kv_heads + p.head) * a->tile + place) * (a->heads / a->kv_heads) + j;
    const float other = AT(const float, a->parts)[query * (a->dim + 2)];
    if (other == -INFINITY) continue;
    most = most == -INFINITY ? other : most > other ? most : other;
  }
  return most;
}

// Of each query head of a place the mean query, and the mean of the highest scores.
static inline void mean_query(const AttendArgs* a, Place p, __local float* mean, __local float* anchors) {
  const int group = a->heads / a->kv_heads, row0 = p.sight->row0, rows = p.sight->rows;
  for (int i = THREAD; i < group * a->dim; i += THREADS) {
    float sum = 0.0f;
    for (int r = row0; r < row0 + rows; r++) sum = sum + query_of(a, r, p.head * group + i / a->dim)[i % a->dim];
    mean[i] = divide(sum, (float)rows);
  }
  for (int j = THREAD; j < group; j += THREADS) {
    float sum = 0.0f;
    for (int r = row0; r < row0 + rows; r++) sum = sum + top_score(a, p, r, j);
    anchors[j] = divide(sum, (float)rows);
  }
  BARRIER;
}

// The score of a key by a query, capped.
static inline float key_score(const AttendArgs* a, __local const float* q, __global const uchar* row) {
  float lanes[LANES];
  for (int l = 0; l < LANES; l++) lanes[l] = 0.0f;
  for (int i = 0; i < a->dim; i += LANES)
    for (int l = 0; l < LANES; l++)
      if (i + l < a->dim) lanes[l] = fma(q[i + l], page_element(row, a->dim, i + l, a->format), lanes[l]);
  const float score = sum_own(lanes) * (page_factor(row, a->dim, a->format) * a->scale);
  return a->softcap != 0.0f ? a->softcap * tanh_(divide(score, a->softcap)) : score;
}

// Groups of rows [x / chunks] by kv heads [y], a chunk of four pages a block: which of their slots score near the anchor.
__kernel void mark_stripes(ViewArgs a, __local uchar* memory) {
  const int chunks = a.pages_stride / 4, group = a.attend.heads / a.attend.kv_heads, page0 = BLOCK_X % chunks * 4;
  if (BLOCK_X / chunks >= plan_of(&a)->groups) return;
  const Place p = place_of(&a, BLOCK_X / chunks, BLOCK_Y);
  if (page0 >= p.sight->all) return;
  __global const uchar* seen = AT(const uchar, a.seen) + (long)p.number * a.pages_stride;
  __global uchar* near = AT(uchar, a.near) + (long)p.number * a.pages_stride * PAGE_SLOTS;
  __local float *mean = (__local float*)memory, *anchors = mean + group * a.attend.dim;
  mean_query(&a.attend, p, mean, anchors);
  const long offset = a.attend.offset + (long)p.head * PAGE_SLOTS * a.attend.row_bytes;
  for (int slot = page0 * PAGE_SLOTS + THREAD; slot < min(page0 + 4, p.sight->all) * PAGE_SLOTS; slot += THREADS) {
    bool marked = false;
    for (int j = 0; j < group && !seen[slot / PAGE_SLOTS]; j++) {
      __global const uchar* row = kv_row(STEP_OF(a.attend), p.view, slot, offset, a.attend.row_bytes);
      marked = marked || key_score(&a.attend, mean + j * a.attend.dim, row) >= anchors[j] - as_float(p.sight->theta);
    }
    near[slot] = marked;
  }
}

// ---- slots one by one: those that are near, or those that are listed and on no page that is seen -----------------

__kernel void list_slots(ViewArgs a, __local uchar* memory) {
  if (BLOCK_X >= plan_of(&a)->groups) return;
  const Place p = place_of(&a, BLOCK_X, BLOCK_Y);
  __global const uchar* seen = AT(const uchar, a.seen) + (long)p.number * a.pages_stride;
  __global const uchar* near = AT(const uchar, a.near) + (long)p.number * a.pages_stride * PAGE_SLOTS;
  __global const int* lists = AT(const int, p.plan->lists);
  const long at = (long)p.number * a.slots_stride;
  const bool striped = p.sight->striped;
  Keeping k = {striped ? near : seen, 0};
  if (!striped) k.numbers = lists + p.sight->slots;
  const int all = striped ? p.sight->all * PAGE_SLOTS : p.sight->n_slots;
  __global const int* beside = striped || p.sight->runs < 0 ? 0 : lists + p.sight->runs;
  __global int* runs = a.means ? AT(int, a.runs) + at : 0;
  const int n = compacted(k, all, beside, AT(int, a.slots) + at, runs, (__local int*)memory);
  if (THREAD == 0) AT(int, a.counts)[p.number] = n;
}

// Groups of rows [x] by kv heads [y]: values of slots that stand for some.
__kernel void mean_values(ViewArgs a, __local uchar* memory) {
  __local float lanes[LANES];
  if (BLOCK_X >= plan_of(&a)->groups) return;
  const AttendArgs* t = &a.attend;
  const Place p = place_of(&a, BLOCK_X, BLOCK_Y);
  const long at = (long)p.number * a.slots_stride, offset = t->offset + (long)(t->kv_heads + p.head) * PAGE_SLOTS * t->row_bytes;
  __global float* sum = AT(float, a.floats) + (long)p.number * t->dim;
  for (int i = 0; i < AT(const int, a.counts)[p.number]; i++) {
    const int run = AT(const int, a.runs)[at + i];
    __global const uchar* row = kv_row(STEP_OF(*t), p.view, AT(const int, a.slots)[at + i], offset, t->row_bytes);
    __global uchar* to = AT(uchar, a.means) + (at + i) * t->row_bytes;
    for (int d = THREAD; d < t->dim; d += THREADS) {
      float x = page_value(row, t->dim, d, t->format);
      for (int j = 1; j < run; j++) x = x + page_value(row + (long)j * t->row_bytes, t->dim, d, t->format);
      sum[d] = divide(x, (float)run);
    }
    BARRIER;
    store_kv(sum, t->dim, t->format, to, lanes);
    BARRIER;
    for (int w = THREAD; w < (run == 1 ? t->row_bytes / 4 : 0); w += THREADS)
      ((__global uint*)to)[w] = ((__global const uint*)row)[w];
    BARRIER;
  }
  for (int d = THREAD; d < t->dim; d += THREADS) sum[d] = 0.0f;  // as it was: the self-test compares all memory
}

// ---- attention sums: a thread a slot, piece by piece of what is seen ---------------------------------------------

// Where a number stands in an ascending list, or the next one does.
static inline int found_at(__global const int* list, int n, int wanted) {
  int low = 0;
  while (n > 0) {
    const int middle = n / 2;
    if (list[low + middle] < wanted) low += middle + 1, n -= middle + 1;
    else n = middle;
  }
  return low;
}

// The rank of a slot for a row among the pages or the slots that are seen; -1: it is not.
static inline int rank_seen(Sight s, int n_pages, int row, int slot) {
  if (s.slots) {
    const int at = slot < s.view->length ? found_at(s.slots, s.length, slot) : s.length;
    return at < s.length && s.slots[at] == slot ? at : -1;
  }
  if (slot >= s.view->length) {
    const int rank = rank_for(whole_sight(s.step, s.view, 0, 0), row, slot);
    return rank < 0 ? -1 : rank - s.view->length + s.length;
  }
  const int at = found_at(s.pages, n_pages, slot / PAGE_SLOTS);
  return at < n_pages && s.pages[at] == slot / PAGE_SLOTS ? at * PAGE_SLOTS + slot % PAGE_SLOTS : -1;
}

// What rows from .. to - 1 pay to a slot; of pages, or of slots one by one.
static inline float paid_by(const ViewArgs* a, Place p, Sight s, int from, int to, int slot, int last) {
  float sum = 0.0f;
  const bool pending = slot >= p.view->length;
  for (int chunk = 0; chunk <= (pending ? last : 0); chunk++)
    for (int row = from; row < to; row++) {
      const int rank = rank_seen(s, p.sight->seen, row, slot);
      if (rank < 0 || (pending && rank / CHUNK != chunk)) continue;
      const int first = AT(const int, p.plan->part)[row] + (s.slots ? AT(const int, p.plan->page_chunks)[row] : 0);
      sum = add_paid(&a->attend, row, first + rank / CHUNK, AT(const int, p.plan->part_row)[row], p.head, rank, sum);
    }
  return sum;
}

// What all rows of a sequence pay to a slot of it.
static inline float view_paid(const ViewArgs* a, int sequence, int slots, int head, int slot) {
  const int many = max(1, SUMS_QUERIES / (a->attend.heads / a->attend.kv_heads));
  float sum = 0.0f;
  for (int group = 0; group < plan_of(a)->groups; group++) {
    const Place p = place_of(a, group, head);
    const int end = p.sight->row0 + p.sight->rows, last = (p.sight->length + slots) / CHUNK;
    for (int from = p.sight->sequence == sequence ? p.sight->row0 : end; from < end; from += many)
      for (int listed = 0; listed <= (a->slots ? 1 : 0); listed++)
        sum = sum + paid_by(a, p, selected(a, p, listed), from, min(from + many, end), slot, last);
  }
  return sum;
}

// 128 slots of all sequences [x] by kv heads [y].
__kernel void view_sums(ViewSumsArgs a, __local uchar* memory) {
  __global const Step* step = STEP_OF(a.view.attend);
  __global const int* paid = AT(const int, step->paid) + 4 * (long)a.view.attend.view * step->sequences;
  const int head = a.view.attend.head0 + BLOCK_Y, end = (int)min(a.width, (long)(BLOCK_X + 1) * SUMS_SLOTS);
  for (int place = BLOCK_X * SUMS_SLOTS + THREAD; place < end; place += THREADS)
    for (int s = 0; s < step->sequences; s++) {
      const int first = paid[4 * s], slot = place - first;
      if (first < 0 || slot < 0 || slot >= paid[4 * s + 1]) continue;
      AT(float, a.sums)[head * a.width + place] = view_paid(&a.view, s, paid[4 * s + 1], head, slot);
    }
}
