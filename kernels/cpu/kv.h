// The cached rows of attention: how many bytes a key or a value takes, and where its parts stand.
//
// A row of `dim` values, always a multiple of 4 bytes:
// - F32: dim floats. F16: dim halves.
// - INT8: dim int8, up to a multiple of 4; float scale. value = scale * q, scale = max |value| / 127.
// - INT4: nibbles, up to a multiple of 4 bytes; then for each group of KV_GROUP values two bfloat16, its
//   scale and its least value. value = fma(u, scale, least), u 0 to 15. Of 32 values byte i holds value i
//   (low) and i + 16 (high), so that a vector of bytes gives two vectors of values; of fewer at the end byte
//   i holds 2i (low) and 2i + 1 (high).
#pragma once
#include <cstddef>
#include <cstdint>

namespace edgedec {

constexpr int PAGE_SLOTS = 64;    // slots of a page; a chunk is whole pages
constexpr int KV_GROUP = 16;      // int4 values that share a scale
constexpr int QUERY_TILE = 64;    // queries that share the keys brought into the fast cache
constexpr int SCORE_KEYS = 16;    // keys expanded at once to be scored,
constexpr int VALUE_KEYS = 32;    // values to be summed

static inline int kv_round(int n, int unit) { return (n + unit - 1) / unit * unit; }
static inline int kv_groups(int dim) { return (dim + KV_GROUP - 1) / KV_GROUP; }
// Where the scales of a quantized row begin.
static inline int kv_scale_at(int dim, int format) {
  return kv_round(format == 3 ? dim : (dim + 1) / 2, 4);
}

// Bytes of a key or value of `dim` in a cache; int8 and int4 carry their own scales.
static inline size_t kv_row_bytes(int dim, int format) {
  switch (format) {
    case 1: return (size_t)dim * 4;
    case 2: return (size_t)kv_round(dim * 2, 4);
    case 3: return (size_t)kv_scale_at(dim, format) + 4;
    case 4: return (size_t)kv_scale_at(dim, format) + 4 * (size_t)kv_groups(dim);
    default: return 0;
  }
}

// Scratch for `attend` and `attention_sums`, 64-byte aligned: scores of a tile of queries with a chunk's 256 keys,
// the queries and their sums, the keys or values being worked on, and their scales; or (attention_int8.inl) the scales
// and offsets of all keys, values, queries in bytes and one as a row of a cache.
static inline size_t attention_scratch(int dim, int queries) {
  size_t tile = queries < QUERY_TILE ? kv_round(queries, 16) : QUERY_TILE, width = (size_t)kv_round(dim, 16);
  const size_t floats = 4 * (2 * tile * width + VALUE_KEYS * width + VALUE_KEYS);
  const size_t bytes = 3 * 4 * 256 + (4 + 256) * width + 5 * tile * width + kv_row_bytes(dim, 3);
  return 4 * tile * 256 + (floats > bytes ? floats : bytes);
}

}  // namespace edgedec
