// Products on AMX's tiles of int8, where matrices have one scale a row: 16 rows by 16 outputs by 64 inputs at once. The weights
// lie in the packed layout as tiles want them, four inputs of 16 outputs a line. Everything else is AVX-512's.
#pragma once
#include <immintrin.h>

#include "gemm.inl"

namespace ED_NS {

static_assert(NV == 1, "a vector is a group");
constexpr int AMX_ROWS = 32;  // of the largest tile of ours: two of AMX's
constexpr int AMX_LEAST = 8;  // with fewer rows AVX-512 is as fast

// Tiles 0 to 3 are sums, 4 and 5 activations of `upper` and `lower` rows, 6 and 7 weights.
__attribute__((target("amx-tile"))) static void amx_configure(int upper, int lower) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {};
  } tiles;
  for (int i = 0; i < 8; i++) tiles.rows[i] = 16;
  tiles.rows[0] = tiles.rows[1] = tiles.rows[4] = (uint8_t)upper;
  tiles.rows[2] = tiles.rows[3] = tiles.rows[5] = (uint8_t)(lower ? lower : 1);
  asm volatile("" ::"r"(&tiles) : "memory");  // GCC takes the instruction to read eight bytes only
  _tile_loadconfig(&tiles);
}

// As `row_tile` of two vectors, m rows in tiles that are configured.
__attribute__((target("amx-tile,amx-int8"), noinline)) static void amx_tile(const Strip<2>& at, int kpad,
                                                                            const QuantizedActivations& a, int m0, int m,
                                                                            float* sums) {
  alignas(64) int32_t tiles[4][16][16];
  alignas(64) uint8_t last[2][1024];
  const int upper = m < 16 ? m : 16, lower = m - upper;
  const int8_t *x0 = a.record(m0, 0), *x1 = a.record(m0 + upper, 0);
  const size_t stride = a.row_bytes();
  const uint8_t *w0 = at.w[0], *w1 = at.w[1];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < kpad; k += 64, x0 += 64, x1 += 64, w0 += 1024, w1 += 1024) {
    if (kpad - k < 64) {  // half a tile, beside activations that are zeros
      std::memset(last, 0, sizeof last);
      std::memcpy(last[0], w0, 512), std::memcpy(last[1], w1, 512);
      w0 = last[0], w1 = last[1];
    }
    if (m0 == 0)  // later tiles find them in a cache
      for (int j = 0; j < 16; j++) nprefetch(w0 + AHEAD + 64 * j), nprefetch(w1 + AHEAD + 64 * j);
    _tile_loadd(6, w0, 64);
    _tile_loadd(4, x0, stride);
    _tile_loadd(7, w1, 64);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    if (lower) {
      _tile_loadd(5, x1, stride);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  }
  _tile_stored(0, tiles[0], 64);
  _tile_stored(1, tiles[1], 64);
  if (lower) {
    _tile_stored(2, tiles[2], 64);
    _tile_stored(3, tiles[3], 64);
  }
  for (int r = 0; r < m; r++) {
    const QuantizedActivations::Step& about = a.about(m0 + r, 0);
    for (int v = 0; v < 2; v++) {
      const ni sum = niadd(_mm512_load_si512(tiles[r / 16 * 2 + v][r % 16]), niset(about.offset));
      nstore(sums + (2 * r + v) * W, scaled_sum(sum, at.s[v], about.scale));
    }
  }
}

__attribute__((target("amx-tile"))) static void amx_release() { _tile_release(); }

static void amx_product(const Product& p, int group0, int group1, uint8_t* scratch) {
  if (!p.w.row_scales() || p.rows < AMX_LEAST) return product(p, group0, group1, scratch);
  int configured = 0, vec = group0;
  for (; vec + 2 <= group1; vec += 2)
    strip_product<2, AMX_ROWS, false>(p, vec, scratch, AMX_ROWS, AMX_ROWS, [&](const Strip<2>& at, int, int m0, int m, float* to) {
      if (m != configured) amx_configure(m < 16 ? m : 16, m < 16 ? 0 : m - 16), configured = m;
      amx_tile(at, p.w.kpad(), p.a, m0, m, to);
    });
  if (configured) amx_release();
  if (vec < group1) product(p, vec, group1, scratch);
}

// Made when it is asked for, because this file's code runs on no other processor.
static const edgedec::Kernels* amx_table() {
  static const edgedec::Kernels made = [] {
    edgedec::Kernels table = TABLE;
    table.name = "amx", table.product = amx_product;
    return table;
  }();
  return &made;
}

}  // namespace ED_NS
