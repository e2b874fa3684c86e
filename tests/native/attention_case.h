// A random attention problem: keys and values in a cache, queries, a chain or a tree, and its kernels run.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tables.h"

using edgedec::Attention;
using edgedec::Kernels;

// Floats on a cache line's boundary.
struct Aligned {
  std::vector<uint8_t> bytes;
  uint8_t* at;
  explicit Aligned(size_t n) : bytes(n + 64), at(bytes.data() + (64 - (uintptr_t)bytes.data() % 64) % 64) {}
};

struct Shape {
  int dim, kv_heads, group, length, rows, first, format, window, sinks;
  float softcap;
  bool tree, groups = false, named = false;  // named: positions are not ranks
  bool text = false;                         // rows that all see each other

  // Whether such rows are computed as lanes.
  bool lanes() const { return text && (format == edgedec::F32 || int8()) && dim % 16 == 0 && !window && softcap == 0; }
  bool int8() const { return format == edgedec::INT8; }
};

// Keys and values [kv_heads, slots, row bytes] in pages; what no slot lies in is not a number.
struct Pages {
  std::vector<std::vector<uint8_t>> memory;
  std::vector<uint8_t*> table;

  Pages(const std::vector<uint8_t>& keys, const std::vector<uint8_t>& values, int kv_heads, int slots, size_t bytes) {
    constexpr int N = edgedec::PAGE_SLOTS;
    for (int from = 0; from < slots; from += N) {
      memory.emplace_back(2 * kv_heads * N * bytes, 0xff);
      for (int h = 0; h < kv_heads; h++)
        for (int i = from; i < slots && i < from + N; i++) {
          std::memcpy(&memory.back()[(h * N + i - from) * bytes], &keys[((size_t)h * slots + i) * bytes], bytes);
          std::memcpy(&memory.back()[((kv_heads + h) * N + i - from) * bytes], &values[((size_t)h * slots + i) * bytes],
                      bytes);
        }
    }
    for (auto& page : memory) table.push_back(page.data());
  }
};

struct Case {
  Shape s;
  int slots;
  std::vector<float> q;
  std::vector<uint8_t> keys, values;  // [kv_heads, slots, row_bytes], exactly
  std::vector<int32_t> begin, end, path;
  std::vector<int64_t> slot_positions, row_positions;
  Attention a{};

  size_t row_bytes() const { return edgedec::kv_row_bytes(s.dim, s.format); }
  int heads() const { return s.kv_heads * s.group; }

  Case(const Shape& shape, unsigned seed, const Kernels& k) : s(shape) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    slots = s.length + s.first + s.rows;
    q.resize((size_t)s.rows * heads() * s.dim);
    for (float& x : q) x = 2 * normal(rng);
    keys.resize(s.kv_heads * slots * row_bytes());
    values.resize(keys.size());
    std::vector<float> row(s.dim);
    for (auto* to : {&keys, &values})
      for (int i = 0; i < s.kv_heads * slots; i++) {
        for (float& x : row) x = normal(rng) + (i % 7 == 0 ? 3.0f : 0.0f);
        k.store_kv(row.data(), s.dim, s.format, to->data() + i * row_bytes());
      }
    if (s.tree) grow(rng);
    if (s.named) name(rng);
    a.heads = heads(), a.kv_heads = s.kv_heads, a.dim = s.dim, a.window = s.window, a.format = s.format;
    a.rows = s.rows, a.length = s.length, a.first = s.first, a.sinks = s.sinks;
    a.scale = 1.0f / std::sqrt((float)s.dim), a.softcap = s.softcap;
    a.row_bytes = (int64_t)row_bytes(), a.head_stride = a.row_bytes * edgedec::PAGE_SLOTS;
    a.values = a.head_stride * s.kv_heads;
    a.q = q.data(), a.q_stride = heads() * s.dim, a.out_stride = heads() * s.dim;
    if (s.text) a.text = s.rows, a.lanes = s.lanes();
    if (s.tree) a.begin = begin.data(), a.end = end.data(), a.path = path.data();
    if (s.named) {
      a.slot_positions = slot_positions.data(), a.row_positions = row_positions.data();
    }
  }

  // Some slots before these were dropped, and rows may have any positions.
  void name(std::mt19937& rng) {
    for (int i = 0, at = 0; i < slots; i++)
      slot_positions.push_back((at += 1 + (int)(rng() % 3)) + (i < s.length ? 0 : (int)(rng() % 5)));
    row_positions.assign(slot_positions.begin() + s.length + s.first, slot_positions.end());
  }

  // Row i's parent is any row before it, or none. With groups, some rows see what others do.
  void grow(std::mt19937& rng) {
    std::vector<std::vector<int32_t>> paths;
    for (int i = 0; i < s.first + s.rows; i++) {
      const int parent = (int)(rng() % (unsigned)(i + 1)) - 1;
      paths.push_back(parent < 0 ? std::vector<int32_t>() : paths[parent]);
      paths.back().push_back(i);
    }
    const int all = (int)paths.size(), group = s.groups ? 1 + (int)(rng() % (unsigned)all) : 1;
    for (int i = s.first; i < all; i++) {
      const int first = i / group * group, last = first + group < all ? first + group : all;
      std::vector<char> sees(all);
      for (int j = s.groups ? first : i; j < (s.groups ? last : i + 1); j++)
        for (int row : paths[j]) sees[row] = 1;
      begin.push_back((int32_t)path.size());
      for (int j = 0; j < all; j++)
        if (sees[j]) path.push_back(j);
      end.push_back((int32_t)path.size());
    }
  }
};

struct Result {
  std::vector<float> out, sums;
};

// Rows in tiles of `tile`, as an engine would run them; attention sums only if wanted.
inline Result run(const Kernels& k, Attention a, int tile, bool with_sums) {
  const int slots = a.length + a.first + a.rows, width = a.dim + 2;
  Result r{std::vector<float>((size_t)a.rows * a.heads * a.dim), std::vector<float>(with_sums ? slots : 0)};
  a.out = r.out.data();
  Aligned scratch(edgedec::attention_scratch(a.dim, tile * a.group()));
  std::vector<float> part((size_t)tile * a.group() * width), total(part.size());
  for (int h = 0; h < a.kv_heads; h++)
    for (int row0 = 0; row0 < a.rows; row0 += tile) {
      const int row1 = row0 + tile < a.rows ? row0 + tile : a.rows, n = (row1 - row0) * a.group();
      for (int i = 0; i < n; i++) total[(size_t)i * width] = -std::numeric_limits<float>::infinity();
      int last = 0;
      for (int row = row0; row < row1; row++) last = a.rank(row) > last ? a.rank(row) : last;
      for (int chunk = 0; chunk * edgedec::CHUNK <= last; chunk++) {
        k.attend(a, h, row0, row1, chunk, part.data(), scratch.at);
        k.merge(total.data(), part.data(), n, a.dim);
      }
      k.finish(a, h, row0, row1, total.data());
      if (with_sums) k.attention_sums(a, h, row0, row1, total.data(), r.sums.data(), scratch.at);
    }
  return r;
}
