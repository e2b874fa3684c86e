// What zero points cost a product whose weights lie in the first caches, so that nothing waits for memory: products with
// them and without, in turns; medians.
//
//     python kernels/cpu/build.py --out zero_points --main tests/bench/zero_points.cpp
//     ./zero_points [rounds [outputs inputs [isa]]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "dispatch.h"

using namespace edgedec;

static const uint8_t* aligned(std::vector<uint8_t>& v) { return (const uint8_t*)(((uintptr_t)v.data() + 63) & ~(uintptr_t)63); }

static std::vector<uint8_t> random_bytes(size_t n) {
  std::vector<uint8_t> v(n + 4096);
  for (auto& b : v) b = (uint8_t)std::rand();
  return v;
}

// A packed matrix of random integers, all scales alike.
struct Weights {
  Matrix m{};
  std::vector<uint8_t> data, scales, zeros;

  Weights(int format, int block, int n, int k, bool with_zeros) {
    m.format = format, m.layout = INTERLEAVE16, m.n = n, m.k = k, m.block = block;
    data = random_bytes(m.groups() * m.group_bytes());
    m.data = aligned(data);
    scales.assign((size_t)m.groups() * LANES * m.blocks() * 2 + 4096, 0x20);
    m.scales = (const uint16_t*)aligned(scales);
    if (!with_zeros) return;
    m.zeros = m.data;  // so that sizes count them
    zeros = random_bytes(m.groups() * m.zero_bytes());
    m.zeros = aligned(zeros);
  }
};

// A product of so many rows, ready to be computed again and again.
struct Ready {
  std::vector<float> x, out;
  std::vector<uint8_t> records, scratch;
  Product p{};

  Ready(const Kernels& k, const Matrix& w, int rows) : x((size_t)rows * w.k), out((size_t)rows * w.n) {
    for (auto& v : x) v = (float)std::rand() / RAND_MAX - 0.5f;
    records.resize(rows * QuantizedActivations::row_bytes(w) + 64);
    scratch.resize(64 + w.scratch());
    p.w = w, p.a = {(int8_t*)aligned(records), x.data(), w.steps(), w.step()};
    p.out = out.data(), p.stride = w.n, p.rows = rows;
    for (int m = 0; m < rows; m++) k.quantize(&x[(size_t)m * w.k], w, p.a, m, 0, w.steps());
  }
};

static double seconds(const Kernels& k, Ready& ready, int times) {
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < times; i++) k.product(ready.p, 0, ready.p.w.groups(), ready.scratch.data());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

static double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200, n = argc > 3 ? std::atoi(argv[2]) : 256;
  const int inputs = argc > 3 ? std::atoi(argv[3]) : 512;
  const Kernels* k = choose(argc > 4 ? argv[4] : nullptr);
  if (!k) return std::printf("this processor has no %s\n", argv[4]), 1;
  std::printf("%s, %d x %d, %d rounds; microseconds without zero points\n", k->name, n, inputs, rounds);
  const struct {
    int format, block;
  } kinds[] = {{INT4, 32}, {INT4, 64}, {INT4, 128}, {INT8, 32}, {INT8, 64}, {INT8, 128}};
  for (const auto& kind : kinds) {
    std::printf("int%d, blocks of %3d:", kind.format == INT4 ? 4 : 8, kind.block);
    for (int rows : {1, 2, 4, 8, 64}) {
      const Weights plain(kind.format, kind.block, n, inputs, false), with(kind.format, kind.block, n, inputs, true);
      Ready without(*k, plain.m, rows), zeros(*k, with.m, rows);
      std::vector<double> ratios, times;
      const int each = std::max(1, (int)(2e7 / n / inputs / rows));
      for (int i = 0; i < rounds; i++) {
        double a = 0, b = 0;
        if (i % 2) b = seconds(*k, zeros, each), a = seconds(*k, without, each);
        else a = seconds(*k, without, each), b = seconds(*k, zeros, each);
        ratios.push_back(b / a - 1), times.push_back(a / each);
      }
      std::printf("  %d: %+.1f%% (%.1f)", rows, 100 * median(ratios), 1e6 * median(times));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}
