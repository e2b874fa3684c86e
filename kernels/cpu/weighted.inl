// Sums of values, each times a weight: what all ways to attend end with.
#pragma once
#include "kernels.h"
#include "simd/wide.h"

namespace ED_NS {

ED_IN int min(int a, int b) { return a < b ? a : b; }
ED_IN int max(int a, int b) { return a > b ? a : b; }

// Queries and pieces of 16 values whose sums stay in registers.
constexpr int SUM_QUERIES = 4;
constexpr int SUM_PIECES = NV == 1 ? 4 : 1;

// NQ queries' sums of NP pieces, n values on; query_step, key_step: from a weight to that of the next query and key.
template <int NQ, int NP>
ED_IN void sum_tile(const float* p, int query_step, int key_step, const float* values, int width, int n, float* sum) {
  vf acc[NQ][NP];
  for (int q = 0; q < NQ; q++)
    for (int i = 0; i < NP; i++) acc[q][i] = vload(sum + q * width + 16 * i);
  for (int k = 0; k < n; k++, values += width) {
    vf v[NP];
    for (int i = 0; i < NP; i++) v[i] = vload(values + 16 * i);
    for (int q = 0; q < NQ; q++) {
      const vf weight = vset(p[q * query_step + k * key_step]);
      for (int i = 0; i < NP; i++) acc[q][i] = vfma(weight, v[i], acc[q][i]);
    }
  }
  for (int q = 0; q < NQ; q++)
    for (int i = 0; i < NP; i++) vstore(sum + q * width + 16 * i, acc[q][i]);
}

template <int NQ>
ED_IN void sum_pieces(const float* p, int query_step, int key_step, const float* rows, int width, int n, float* sum) {
  int at = 0;
  for (; at + 16 * SUM_PIECES <= width; at += 16 * SUM_PIECES)
    sum_tile<NQ, SUM_PIECES>(p, query_step, key_step, rows + at, width, n, sum + at);
  for (; SUM_PIECES > 2 && at + 32 <= width; at += 32)
    sum_tile<NQ, 2>(p, query_step, key_step, rows + at, width, n, sum + at);
  for (; at < width; at += 16) sum_tile<NQ, 1>(p, query_step, key_step, rows + at, width, n, sum + at);
}

// The sums of nq queries, at most SUM_QUERIES.
static void sum_queries(const float* p, int query_step, int key_step, const float* rows, int width, int n, float* sum, int nq) {
  switch (nq) {
    case 4: return sum_pieces<4>(p, query_step, key_step, rows, width, n, sum);
    case 3: return sum_pieces<3>(p, query_step, key_step, rows, width, n, sum);
    case 2: return sum_pieces<2>(p, query_step, key_step, rows, width, n, sum);
    default: return sum_pieces<1>(p, query_step, key_step, rows, width, n, sum);
  }
}

}  // namespace ED_NS
