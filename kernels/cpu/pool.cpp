#include "pool.h"

#include <chrono>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace edgedec {

namespace {

// How long a thread stays awake: between two phases the others are about to arrive; between two jobs the
// program chooses a token and comes back.
constexpr int PHASE_US = 50, JOB_US = 200;

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
  asm volatile("yield");
#else
  std::this_thread::yield();
#endif
}

}  // namespace

void Gate::open() {
  opened_.fetch_add(1);
  if (sleeping_.load() == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  wake_.notify_all();
}

void Gate::wait(uint32_t seen, int spin_us) {
  auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us);
  do {
    for (int i = 0; i < 64; i++) {
      if (opened_.load(std::memory_order_acquire) != seen) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() < until);
  std::unique_lock<std::mutex> lock(mutex_);
  sleeping_.fetch_add(1);
  wake_.wait(lock, [&] { return opened_.load() != seen; });
  sleeping_.fetch_sub(1);
}

Team::Team(int threads) : size_(threads < 1 ? 1 : threads) {
  try {
    for (int i = 1; i < size_; i++) threads_.emplace_back([this, i] { serve(i); });
  } catch (...) {
    stop_ = true;
    start_.open();
    for (auto& t : threads_) t.join();
    throw;
  }
}

Team::~Team() {
  stop_ = true;
  start_.open();
  for (auto& t : threads_) t.join();
}

void Team::serve(int thread) {
  // Every thread counts the jobs itself: one that comes late must not miss any.
  for (uint32_t seen = 0;; seen++) {
    start_.wait(seen, JOB_US);
    if (stop_) return;
    (*job_)(thread);
    barrier();
  }
}

void Team::run(const std::function<void(int)>& job) {
  if (size_ == 1) return job(0);
  job_ = &job;
  start_.open();
  job(0);
  barrier();
}

void Team::barrier() {
  uint32_t seen = meet_.seen();
  if (arrived_.fetch_add(1) + 1 < size_) return meet_.wait(seen, PHASE_US);
  arrived_ = 0;
  // The counter of the phase that ends is free for the phase after the next.
  uint32_t phase = phase_.load();
  next_[phase & 1].value = 0;
  phase_ = phase + 1;
  meet_.open();
}

}  // namespace edgedec
