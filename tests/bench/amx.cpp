// What AMX's tiles of int8 would give products with int4 weights: one core, both of them in turns, the same bytes; medians
// of the ratio. A tile's sums are of 32 inputs, because a block's scale follows; then they are stored and added up in float
// as the contract of kernels.h wants it, which takes as long as the tiles.
//
//     g++ -std=c++17 -O3 -march=sapphirerapids -ffp-contract=off -I kernels/cpu tests/bench/amx.cpp -o build/amx
//     build/amx [rounds [outputs inputs]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ED_NS ed_avx512
#define ED_NAME "avx512vnni"
#include "kernels.h"
#include "simd/avx512.h"

#include "gemm.inl"
#include "ops.inl"

using namespace edgedec;

constexpr int TILE = 16, GROUPS = 2, STEPS = 8, RECORD = 48;  // of a tile; whose weights and rows lie in the first cache

static void configure() {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 32, 32, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 8, 8};
  } tiles;
  _tile_loadconfig(&tiles);
}

// The signed weights of STEPS steps of a group.
static __attribute__((noinline)) void unpack(const uint8_t* w, int8_t* to) {
  const __m512i low = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
  for (int j = 0; j < STEPS * 4; j++) {
    const __m512i b = _mm512_loadu_si512(w + 64 * j);
    _mm_prefetch((const char*)w + 64 * (j + STEPS * 4), _MM_HINT_T0);
    _mm512_store_si512(to + 128 * j, _mm512_sub_epi8(_mm512_and_si512(b, low), eight));
    _mm512_store_si512(to + 128 * j + 64, _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(b, 4), low), eight));
  }
}

// Four sums are on their way, because a tile takes 100 cycles from its loads to its store.
#define SUM(C, A, B, T)                   \
  _tile_zero(C);                          \
  _tile_loadd(A, x + (T) * RECORD, row);  \
  _tile_loadd(B, w + (T) * 512, 64);      \
  _tile_dpbssd(C, A, B);                  \
  _tile_stored(C, c[C], 64)

// out[16, 16] += 16 rows times a group, STEPS steps of them.
static __attribute__((noinline)) void tile16(const int8_t* w, const uint16_t* s, const int8_t* x, size_t row, float* out) {
  alignas(64) int32_t c[4][16][16];
  __m512 acc[TILE];
  SUM(0, 4, 6, 0);
  SUM(1, 5, 7, 1);
  SUM(2, 4, 6, 2);
  for (int i = 0; i < TILE; i++) acc[i] = _mm512_load_ps(out + 16 * i);
  const auto add = [&](int t) __attribute__((always_inline)) {
    const __m512 ws = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(s + 16 * t)));
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++) {
      const __m512 scale = _mm512_mul_ps(ws, _mm512_set1_ps(*(const float*)(x + i * row + t * RECORD + 32)));
      acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(c[t % 4][i])), scale, acc[i]);
    }
  };
  for (int t = 0; t < STEPS; t += 4) {
    SUM(3, 5, 7, t + 3);
    add(t);
    if (t + 4 < STEPS) { SUM(0, 4, 6, t + 4); }
    add(t + 1);
    if (t + 4 < STEPS) { SUM(1, 5, 7, t + 5); }
    add(t + 2);
    if (t + 4 < STEPS) { SUM(2, 4, 6, t + 6); }
    add(t + 3);
  }
  for (int i = 0; i < TILE; i++) _mm512_store_ps(out + 16 * i, acc[i]);
}

// out[groups, rows, 16].
static void by_tiles(const Matrix& w, const QuantizedActivations& a, int rows, float* out) {
  alignas(64) static int8_t unpacked[GROUPS][STEPS * 512];
  configure();
  std::memset(out, 0, (size_t)w.groups() * rows * 64);
  for (int g = 0; g < w.groups(); g += GROUPS)
    for (int t = 0; t < a.steps; t += STEPS) {
      for (int i = 0; i < GROUPS; i++) unpack(w.data + (g + i) * w.group_bytes() + t * 256, unpacked[i]);
      for (int m = 0; m < rows; m += TILE)
        for (int i = 0; i < GROUPS; i++)
          tile16(unpacked[i], w.scales + ((size_t)(g + i) * a.steps + t) * 16, a.record(m, t), a.row_bytes(),
                 out + ((size_t)(g + i) * rows + m) * 16);
    }
  _tile_release();
}

template <class F>
static double seconds(F f) {
  const auto began = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

static double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

static void* aligned(size_t bytes) { return std::aligned_alloc(64, (bytes + 4096) / 64 * 64); }

int main(int argc, char** argv) {
  if (syscall(SYS_arch_prctl, 0x1023, 18)) return std::puts("no AMX here"), 1;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 100, n = argc > 3 ? std::atoi(argv[2]) : 512;
  Matrix w{};
  w.format = INT4, w.layout = INTERLEAVE16, w.n = n, w.k = argc > 3 ? std::atoi(argv[3]) : 2048, w.block = 32;
  if (n % (16 * GROUPS) || w.k % (32 * STEPS)) return std::puts("outputs by 32, inputs by 256"), 1;
  uint8_t* data = (uint8_t*)aligned(w.groups() * w.group_bytes());
  uint16_t* scales = (uint16_t*)aligned((size_t)w.n * w.blocks() * 2);
  for (size_t i = 0; i < w.groups() * w.group_bytes(); i++) data[i] = (uint8_t)std::rand();
  for (int i = 0; i < w.n * w.blocks(); i++) scales[i] = (uint16_t)(0x2000 + std::rand() % 4096);
  w.data = data, w.scales = scales;
  for (int rows : {16, 32, 64, 256}) {
    std::vector<float> x((size_t)rows * w.k), out((size_t)rows * n);
    for (auto& v : x) v = (float)std::rand() / RAND_MAX - 0.5f;
    QuantizedActivations a{(int8_t*)aligned(rows * QuantizedActivations::row_bytes(w)), x.data(), w.steps(), w.step()};
    for (int m = 0; m < rows; m++) ed_avx512::quantize(&x[(size_t)m * w.k], w, a, m, 0, w.steps());
    float* tiled = (float*)aligned((size_t)rows * n * 4);
    Product p{};
    p.w = w, p.a = a, p.out = out.data(), p.stride = n, p.rows = rows;
    std::vector<double> ratios, today;
    for (int i = 0; i < rounds; i++) {
      const auto tiles = [&] { by_tiles(w, a, rows, tiled); };
      const auto vectors = [&] { ed_avx512::product(p, 0, w.groups(), nullptr); };
      double with, without;
      if (i % 2) with = seconds(tiles), without = seconds(vectors);
      else without = seconds(vectors), with = seconds(tiles);
      ratios.push_back(without / with), today.push_back(without);
    }
    for (int m = 0; m < rows; m++)
      for (int j = 0; j < n; j++)
        if (std::memcmp(&out[(size_t)m * n + j], tiled + ((size_t)(j / 16) * rows + m) * 16 + j % 16, 4))
          return std::printf("row %d, output %d differ\n", m, j), 1;
    std::sort(ratios.begin(), ratios.end());
    std::printf("%3d rows: VNNI %.0f us, AMX %.2f times as fast (middle half %.2f to %.2f)\n", rows, 1e6 * median(today),
                median(ratios), ratios[rounds / 4], ratios[rounds * 3 / 4]);
  }
}
