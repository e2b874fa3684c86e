// Bounds of a page of keys, and what a query can score there at most.
//
// The least and the largest key of each dimension are rounded outward to bfloat16, so that the sum over dimensions of
// max(q * least, q * largest) is never below the score of a key of the page.
#pragma once
#include "kernels.h"
#include "kv.inl"
#include "simd/wide.h"

namespace ED_NS {

ED_IN void store_bf16(uint16_t* out, const float* x, int n, bool highs) {
  for (int i = 0; i < n; i++) out[i] = (uint16_t)(bf16_bits(x[i], highs ? x[i] > 0.0f : x[i] < 0.0f) >> 16);
}

static void bounds(const uint8_t* rows, int64_t row_bytes, int dim, int format, int n, uint16_t* out, float* scratch) {
  const int width = edgedec::kv_round(dim, 16);
  float *low = scratch, *high = low + width, *row = high + width;
  for (int i = 0; i < width; i++) low[i] = FLT_MAX, high[i] = -FLT_MAX, row[i] = 0.0f;
  for (int r = 0; r < n; r++, rows += row_bytes) {
    load_kv(rows, dim, format, row);
    for (int i = 0; i < width; i += 16) {
      const vf x = vload(row + i);
      vstore(low + i, vmin(x, vload(low + i)));
      vstore(high + i, vmax(x, vload(high + i)));
    }
  }
  store_bf16(out, low, width, false);
  store_bf16(out + width, high, width, true);
}

// `q` [n][2][width]: the positive part of each query, then the negative one, zeros after `dim`.
static void page_scores(const float* q, int n, const uint16_t* const* pages, int64_t offset, int dim, int count,
                        float* out) {
  const int width = edgedec::kv_round(dim, 16);
  for (int first = 0; first < count; first += 16) {
    const int some = count - first < 16 ? count - first : 16;
    vf best = vset(-INFINITY);
    for (int p = first + 16; p < count && p < first + 32; p++)
      for (int i = 0; i < 2 * width; i += 32) nprefetch((const uint8_t*)(pages[p] + offset + i));
    for (int i = 0; i < n; i++) {
      const float *positive = q + (int64_t)2 * i * width, *negative = positive + width;
      vf sums[16];
      for (int p = 0; p < 16; p++) {
        const uint16_t *low = pages[first + (p < some ? p : 0)] + offset, *high = low + width;
        vf sum = vset(0.0f);
        for (int d = 0; d < width; d += 16)
          sum = vfma(vload(positive + d), vload_bf16(high + d), vfma(vload(negative + d), vload_bf16(low + d), sum));
        sums[p] = sum;
      }
      best = vmax(vsums(sums), best);
    }
    vstore_n(out + first, best, some);
  }
}

}  // namespace ED_NS
