// What this host can do at best, for benchmarks to stand beside.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "api.h"
#include "dispatch.h"
#include "pool.h"

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double ed_probe_read(uint64_t bytes, int threads) {
  const edgedec::Kernels* k = edgedec::choose();
  std::unique_ptr<uint8_t[]> memory(new (std::nothrow) uint8_t[bytes]);
  if (!memory) return 0;
  std::memset(memory.get(), 1, bytes);
  edgedec::Team team(threads);
  double best = 0;
  for (int i = 0; i < 5; i++) {
    double began = seconds();
    team.run([&](int thread) {
      uint64_t share = bytes / team.size() / 4096 * 4096;
      k->probe_read(memory.get() + share * thread, share);
    });
    best = std::max(best, (double)(bytes / team.size() / 4096 * 4096 * team.size()) / (seconds() - began) / 1e9);
  }
  return best;
}

double ed_probe_int8(const char* isa, int threads) {
  const edgedec::Kernels* k = edgedec::choose(isa);
  if (!k) return 0;
  edgedec::Team team(threads);
  double best = 0;
  const int64_t rounds = 2000000;
  for (int i = 0; i < 5; i++) {
    std::vector<int64_t> done(team.size() * 8);
    double began = seconds();
    team.run([&](int thread) { done[thread * 8] = k->probe_int8(rounds); });
    double all = 0;
    for (int t = 0; t < team.size(); t++) all += (double)done[t * 8];
    best = std::max(best, all / (seconds() - began) / 1e9);
  }
  return best;
}
