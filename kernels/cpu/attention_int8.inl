// Attention of texts that see all of themselves, all products in integers: of encoders whose matrices have one scale a row.
//
// Lanes are queries, as in attention_lanes.inl. A query is rounded as keys and values are, to int8 with a scale of its own;
// a score is the exact sum of their products, times both scales. What multiplies values is each weight times its value's
// scale, rounded to 8 bits of the largest of its query and chunk; the sum that divides is of the weights before that. (Zhang
// et al. 2024, SageAttention: int8 queries, keys, weights and values; there a scale has a block of tokens or a channel.)
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "attention_lanes.inl"
#include "kv.inl"

namespace ED_NS {

// Native vectors of queries of a tile that stays in registers, and keys, or values of one dimension, beside them.
constexpr int INT8_VECTORS = NV == 1 ? 4 : NV;
constexpr int INT8_KEYS = 4;
constexpr float LOG2E = 1.44269504088896341f, LN2 = 0.693147180559945309f;

// Keys and values of a chunk, and a tile of queries.
struct Int8Lanes {
  int dim, keys, lanes;
  const float* unit;         // [lanes]: what a product of a query means, less the key's scale, in powers of two
  const uint8_t* q;          // [dim / 4, lanes, 4], 128 more than they are
  float* score;              // [keys, lanes]; then weights, uint8 [keys / 4, lanes, 4]
  float* top;                // [lanes], the largest score
  float* sum;                // [dim, lanes]
  const float *key_scale, *value_scale;  // [keys]
  const int32_t* key_offset;             // [keys]: where a sum of products begins, because of the 128
  const int8_t* values;                  // [keys / 4, dim, 4]
  const int32_t* value_sum;              // [dim]
};

// 2^x of -64 to 0, to 3e-6; below that as of -64.
ED_IN nf npower2(nf x) {
  x = nmax(x, nset(-64.0f));
  const ni n = nround(x);
  const nf f = nsub(x, nfloat(n));
  nf p = nfma(nset(0.009570102f), f, nset(0.05591786f));
  p = nfma(p, f, nset(0.24024744f));
  p = nfma(p, f, nset(0.6931218f));
  return nmul(nfma(p, f, nset(1.0f)), nexp2(n));
}

template <int NQ, int NK>
ED_IN void int8_scores(const Int8Lanes& w, int lane, int k, const int8_t* key, int64_t row_bytes) {
  acc8 acc[NK][NQ];
  each<NK>([&](auto j) ED_INLINED { each<NQ>([&](auto i) ED_INLINED { acc[j][i] = begin8(w.key_offset[k + j]); }); });
  const uint8_t* q = w.q + 4 * lane;
  for (int d = 0; d < w.dim; d += 4, q += 4 * w.lanes) {
    w8 x[NQ];
    each<NQ>([&](auto i) ED_INLINED { x[i] = ready8(nbytes(q + 4 * W * i)); });
    each<NK>([&](auto j) ED_INLINED {
      const auto y = nspread(key + j * row_bytes + d);
      each<NQ>([&](auto i) ED_INLINED { acc[j][i] = dot8(acc[j][i], x[i], y); });
    });
  }
  each<NQ>([&](auto i) ED_INLINED {
    const nf unit = nload(w.unit + lane + W * i);
    nf top = nload(w.top + lane + W * i);
    each<NK>([&](auto j) ED_INLINED {
      const nf score = nmul(nmul(nfloat(end8(acc[j][i], 0)), unit), nset(w.key_scale[k + j]));
      nstore(w.score + (k + j) * w.lanes + lane + W * i, score), top = nmax(score, top);
    });
    nstore(w.top + lane + W * i, top);
  });
}

// The sums of ND dimensions. Weights stand for 128 less where `dot8` takes bytes so.
template <int NQ, int ND>
ED_IN void int8_values(const Int8Lanes& w, int lane, int d, const float* unit) {
  acc8 acc[ND][NQ];
  each<ND>([&](auto j) ED_INLINED { each<NQ>([&](auto i) ED_INLINED { acc[j][i] = begin8(0); }); });
  const uint8_t* p = (const uint8_t*)w.score + 4 * lane;
  const int8_t* v = w.values + 4 * d;
  for (int k = 0; k < w.keys; k += 4, p += 4 * w.lanes, v += 4 * w.dim) {
    w8 x[NQ];
    each<NQ>([&](auto i) ED_INLINED { x[i] = ready8(nbytes(p + 4 * W * i)); });
    each<ND>([&](auto j) ED_INLINED {
      const auto y = nspread(v + 4 * j);
      each<NQ>([&](auto i) ED_INLINED { acc[j][i] = dot8(acc[j][i], x[i], y); });
    });
  }
  each<ND>([&](auto j) ED_INLINED {
    const ni less = niset((128 - OFFSET8) * w.value_sum[d + j]);
    float* to = w.sum + (d + j) * w.lanes + lane;
    each<NQ>([&](auto i) ED_INLINED {
      nstore(to + W * i, nmul(nfloat(niadd(end8(acc[j][i], 0), less)), nload(unit + lane + W * i)));
    });
  });
}

// of(vectors, lane): all lanes, so many native vectors at a time.
template <class Do>
ED_IN void over_lanes(int lanes, Do of) {
  int lane = 0;
  for (; lane + INT8_VECTORS * W <= lanes; lane += INT8_VECTORS * W) of(std::integral_constant<int, INT8_VECTORS>(), lane);
  for (; lane < lanes; lane += 16) of(std::integral_constant<int, NV>(), lane);
}

// The weights of N keys, in bytes side by side.
template <int N>
ED_IN ni int8_rounded(const float* x, int lanes, nf steps) {
  ni four = niset(0);
  each<N>([&](auto j) ED_INLINED { four = niadd(nishl8(four), nround(nmul(nload(x + (N - 1 - j) * lanes), steps))); });
  return four;
}

// Scores become weights; the maximum and the sum of each query, and one unit of its weights.
static void int8_weights(const Int8Lanes& w, float* sum, float* unit) {
  const int n = w.keys, lanes = w.lanes;
  for (int lane = 0; lane < lanes; lane += W) {
    float* x = w.score + lane;
    const nf best = nadd(nload(w.top + lane), nzero());  // not -0
    nf all = nzero(), most = nset(1e-30f);
    for (int k = 0; k < n; k++) {
      const nf p = npower2(nsub(nload(x + k * lanes), best)), scaled = nmul(p, nset(w.value_scale[k]));
      all = nadd(all, p), most = nmax(scaled, most);
      nstore(x + k * lanes, scaled);
    }
    const nf steps = ndiv(nset(255.0f), most);
    // The bytes of four keys take the place of one key's floats, which were read.
    uint8_t* to = (uint8_t*)x;
    int k = 0;
    for (; k + 4 <= n; k += 4, to += 4 * lanes) nistore(to, int8_rounded<4>(x + k * lanes, lanes, steps));
    if (n - k == 3) nistore(to, int8_rounded<3>(x + k * lanes, lanes, steps));
    if (n - k == 2) nistore(to, int8_rounded<2>(x + k * lanes, lanes, steps));
    if (n - k == 1) nistore(to, int8_rounded<1>(x + k * lanes, lanes, steps));
    nstore(w.top + lane, nmul(best, nset(LN2))), nstore(sum + lane, all);
    nstore(unit + lane, nmul(most, nset(1.0f / 255.0f)));
  }
}

// What a chunk's keys and values need once for all queries.
struct Int8Chunk {
  float *key_scale, *value_scale;
  int32_t *key_offset, *value_sum;
  int8_t* values;

  Int8Chunk(int dim, uint8_t*& at) {
    key_scale = (float*)at, value_scale = key_scale + CHUNK;
    key_offset = (int32_t*)(value_scale + CHUNK), value_sum = key_offset + CHUNK;
    values = (int8_t*)(value_sum + dim);
    at = (uint8_t*)values + CHUNK * dim;
  }

  void keys(const int8_t* rows, int64_t row_bytes, int dim, int first, int n) {
    for (int k = 0; k < n; k++) key_scale[first + k] = int8_scale((const uint8_t*)rows + k * row_bytes, dim);
    if (OFFSET8 == 0) return (void)std::fill_n(key_offset + first, n, 0);
    for (int k0 = 0; k0 < n; k0 += 16) {
      vf sums[16];
      for (int k = 0; k < 16; k++) {
        const int8_t* row = rows + min(k0 + k, n - 1) * row_bytes;
        sums[k] = vload_i8(row);
        for (int d = 16; d < dim; d += 16) sums[k] = vadd(sums[k], vload_i8(row + d));
      }
      float of_key[16];
      vstore(of_key, vsums(sums));
      for (int k = 0; k < min(16, n - k0); k++) key_offset[first + k0 + k] = -OFFSET8 * (int32_t)of_key[k];
    }
  }

  // Four keys' values of a dimension side by side; past the last key its own again, times weights of 0.
  void bring(const int8_t* rows, int64_t row_bytes, int dim, int first, int n) {
    for (int k = 0; k < n; k++) value_scale[first + k] = int8_scale((const uint8_t*)rows + k * row_bytes, dim);
    for (int k = 0; k < n; k += 4) {
      const uint8_t* row[4];
      for (int j = 0; j < 4; j++) row[j] = (const uint8_t*)rows + min(k + j, n - 1) * row_bytes;
      uint32_t* to = (uint32_t*)(values + (first + k) * dim);
      for (int d = 0; d < dim; d++)
        to[d] = row[0][d] | (uint32_t)row[1][d] << 8 | (uint32_t)row[2][d] << 16 | (uint32_t)row[3][d] << 24;
    }
  }

  void add_up(int dim, int keys) {
    std::fill_n(value_sum, dim, 0);
    if (OFFSET8 == 128) return;
    for (int k = 0; k < keys; k += 4)
      for (int d = 0; d < dim; d++) {
        const int8_t* four = values + k * dim + 4 * d;
        value_sum[d] += four[0] + four[1] + four[2] + four[3];
      }
  }
};

// Queries of a tile, and their outputs.
static void int8_tile(Int8Lanes w, const Attention& a, int h, int row0, int base, int q0, int n, float* part, uint8_t* at) {
  const int dim = w.dim, lanes = w.lanes = (n + 15) & ~15;
  float unit[QUERY_TILE], top[QUERY_TILE], sum[QUERY_TILE];
  std::fill_n(top, lanes, -INFINITY);
  w.score = (float*)at, w.sum = w.score + lanes * CHUNK;
  uint8_t* q = (uint8_t*)(w.sum + lanes * dim);
  uint8_t* row = q + lanes * dim;
  w.q = q, w.unit = unit, w.top = top;
  for (int i = 0; i < lanes; i++) {
    store_int8(query_of(a, h, row0, q0 + min(i, n - 1)), dim, row);
    unit[i] = int8_scale(row, dim) * (a.scale * LOG2E);
    for (int d = 0; d < dim; d += 4) {
      uint32_t four;
      std::memcpy(&four, row + d, 4);
      four ^= 0x80808080u;
      std::memcpy(q + d * lanes + 4 * i, &four, 4);
    }
  }
  over_pages<int8_t>(a, base, w.keys, h * a.head_stride, [&](const int8_t* rows, int first, int count) {
    over_lanes(lanes, [&](auto vectors, int lane) {
      int k = 0;
      for (; k + INT8_KEYS <= count; k += INT8_KEYS)
        int8_scores<vectors(), INT8_KEYS>(w, lane, first + k, rows + k * a.row_bytes, a.row_bytes);
      for (; k < count; k++) int8_scores<vectors(), 1>(w, lane, first + k, rows + k * a.row_bytes, a.row_bytes);
    });
  });
  int8_weights(w, sum, unit);
  over_lanes(lanes, [&](auto vectors, int lane) {
    for (int d = 0; d < dim; d += INT8_KEYS) int8_values<vectors(), INT8_KEYS>(w, lane, d, unit);
  });
  for (int i = 0; i < n; i++) part[i * (dim + 2)] = top[i], part[i * (dim + 2) + 1] = sum[i];
  const size_t from = 4 * lanes, to = 4 * (dim + 2);
  int i = 0;
  for (; i + 4 <= n; i += 4)
    for (int d = 0; d < dim; d += 4)
      transpose4x4((const uint8_t*)(w.sum + d * lanes + i), from, (uint8_t*)(part + i * (dim + 2) + 2 + d), to);
  for (; i < n; i++)
    for (int d = 0; d < dim; d++) part[i * (dim + 2) + 2 + d] = w.sum[d * lanes + i];
}

static void attend_int8(const Attention& a, int h, int row0, int queries, int base, float* part, uint8_t* scratch) {
  Int8Chunk chunk(a.dim, scratch);
  const int keys = keys_of(a, base);
  over_pages<int8_t>(a, base, keys, h * a.head_stride,
                     [&](const int8_t* rows, int k, int n) { chunk.keys(rows, a.row_bytes, a.dim, k, n); });
  over_pages<int8_t>(a, base, keys, h * a.head_stride + a.values,
                     [&](const int8_t* rows, int k, int n) { chunk.bring(rows, a.row_bytes, a.dim, k, n); });
  chunk.add_up(a.dim, keys);
  Int8Lanes w{};
  w.dim = a.dim, w.keys = keys, w.values = chunk.values, w.value_sum = chunk.value_sum;
  w.key_scale = chunk.key_scale, w.value_scale = chunk.value_scale, w.key_offset = chunk.key_offset;
  for (int q0 = 0; q0 < queries; q0 += QUERY_TILE, part += (int64_t)QUERY_TILE * (a.dim + 2))
    int8_tile(w, a, h, row0, base, q0, min(QUERY_TILE, queries - q0), part, scratch);
}

}  // namespace ED_NS
