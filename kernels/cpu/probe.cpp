// Peak rates of this host, as a reference for benchmarks.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>

#include "api.h"
#include "dispatch.h"
#include "pool.h"

namespace {

constexpr uint64_t PIECE = 1 << 20;
constexpr int64_t ROUNDS = 1 << 15;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double ed_probe_read(uint64_t bytes, int threads) {
  const edgedec::Kernels* k = edgedec::choose();
  std::unique_ptr<uint8_t[]> memory(new (std::nothrow) uint8_t[bytes]);
  if (!memory) return 0;
  std::memset(memory.get(), 1, bytes);
  edgedec::ThreadPool pool(threads);
  const int pieces = (int)(bytes / PIECE);
  double best = 0;
  for (int i = 0; i < 5; i++) {
    double began = seconds();
    pool.parallel_for(pieces, 1, [&](int begin, int end, int) { k->probe_read(memory.get() + begin * PIECE, (end - begin) * PIECE); });
    best = std::max(best, pieces * (double)PIECE / (seconds() - began) / 1e9);
  }
  return best;
}

double ed_probe_int8(const char* isa, int threads) {
  const edgedec::Kernels* k = edgedec::choose(isa);
  if (!k) return 0;
  edgedec::ThreadPool pool(threads);
  double best = 0;
  const int pieces = 64 * pool.size();
  for (int i = 0; i < 5; i++) {
    std::atomic<int64_t> done{0};
    double began = seconds();
    pool.parallel_for(pieces, 1, [&](int, int, int) { done += k->probe_int8(ROUNDS); });
    best = std::max(best, (double)done / (seconds() - began) / 1e9);
  }
  return best;
}
