// What the fuzzers of the engine share: random numbers, memory of exactly the size, random models, caches.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../kernels/cpu/api.h"

namespace {

const unsigned LEAST = 8;  // models of a run, on a slow machine too
int failures = 0;
unsigned seed = 0;

void check(bool ok, const std::string& what) {
  if (ok) return;
  if (failures++ < 20) std::printf("FAILED seed %u: %s\n", seed, what.c_str());
}

struct Random {
  std::mt19937 bits;
  explicit Random(unsigned s) : bits(s) {}
  int below(int n) { return (int)(bits() % (unsigned)n); }
  int from(int a, int b) { return a + below(b - a + 1); }
  bool chance(int percent) { return below(100) < percent; }
  float flat() { return (float)((int)(bits() >> 8) - (1 << 23)) / (float)(1 << 23); }
  template <class T>
  T one_of(std::initializer_list<T> all) { return all.begin()[below((int)all.size())]; }
};

// Memory of exactly the size that is needed, so that a step past its end is seen.
struct Memory {
  std::vector<std::unique_ptr<uint8_t[]>> all;
  template <class T>
  T* get(size_t n) {
    all.emplace_back(new uint8_t[n * sizeof(T) + 1]());
    return (T*)all.back().get();
  }
  float* floats(Random& r, size_t n, float middle, float spread) {
    float* x = get<float>(n);
    for (size_t i = 0; i < n; i++) x[i] = middle + spread * r.flat();
    return x;
  }
};

struct Model {
  Memory memory;
  ed_model m{};
  std::vector<std::unique_ptr<ed_attention>> attentions;
  std::vector<std::unique_ptr<ed_mlp>> mlps;
  std::vector<ed_block> blocks;
  std::vector<ed_rope> ropes;
  int context = 0;

  int with_zeros = 0;  // matrices with zero points

  ed_tensor tensor(Random& r, int n, int k, bool zeros = true) {
    ed_tensor t{};
    t.format = r.from(1, 4), t.n = n, t.k = k;
    float size = 1.5f / std::sqrt((float)k);
    if (t.format == 1) {
      t.data = memory.floats(r, (size_t)n * k, 0, size);
    } else if (t.format == 2) {
      uint16_t* x = memory.get<uint16_t>((size_t)n * k);
      for (size_t i = 0; i < (size_t)n * k; i++) x[i] = half(r, size);
      t.data = x;
    } else {
      t.layout = r.below(2), t.block = 16 << r.below(5);
      size_t rows = t.layout ? (n + 15) / 16 * 16 : n, blocks = (k + t.block - 1) / t.block;
      size_t bytes = rows * blocks * t.block / (t.format == 4 ? 2 : 1);
      uint8_t* data = memory.get<uint8_t>(bytes);
      uint16_t* scales = memory.get<uint16_t>(rows * blocks);
      for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)r.below(256);
      for (size_t i = 0; i < rows * blocks; i++) scales[i] = half(r, size / (t.format == 4 ? 8 : 128));
      t.data = data, t.scales = scales;
      if (zeros && t.block > 16 && r.chance(50)) t.zeros = zero_points(r, t, rows, blocks);
    }
    return t;
  }

  // What stands for zero in each block: two in a byte in int4, there in rows of whole bytes.
  const uint8_t* zero_points(Random& r, const ed_tensor& t, size_t rows, size_t blocks) {
    const size_t n = t.format == 3 ? rows * blocks : t.layout ? rows * blocks / 2 : rows * ((blocks + 1) / 2);
    uint8_t* zeros = memory.get<uint8_t>(n);
    for (size_t i = 0; i < n; i++) zeros[i] = (uint8_t)r.below(256);
    with_zeros++;
    return zeros;
  }

  // A small number as a half, some of them subnormal, some zero.
  static uint16_t half(Random& r, float size) {
    if (r.chance(3)) return (uint16_t)r.below(64);
    int exponent = 15 + (int)std::floor(std::log2(size));
    if (exponent < 1) exponent = 0;
    return (uint16_t)(r.below(2) << 15 | (exponent < 30 ? exponent : 30) << 10 | r.below(1024));
  }

  explicit Model(Random& r) {
    m.hidden = r.from(1, 70), m.vocab = r.chance(20) ? r.from(500, 1300) : r.from(1, 70);
    m.n_blocks = r.from(1, 6), m.n_ropes = r.from(0, 2);
    m.norm_eps = 1e-5f, m.embed_scale = r.chance(50) ? 1.0f : 2.0f, m.final_softcap = r.chance(70) ? 0.0f : 5.0f;
    context = r.chance(40) ? r.from(270, 620) : r.from(20, 120);
    for (int i = 0; i < m.n_ropes; i++) add_rope(r, r.from(1, 8));
    const bool alike = r.chance(50);  // all attention blocks have one shape, as usual
    ed_attention shape = attention_shape(r);
    for (int i = 0; i < m.n_blocks; i++) {
      ed_block b{};
      b.kind = i ? r.from(1, 2) : 1;
      const bool before = r.chance(80);
      b.norm = norm(r, before, m.hidden), b.post_norm = norm(r, !before || r.chance(30), m.hidden);
      if (b.kind == 1) b.attention = attention(r, alike ? shape : attention_shape(r));
      else b.mlp = mlp(r);
      blocks.push_back(b);
    }
    m.embed = tensor(r, m.vocab, m.hidden, false);
    m.head = r.chance(50) ? m.embed : tensor(r, m.vocab, m.hidden);
    m.final_norm = norm(r, true, m.hidden);
    m.blocks = blocks.data(), m.ropes = ropes.data();
  }

  void add_rope(Random& r, int pairs) {
    float *cos = memory.get<float>((size_t)context * pairs), *sin = memory.get<float>((size_t)context * pairs);
    for (int j = 0; j < context * pairs; j++) {
      float angle = (float)(j / pairs) / (1 + j % pairs * 3);
      cos[j] = std::cos(angle), sin[j] = std::sin(angle);
    }
    (void)r;
    ropes.push_back({cos, sin, pairs, context});
  }
  ed_norm norm(Random& r, bool there, int n) {
    if (!there) return {0, 0, nullptr, nullptr};
    const bool layer = r.chance(30);
    return {layer ? 2 : 1, 0, memory.floats(r, n, 1, 0.3f), layer && r.chance(60) ? memory.floats(r, n, 0, 0.3f) : nullptr};
  }
  ed_attention attention_shape(Random& r) {
    ed_attention a{};
    a.kv_heads = r.from(1, 3), a.heads = a.kv_heads * r.from(1, 4), a.head_dim = r.from(1, r.chance(20) ? 70 : 34);
    a.qk_norm = r.below(3), a.scale = 1 / std::sqrt((float)a.head_dim), a.softcap = r.chance(70) ? 0.0f : 3.0f;
    return a;
  }
  const ed_attention* attention(Random& r, ed_attention a) {
    const int q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
    a.sinks = r.chance(80) ? 0 : r.from(1, 5), a.window = r.chance(60) ? 0 : r.from(1, r.chance(50) ? 8 : 300);
    a.rope = m.n_ropes ? r.from(-1, m.n_ropes - 1) : -1;
    if (a.rope >= 0 && 2 * ropes[a.rope].pairs > a.head_dim) a.rope = -1;
    a.qkv = tensor(r, q + 2 * kv, m.hidden), a.o = tensor(r, m.hidden, q);
    if (r.chance(40)) a.qkv_bias = memory.floats(r, q + 2 * kv, 0, 0.3f), a.o_bias = memory.floats(r, m.hidden, 0, 0.3f);
    if (a.qk_norm) {
      a.q_norm = memory.floats(r, a.qk_norm == 1 ? a.head_dim : q, 1, 0.3f);
      a.k_norm = memory.floats(r, a.qk_norm == 1 ? a.head_dim : kv, 1, 0.3f);
    }
    attentions.emplace_back(new ed_attention(a));
    return attentions.back().get();
  }
  const ed_mlp* mlp(Random& r) {
    ed_mlp p{};
    p.inner = r.chance(50) ? 16 * r.from(1, 5) : r.from(1, 70), p.gated = r.chance(70), p.activation = r.below(4);
    const int n = p.gated ? 2 * p.inner : p.inner;
    p.up = tensor(r, n, m.hidden), p.down = tensor(r, m.hidden, p.inner);
    if (r.chance(40)) p.up_bias = memory.floats(r, n, 0, 0.3f), p.down_bias = memory.floats(r, m.hidden, 0, 0.3f);
    mlps.emplace_back(new ed_mlp(p));
    return mlps.back().get();
  }
};

struct Closes {
  void operator()(ed_cache* cache) const { ed_cache_free(cache); }
  void operator()(ed_cache_pool* pool) const { ed_cache_pool_free(pool); }
};
using Cache = std::unique_ptr<ed_cache, Closes>;
using Pool = std::unique_ptr<ed_cache_pool, Closes>;

std::vector<uint8_t> saved(const ed_cache* cache) {
  std::vector<uint8_t> bytes(ed_cache_save_bytes(cache));
  ed_cache_save(cache, bytes.data());
  return bytes;
}

using Floats = std::vector<float>;

// The instruction sets that run here.
std::vector<std::string> usable_isas() {
  std::vector<std::string> isas;
  for (const char* p = ed_isas(); *p;) {  // "avx2+,scalar+": those with a plus run here
    const char* end = p + std::strcspn(p, ",");
    if (end[-1] == '+') isas.emplace_back(p, end - 1);
    p = *end ? end + 1 : end;
  }
  return isas;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace
