// Rows that see some of a block's committed slots (edgedec/runtime/view.py), by kv head, as kernels/cpu/attention_views.h:
// pages by their bounds, then slots one by one; ranks are counted among what is seen.
#pragma once
#include "slots.h"

// ---- bounds of pages (kernels/cpu/bounds.inl) ------------------------------------------------------------

DEVICE float kv_value(const uint8_t* row, int dim, int i, int format) {
  if (format == F32) return kv_element<F32>(row, dim, i);
  if (format == F16) return kv_element<F16>(row, dim, i);
  return format == INT8 ? kv_element<INT8>(row, dim, i) * kv_factor<INT8>(row, dim) : kv_element<INT4>(row, dim, i);
}

// Pages [x] by kv heads [y]: the least and the largest key of each dimension, rounded outward to bfloat16.
KERNEL(page_bounds, BoundsArgs, 32) {
  const uint64_t* page = a.pages + 2 * BLOCK_X;
  const int width = (a.dim + 15) / 16 * 16;
  const uint8_t* rows = reinterpret_cast<const uint8_t*>(page[0]) + a.offset + (int64_t)BLOCK_Y * PAGE_SLOTS * a.row_bytes;
  uint16_t* out = reinterpret_cast<uint16_t*>(page[1] + a.bounds_offset) + (int64_t)BLOCK_Y * 2 * width;
  for (int d = THREAD; d < width; d += THREADS) {
    float low = FLOAT_MAX, high = 0.0f - FLOAT_MAX;
    for (int i = 0; i < PAGE_SLOTS; i++) {
      const float x = d < a.dim ? kv_value(rows + (int64_t)i * a.row_bytes, a.dim, d, a.format) : 0.0f;
      low = smaller(x, low), high = larger(x, high);
    }
    out[d] = (uint16_t)(bf16_bits(low, low < 0.0f) >> 16);
    out[width + d] = (uint16_t)(bf16_bits(high, high > 0.0f) >> 16);
  }
}

// ---- which pages ---------------------------------------------------------------------------------------

// One group of rows and kv head of a view, and the addresses of its results.
struct Place {
  const ViewPlan* plan;
  const ViewSight* sight;
  const View* view;
  int number, head;
};

DEVICE Place place_of(const ViewArgs& a, int group, int head) {
  const Step* step = a.attend.step;
  const ViewPlan* plan = step->plans + a.plan;
  const int number = group * a.attend.kv_heads + head;
  const ViewSight* sight = plan->sights + number;
  return {plan, sight, step->views + (int64_t)a.attend.view * step->sequences + sight->sequence, number, head};
}

DEVICE const float* query_of(const AttendArgs& a, int row, int head) {
  return a.qkv + row * (int64_t)a.width + head * a.dim;
}

DEVICE float bf16_value(uint16_t x) { return as_float((uint32_t)x << 16); }

DEVICE float halves(float* lanes) {
  add_halves<8>(lanes), add_halves<4>(lanes), add_halves<2>(lanes);
  return lanes[0] + lanes[1];
}

// The most that any query of the place can score among the keys of a page.
DEVICE float page_bound(const ViewArgs& a, const Place& p, int page) {
  const AttendArgs& t = a.attend;
  const int width = (t.dim + 15) / 16 * 16, group = t.heads / t.kv_heads;
  const uint64_t at = t.step->bounds[p.view->pages + page] + a.bounds_offset;
  const uint16_t *low = reinterpret_cast<const uint16_t*>(at) + (int64_t)p.head * 2 * width, *high = low + width;
  float best = 0.0f - infinity();
  for (int i = 0; i < p.sight->rows * group; i++) {
    const float* q = query_of(t, p.sight->row0 + i / group, p.head * group + i % group);
    float lanes[LANES];
    UNROLL
    for (int l = 0; l < LANES; l++) lanes[l] = 0.0f;
    for (int d = 0; d < width; d += LANES) {
      UNROLL
      for (int l = 0; l < LANES; l++) {
        const float x = d + l < t.dim ? q[d + l] : 0.0f, above = x < 0.0f ? 0.0f : x, below = 0.0f < x ? 0.0f : x;
        lanes[l] = fma_(above, bf16_value(high[d + l]), fma_(below, bf16_value(low[d + l]), lanes[l]));
      }
    }
    best = larger(halves(lanes), best);
  }
  return best == best ? best : 0.0f - infinity();
}

// Marks what is seen anyway.
DEVICE void mark_seen(const ViewArgs& a, const Place& p, uint8_t* seen) {
  const ViewSight& s = *p.sight;
  for (int i = THREAD; i < s.all; i += THREADS) seen[i] = i < s.first || i >= s.last;
  barrier();
  for (int i = THREAD; i < s.n_chosen; i += THREADS) seen[p.plan->lists[s.chosen + i]] = 1;
  barrier();
}

// Marks, of the pages left, the `count` with the highest bounds; of equal ones the first.
DEVICE void mark_best(const ViewArgs& a, const Place& p, uint8_t* seen, int32_t* picked, float* bounds) {
  const ViewSight& s = *p.sight;
  const bool search = s.count < s.left;
  for (int i = THREAD; i < s.all; i += THREADS)
    if (search && !seen[i]) bounds[i] = page_bound(a, p, i);
  barrier();
  for (int i = THREAD; i < s.all; i += THREADS) {
    int better = 0;
    for (int j = 0; search && !seen[i] && j < s.all; j++)
      better += !seen[j] && (bounds[j] > bounds[i] || (bounds[j] == bounds[i] && j < i));
    picked[i] = better < s.count;
  }
  barrier();
  for (int i = THREAD; i < s.all; i += THREADS) seen[i] = seen[i] | (uint8_t)picked[i];
  barrier();
}

// Writes the numbers 0 .. n - 1 for which keep(i) holds, ascending, by put(place, i); returns how many, in thread 0's part
// of `counts` [THREADS + 1].
template <class Keep, class Put>
DEVICE int compacted(int n, int32_t* counts, Keep keep, Put put) {
  const int each = (n + THREADS - 1) / THREADS, from = min_(n, THREAD * each), to = min_(n, from + each);
  int own = 0, before = 0, all = 0;
  for (int i = from; i < to; i++) own += keep(i) ? 1 : 0;
  counts[THREAD] = own;
  barrier();
  for (int t = 0; t < THREADS; t++) before += t < THREAD ? counts[t] : 0, all += counts[t];
  for (int i = from; i < to; i++)
    if (keep(i)) put(before++, i);
  barrier();
  return all;
}

// Groups of rows [x] by kv heads [y]: the pages that they see.
KERNEL(select_pages, ViewArgs, 128) {
  SHARED(memory);
  if (BLOCK_X >= a.attend.step->plans[a.plan].groups) return;
  const Place p = place_of(a, BLOCK_X, BLOCK_Y);
  uint8_t* seen = a.seen + (int64_t)p.number * a.pages_stride;
  int32_t* list = a.pages + (int64_t)p.number * a.pages_stride;
  mark_seen(a, p, seen);
  if (p.sight->count > 0) mark_best(a, p, seen, list, a.bounds + (int64_t)p.number * a.pages_stride);
  compacted(p.sight->all, reinterpret_cast<int32_t*>(memory), [&](int i) { return seen[i] != 0; },
            [&](int at, int i) { list[at] = i; });
}

// ---- what a row sees of them ---------------------------------------------------------------------------

// As `Sight`: the committed slots are those of some pages, or some slots one by one, and then no pending ones.
struct Selected {
  const Step* step;
  const View* view;
  int window, sinks, length;
  const int32_t *pages, *slots;  // slots null: pages
  const float* logs;             // with `runs`: by how many slots one stands for
  const int32_t* runs;
  const uint8_t* means;          // values of those

  DEVICE_METHOD int rank(int row) const {
    if (slots) return length - 1;
    const int begin = step->begin[row];
    return length + (begin >= 0 ? step->end[row] - begin - 1 : step->at[row]);
  }
  DEVICE_METHOD int slot(int row, int rank) const {
    if (slots) return slots[rank];
    if (rank < length) return pages[rank / PAGE_SLOTS] * PAGE_SLOTS + rank % PAGE_SLOTS;
    const int begin = step->begin[row];
    return view->length + (begin >= 0 ? step->path[begin + rank - length] : rank - length);
  }
  DEVICE_METHOD int dense(int row) const { return !slots && step->begin[row] >= 0 ? length : 0x7fffffff; }
  DEVICE_METHOD int apart(int, int) const { return 0; }  // blocks with slopes have no views
  DEVICE_METHOD bool sees(int row, int rank) const {
    if (rank > this->rank(row)) return false;
    if (!window) return true;
    const int position = step->slot_positions[view->slots + slot(row, rank)];
    return position > step->positions[row] - window || position < sinks;
  }
  DEVICE_METHOD const uint8_t* at(int row, int rank, bool values, int64_t offset, int64_t row_bytes) const {
    if (values && means) return means + rank * row_bytes;
    return kv_row(step, view, slot(row, rank), offset, row_bytes);
  }
  DEVICE_METHOD float biased(float score, int rank) const { return runs ? score + logs[runs[rank]] : score; }
  DEVICE_METHOD bool sees_any(int row, int base) const { return rank(row) >= base; }
};

DEVICE Selected selected(const ViewArgs& a, const Place& p, bool listed) {
  const int64_t at = (int64_t)p.number * a.slots_stride;
  Selected s = {a.attend.step, p.view, a.attend.window, a.attend.sinks, p.sight->length,
                a.pages + (int64_t)p.number * a.pages_stride, nullptr, p.plan->logs, nullptr, nullptr};
  if (!listed) return s;
  s.length = a.counts[p.number], s.slots = a.slots + at;
  if (!a.means) return s;
  s.runs = a.runs + at, s.means = a.means + at * a.attend.row_bytes;
  return s;
}

// Items [x] by kv heads [y], those of pages or of slots.
template <int FORMAT>
DEVICE void attend_view(const ViewArgs& a, uint8_t* memory) {
  const ViewPlan* plan = a.attend.step->plans + a.plan;
  if (BLOCK_X >= plan->n_items) return;
  const int32_t* item = plan->items + 6 * BLOCK_X;
  if (item[4] != a.listed) return;
  const Place p = place_of(a, item[5], a.attend.head0 + BLOCK_Y);
  attend_rows<FORMAT>(a.attend, selected(a, p, a.listed), item[1], item[2], item[3], memory);
}

#define ATTEND_VIEW(name, FORMAT)        \
  KERNEL(name, ViewArgs, 256) {          \
    SHARED(memory);                      \
    attend_view<FORMAT>(a, memory);      \
  }
ATTEND_VIEW(attend_view_f32, F32)
ATTEND_VIEW(attend_view_f16, F16)
ATTEND_VIEW(attend_view_int8, INT8)
ATTEND_VIEW(attend_view_int4, INT4)

KERNEL(merge_view, ViewArgs, 128) {
  const ViewPlan* plan = a.attend.step->plans + a.plan;
  const int row = BLOCK_X;
  if (row < a.attend.step->rows) merge_row(a.attend, row, plan->part[row], plan->part_row[row], plan->chunks[row]);
}

// ---- slots near the anchor ------------------------------------------------------------------------------

// Of each query head of a place the mean query, and the mean of the highest scores so far.
DEVICE void mean_query(const AttendArgs& a, const Place& p, float* mean, float* anchors) {
  const int group = a.heads / a.kv_heads, row0 = p.sight->row0, rows = p.sight->rows;
  for (int i = THREAD; i < group * a.dim; i += THREADS) {
    float sum = 0.0f;
    for (int r = row0; r < row0 + rows; r++) sum = sum + query_of(a, r, p.head * group + i / a.dim)[i % a.dim];
    mean[i] = sum / (float)rows;
  }
  for (int j = THREAD; j < group; j += THREADS) {
    float sum = 0.0f;
    for (int r = row0; r < row0 + rows; r++) {
      float most = a.sink_logit ? a.sink_logit[p.head * group + j] : 0.0f - infinity();
      for (int c = 0; c < p.plan->page_chunks[r]; c++) {
        const int64_t query = (((int64_t)p.plan->part[r] + c) * a.kv_heads + p.head) * a.tile + p.plan->part_row[r];
        const float other = a.parts[(query * group + j) * (a.dim + 2)];
        if (other == 0.0f - infinity()) continue;
        most = most == 0.0f - infinity() ? other : most > other ? most : other;
      }
      sum = sum + most;
    }
    anchors[j] = sum / (float)rows;
  }
  barrier();
}

// The score of a key by a query, capped.
DEVICE float key_score(const AttendArgs& a, const float* q, const uint8_t* row) {
  float lanes[LANES];
  UNROLL
  for (int l = 0; l < LANES; l++) lanes[l] = 0.0f;
  const bool int8 = a.format == INT8;
  for (int i = 0; i < a.dim; i += LANES) {
    UNROLL
    for (int l = 0; l < LANES; l++) {
      if (i + l >= a.dim) continue;
      const float x = int8 ? kv_element<INT8>(row, a.dim, i + l) : kv_value(row, a.dim, i + l, a.format);
      lanes[l] = fma_(q[i + l], x, lanes[l]);
    }
  }
  const float score = halves(lanes) * ((int8 ? kv_factor<INT8>(row, a.dim) : 1.0f) * a.scale);
  return a.softcap != 0.0f ? a.softcap * tanh_(score / a.softcap) : score;
}

// Groups of rows [x / chunks] by kv heads [y], a chunk of four pages a block: which of their slots score near the anchor.
KERNEL(mark_stripes, ViewArgs, 128) {
  SHARED(memory);
  const AttendArgs& t = a.attend;
  const int chunks = a.pages_stride / 4, group = t.heads / t.kv_heads, page0 = BLOCK_X % chunks * 4;
  if (BLOCK_X / chunks >= t.step->plans[a.plan].groups) return;
  const Place p = place_of(a, BLOCK_X / chunks, BLOCK_Y);
  if (page0 >= p.sight->all) return;
  const uint8_t* seen = a.seen + (int64_t)p.number * a.pages_stride;
  uint8_t* near = a.near + (int64_t)p.number * a.pages_stride * PAGE_SLOTS;
  float *mean = reinterpret_cast<float*>(memory), *anchors = mean + group * t.dim;
  mean_query(t, p, mean, anchors);
  for (int slot = page0 * PAGE_SLOTS + THREAD; slot < min_(page0 + 4, p.sight->all) * PAGE_SLOTS; slot += THREADS) {
    near[slot] = 0;
    if (seen[slot / PAGE_SLOTS]) continue;
    const int64_t offset = t.offset + (int64_t)p.head * PAGE_SLOTS * t.row_bytes;
    const uint8_t* row = kv_row(t.step, p.view, slot, offset, t.row_bytes);
    for (int j = 0; j < group; j++)
      if (key_score(t, mean + j * t.dim, row) >= anchors[j] - as_float(p.sight->theta)) near[slot] = 1;
  }
}

// ---- slots one by one: those that are near, or those that are listed and on no page that is seen -----------------

KERNEL(list_slots, ViewArgs, 128) {
  SHARED(memory);
  if (BLOCK_X >= a.attend.step->plans[a.plan].groups) return;
  const Place p = place_of(a, BLOCK_X, BLOCK_Y);
  const uint8_t* seen = a.seen + (int64_t)p.number * a.pages_stride;
  const uint8_t* near = a.near + (int64_t)p.number * a.pages_stride * PAGE_SLOTS;
  const int32_t *lists = p.plan->lists + p.sight->slots, *runs = p.plan->lists + p.sight->runs;
  int32_t *to = a.slots + (int64_t)p.number * a.slots_stride, *to_runs = a.runs + (int64_t)p.number * a.slots_stride;
  int32_t* counts = reinterpret_cast<int32_t*>(memory);
  int n;
  if (p.sight->striped)
    n = compacted(p.sight->all * PAGE_SLOTS, counts, [&](int i) { return near[i] != 0; }, [&](int at, int i) {
      to[at] = i;
      if (a.means) to_runs[at] = 1;
    });
  else
    n = compacted(p.sight->n_slots, counts, [&](int i) { return !seen[lists[i] / PAGE_SLOTS]; }, [&](int at, int i) {
      to[at] = lists[i];
      if (a.means) to_runs[at] = p.sight->runs < 0 ? 1 : runs[i];
    });
  if (THREAD == 0) a.counts[p.number] = n;
}

// Groups of rows [x] by kv heads [y]: values of slots that stand for some, a warp each.
KERNEL(mean_values, ViewArgs, 128) {
  SHARED(memory);
  const AttendArgs& t = a.attend;
  if (BLOCK_X >= t.step->plans[a.plan].groups) return;
  const Place p = place_of(a, BLOCK_X, BLOCK_Y);
  const int64_t at = (int64_t)p.number * a.slots_stride, offset = t.offset + (int64_t)(t.kv_heads + p.head) * PAGE_SLOTS * t.row_bytes;
  const int lane = THREAD & 31;
  float* sum = reinterpret_cast<float*>(memory) + (THREAD >> 5) * t.dim;
  for (int i = THREAD >> 5; i < a.counts[p.number]; i += THREADS >> 5) {
    const int run = a.runs[at + i];
    const uint8_t* row = kv_row(t.step, p.view, a.slots[at + i], offset, t.row_bytes);
    uint8_t* to = a.means + (at + i) * t.row_bytes;
    for (int d = lane; d < t.dim; d += 32) {
      float x = kv_value(row, t.dim, d, t.format);
      for (int j = 1; j < run; j++) x = x + kv_value(row + (int64_t)j * t.row_bytes, t.dim, d, t.format);
      sum[d] = run == 1 ? x : x / (float)run;
    }
    warp_barrier();
    if (run > 1) {
      store_kv(sum, t.dim, t.format, to);
    } else {
      for (int w = lane; w < t.row_bytes / 4; w += 32)
        reinterpret_cast<uint32_t*>(to)[w] = reinterpret_cast<const uint32_t*>(row)[w];
    }
    warp_barrier();
  }
}

// ---- attention sums: a thread a slot, piece by piece of what is seen ---------------------------------------------

// Where a number stands in an ascending list, or -1.
DEVICE int found_at(const int32_t* list, int n, int wanted) {
  int low = 0;
  while (n > 0) {
    const int half = n / 2;
    if (list[low + half] < wanted) low += half + 1, n -= half + 1;
    else n = half;
  }
  return low;
}

// The rank of a slot for a row among the pages or the slots that are seen; -1: it is not.
DEVICE int rank_seen(const Selected& s, int n_pages, int row, int slot) {
  if (s.slots) {
    const int at = slot < s.view->length ? found_at(s.slots, s.length, slot) : s.length;
    return at < s.length && s.slots[at] == slot ? at : -1;
  }
  if (slot >= s.view->length) {
    const Sight whole = {s.step, s.view, 0, 0};
    const int rank = rank_for(whole, row, slot);
    return rank < 0 ? -1 : rank - s.view->length + s.length;
  }
  const int at = found_at(s.pages, n_pages, slot / PAGE_SLOTS);
  return at < n_pages && s.pages[at] == slot / PAGE_SLOTS ? at * PAGE_SLOTS + slot % PAGE_SLOTS : -1;
}

// What rows from .. to - 1 pay to a slot; of pages, or of slots one by one.
DEVICE float paid_by(const ViewArgs& a, const Place& p, const Selected& s, int from, int to, int slot, int last) {
  const AttendArgs& t = a.attend;
  float sum = 0.0f;
  const bool pending = slot >= p.view->length;
  for (int chunk = 0; chunk <= (pending ? last : 0); chunk++)
    for (int row = from; row < to; row++) {
      const int rank = rank_seen(s, p.sight->seen, row, slot);
      if (rank < 0 || (pending && rank / CHUNK != chunk)) continue;
      const int64_t item = p.plan->part[row] + (s.slots ? p.plan->page_chunks[row] : 0) + rank / CHUNK;
      sum = add_paid(t, row, item, p.plan->part_row[row], p.head, rank, sum);
    }
  return sum;
}

KERNEL(view_sums, ViewSumsArgs, 128) {
  const ViewArgs& v = a.view;
  const AttendArgs& t = v.attend;
  const int64_t views = (int64_t)t.view * t.step->sequences;
  const ViewPlan* plan = t.step->plans + v.plan;
  int slot = BLOCK_X * THREADS + THREAD;
  const int place = slot, head = t.head0 + BLOCK_Y, many = max_(1, SUMS_QUERIES / (t.heads / t.kv_heads));
  const int s = place < a.width ? sequence_of(t.step, t.step->paid + 4 * views, &slot) : -1;
  if (s < 0) return;
  float sum = 0.0f;
  for (int group = 0; group < plan->groups; group++) {
    const Place p = place_of(v, group, head);
    if (p.sight->sequence != s) continue;
    const int end = p.sight->row0 + p.sight->rows, last = (p.sight->length + t.step->paid[4 * (views + s) + 1]) / CHUNK;
    for (int from = p.sight->row0; from < end; from += many)
      for (int listed = 0; listed <= (v.slots ? 1 : 0); listed++)
        sum = sum + paid_by(v, p, selected(v, p, listed), from, min_(from + many, end), slot, last);
  }
  a.sums[head * a.width + place] = sum;
}
