// Attention of texts that see all of themselves, keys and values in floats.
//
// Here a lane is a query, and all queries of a tile see all keys: a score is a sum in the order of the key's values, the
// maximum and the sum of the weights go from key to key, and nothing is added across lanes.
#pragma once
#include <cmath>

#include "weighted.inl"

namespace ED_NS {

using edgedec::Attention;
using edgedec::CHUNK;
using edgedec::PAGE_SLOTS;
using edgedec::QUERY_TILE;

// Vectors of queries and keys of a tile that stays in registers:
constexpr int LANE_VECTORS = NV == 1 ? 4 : 1;
constexpr int LANE_KEYS = 4;

// `lanes` queries, side by side at each of their values, and their scores by key.
struct Lanes {
  int lanes;
  float *score, *q;
};

template <int NQ, int NK>
ED_IN void lane_tile(const Lanes& w, int dim, int lane, const float* keys, float* score) {
  vf acc[NK][NQ];
  for (int k = 0; k < NK; k++)
    for (int i = 0; i < NQ; i++) acc[k][i] = vset(0.0f);
  const float* q = w.q + lane;
  for (int d = 0; d < dim; d++, q += w.lanes) {
    vf x[NQ];
    for (int i = 0; i < NQ; i++) x[i] = vload(q + 16 * i);
    for (int k = 0; k < NK; k++) {
      const vf y = vset(keys[k * dim + d]);
      for (int i = 0; i < NQ; i++) acc[k][i] = vfma(x[i], y, acc[k][i]);
    }
  }
  for (int k = 0; k < NK; k++)
    for (int i = 0; i < NQ; i++) vstore(score + k * w.lanes + lane + 16 * i, acc[k][i]);
}

// The scores of n keys.
template <int NQ>
ED_IN void lane_scores(const Lanes& w, int dim, int lane, const float* keys, int n, float* score) {
  int k = 0;
  for (; k + LANE_KEYS <= n; k += LANE_KEYS)
    lane_tile<NQ, LANE_KEYS>(w, dim, lane, keys + k * dim, score + k * w.lanes);
  for (; k < n; k++) lane_tile<NQ, 1>(w, dim, lane, keys + k * dim, score + k * w.lanes);
}

ED_IN void all_lanes(const Lanes& w, int dim, const float* keys, int n, float* score) {
  int lane = 0;
  for (; lane + 16 * LANE_VECTORS <= w.lanes; lane += 16 * LANE_VECTORS)
    lane_scores<LANE_VECTORS>(w, dim, lane, keys, n, score);
  for (; lane < w.lanes; lane += 16) lane_scores<1>(w, dim, lane, keys, n, score);
}

// From scores of n keys to weights; the maximum and the sum of each query.
static void lane_weights(const Lanes& w, int n, float* top, float* sum) {
  for (int lane = 0; lane < w.lanes; lane += 16) {
    float* x = w.score + lane;
    vf m = vload(x), all = vset(0.0f);
    for (int k = 1; k < n; k++) m = vmax(vload(x + k * w.lanes), m);
    m = vadd(m, vset(0.0f));  // not -0
    for (int k = 0; k < n; k++) {
      const vf p = vexp(vsub(vload(x + k * w.lanes), m));
      vstore(x + k * w.lanes, p), all = vadd(all, p);
    }
    vstore(top + lane, m), vstore(sum + lane, all);
  }
}

// each(rows, first, n): the keys or values of a chunk, a page's at a time.
template <class Row, class Do>
ED_IN void over_pages(const Attention& a, int base, int n, int64_t offset, Do each) {
  for (int k = 0; k < n; k += PAGE_SLOTS)
    each((const Row*)(a.pages[(base + k) / PAGE_SLOTS] + offset), k, min(PAGE_SLOTS, n - k));
}

// Query `at` of kv head h, counted from row0.
ED_IN const float* query_of(const Attention& a, int h, int row0, int at) {
  return a.q + (row0 + at / a.group()) * a.q_stride + (h * a.group() + at % a.group()) * a.dim;
}
// Keys of a chunk that begins at `base`.
ED_IN int keys_of(const Attention& a, int base) { return min(a.length + a.text - base, CHUNK); }

static void attend_lanes(const Attention& a, int h, int row0, int base, int q0, int n, float* part, uint8_t* scratch) {
  const int lanes = (n + 15) & ~15, dim = a.dim, keys = keys_of(a, base);
  float *score = (float*)scratch, *q = score + lanes * CHUNK, *sum = q + lanes * dim;
  const Lanes w = {lanes, score, q};
  for (int i = 0; i < lanes; i++) {
    const float* x = query_of(a, h, row0, q0 + min(i, n - 1));
    for (int d = 0; d < dim; d++) q[d * lanes + i] = x[d] * a.scale;
  }
  over_pages<float>(a, base, keys, h * a.head_stride, [&](const float* rows, int k, int count) {
    all_lanes(w, dim, rows, count, score + k * lanes);
  });
  float tops[QUERY_TILE], sums[QUERY_TILE];
  lane_weights(w, keys, tops, sums);
  for (int i = 0; i < n * dim; i += 16) vstore(sum + i, vset(0.0f));
  over_pages<float>(a, base, keys, h * a.head_stride + a.values, [&](const float* rows, int k, int count) {
    for (int i = 0; i < n; i += SUM_QUERIES)
      sum_queries(score + k * lanes + i, 1, lanes, rows, dim, count, sum + i * dim, min(SUM_QUERIES, n - i));
  });
  for (int i = 0; i < n; i++, part += dim + 2) {
    part[0] = tops[i], part[1] = sums[i];
    for (int j = 0; j < dim; j += 16) vstore(part + 2 + j, vadd(vload(sum + i * dim + j), vset(0.0f)));
  }
}

}  // namespace ED_NS
