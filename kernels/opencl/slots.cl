// Operations on slots after attention (kernels/cuda/slots.h): attention sums, rows moved to other slots.
#define SUMS_SLOTS 128    // of a block
#define SUMS_QUERIES 128  // of an item of the CPU engine, whose order sums are added up in

// ---- attention sums: a thread a slot -------------------------------------------------------------------

// The rank that a slot has for a row, or -1 if the row does not see it.
static inline int rank_for(Sight sight, int row, int slot) {
  __global const Step* step = sight.step;
  const int length = sight.view->length, begin = AT(const int, step->begin)[row];
  if (slot < length) return slot;
  if (begin < 0) return slot - length <= AT(const int, step->at)[row] ? slot : -1;
  for (int i = begin; i < AT(const int, step->end)[row]; i++)
    if (AT(const int, step->path)[i] == slot - length) return length + i - begin;
  return -1;
}

// What the queries of a row and kv head pay to a rank of an item is added to `sum`. place: the row's in the item.
static inline float add_paid(const AttendArgs* a, int row, long item, int place, int head, int rank, float sum) {
  const int group = a->heads / a->kv_heads, queries = a->tile * group;
  for (int j = 0; j < group; j++) {
    const long query = place * group + j;
    const float most = AT(const float, a->parts)[((item * a->kv_heads + head) * queries + query) * (a->dim + 2)];
    if (most == -INFINITY) continue;
    __global const float* total = AT(const float, a->totals) + 2 * ((long)row * a->heads + head * group + j);
    const float factor = divide(exp_(most - total[0]), total[1]);
    const long place = ((item * a->kept_heads + head - a->head0) * queries + query) * CHUNK + rank % CHUNK;
    sum = sum + AT(const float, a->kept)[place] * factor;
  }
  return sum;
}

// What all queries of a sequence pay to a slot of it.
static inline float paid_to(const AttendArgs* a, Sight sight, int rows, int head, int slot) {
  const int row0 = sight.view->first, length = sight.view->length, many = max(1, SUMS_QUERIES / (a->heads / a->kv_heads));
  const int first = slot < length ? slot / CHUNK : length / CHUNK, last = slot / CHUNK;
  float sum = 0.0f;
  for (int from = row0; from < row0 + rows; from += many)
    for (int chunk = first; chunk <= last; chunk++)
      for (int row = from; row < min(from + many, row0 + rows); row++) {
        const int rank = rank_for(sight, row, slot);
        if (rank < 0 || rank / CHUNK != chunk) continue;
        // Keys hidden by position have the weight 0; those hidden by rank are skipped.
        if (a->window && sight.view->slots < 0 && !sees(sight, row, rank)) continue;
        const int part = AT(const int, sight.step->part)[row], place = AT(const int, sight.step->part_row)[row];
        sum = add_paid(a, row, part + chunk, place, head, rank, sum);
      }
  return sum;
}

// 128 slots of all sequences [x] by kv heads [y].
__kernel void attention_sums(SumsArgs a, __local uchar* memory) {
  __global const Step* step = STEP_OF(a.attend);
  const long views = (long)a.attend.view * step->sequences;
  __global const int* paid = AT(const int, step->paid) + 4 * views;
  const int head = a.attend.head0 + BLOCK_Y, end = (int)min(a.width, (long)(BLOCK_X + 1) * SUMS_SLOTS);
  for (int place = BLOCK_X * SUMS_SLOTS + THREAD; place < end; place += THREADS)
    for (int s = 0; s < step->sequences; s++) {
      const int first = paid[4 * s], slot = place - first;
      if (first < 0 || slot < 0 || slot >= paid[4 * s + 1]) continue;
      const Sight sight = whole_sight(step, AT(const View, step->views) + views + s, a.attend.window, a.attend.sinks);
      AT(float, a.sums)[head * a.width + place] = paid_to(&a.attend, sight, paid[4 * s + 2], head, slot);
    }
}

// ---- commits: rows moved to other slots, a run of a page a block ---------------------------------------

__kernel void move_slots(MoveArgs a, __local uchar* memory) {
  const long offset = AT(const long, a.runs)[2 * BLOCK_X], row_bytes = AT(const long, a.runs)[2 * BLOCK_X + 1];
  for (int i = 0; i < a.n; i++) {
    __global const ulong* move = AT(const ulong, a.moves) + 4 * i;
    __global const uint* from = AT(const uint, move[0] + offset + move[1] * row_bytes);
    __global uint* to = AT(uint, move[2] + offset + move[3] * row_bytes);
    for (int w = THREAD; w < row_bytes / 4; w += THREADS) to[w] = from[w];
    BARRIER;  // a row may go where one that has been moved was
  }
}
