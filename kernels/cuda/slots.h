// Operations on slots after attention: attention sums, rows moved to other slots.
#pragma once
#include "attention.h"

constexpr int SUMS_QUERIES = 128;  // of an item of the CPU engine, whose order sums are added up in

// ---- attention sums: a thread a slot, its queries in the order of kernels/cpu/attention.inl ---------------

// The sequence that a slot of attention sums belongs to, or -1; `slot` becomes its number there.
DEVICE int sequence_of(const Step* step, const int32_t* paid, int* slot) {
  for (int s = 0; s < step->sequences; s++) {
    const int first = paid[4 * s];
    if (first < 0 || *slot < first || *slot >= first + paid[4 * s + 1]) continue;
    *slot -= first;
    return s;
  }
  return -1;
}

// The rank that a slot has for a row, or -1 if the row does not see it.
DEVICE int rank_for(const Sight& sight, int row, int slot) {
  const Step* step = sight.step;
  const int length = sight.view->length, begin = step->begin[row];
  if (slot < length) return slot;
  if (begin < 0) return slot - length <= step->at[row] ? slot : -1;
  for (int i = begin; i < step->end[row]; i++)
    if (step->path[i] == slot - length) return length + i - begin;
  return -1;
}

// What the queries of a row and kv head pay to a rank of an item is added to `sum`. place: the row's in the item.
DEVICE float add_paid(const AttendArgs& a, int row, int64_t item, int place, int head, int rank, float sum) {
  const int group = a.heads / a.kv_heads, queries = a.tile * group;
  for (int j = 0; j < group; j++) {
    const int64_t query = place * group + j;
    const float most = a.parts[((item * a.kv_heads + head) * queries + query) * (a.dim + 2)];
    if (most == -infinity()) continue;
    const float* total = a.totals + 2 * ((int64_t)row * a.heads + head * group + j);
    const float factor = exp_(most - total[0]) / total[1];
    const float weight = a.kept[((item * a.kept_heads + head - a.head0) * queries + query) * CHUNK + rank % CHUNK];
    sum = sum + weight * factor;
  }
  return sum;
}

// Slots of all sequences [x] by kv heads [y].
KERNEL(attention_sums, SumsArgs, 128) {
  const AttendArgs& t = a.attend;
  const int64_t views = (int64_t)t.view * t.step->sequences;
  int slot = BLOCK_X * THREADS + THREAD;
  const int place = slot, head = t.head0 + BLOCK_Y;
  const int s = place < a.width ? sequence_of(t.step, t.step->paid + 4 * views, &slot) : -1;
  if (s < 0) return;
  const Sight sight = {t.step, t.step->views + views + s, t.window, t.sinks};
  const int row0 = sight.view->first, rows = t.step->paid[4 * (views + s) + 2], length = sight.view->length;
  const int many = max_(1, SUMS_QUERIES / (t.heads / t.kv_heads));
  const int first = slot < length ? slot / CHUNK : length / CHUNK, last = slot / CHUNK;
  float sum = 0.0f;
  for (int from = row0; from < row0 + rows; from += many)
    for (int chunk = first; chunk <= last; chunk++)
      for (int row = from; row < min_(from + many, row0 + rows); row++) {
        const int rank = rank_for(sight, row, slot);
        if (rank < 0 || rank / CHUNK != chunk) continue;
        // Keys hidden by position have the weight 0; those hidden by rank are skipped.
        if (t.window && sight.view->slots < 0 && !sight.sees(row, rank)) continue;
        sum = add_paid(t, row, t.step->part[row] + chunk, t.step->part_row[row], head, rank, sum);
      }
  a.sums[head * a.width + place] = sum;
}

// ---- commits: rows moved to other slots, a run of a page a block ---------------------------------------

KERNEL(move_slots, MoveArgs, 32) {
  const int64_t offset = a.runs[2 * BLOCK_X], row_bytes = a.runs[2 * BLOCK_X + 1];
  for (int i = 0; i < a.n; i++) {
    const uint64_t* move = a.moves + 4 * i;
    const uint32_t* from = reinterpret_cast<const uint32_t*>(move[0] + offset + move[1] * row_bytes);
    uint32_t* to = reinterpret_cast<uint32_t*>(move[2] + offset + move[3] * row_bytes);
    for (int w = THREAD; w < row_bytes / 4; w += THREADS) to[w] = from[w];
    warp_barrier();  // a row may go where one that has been moved was
  }
}
