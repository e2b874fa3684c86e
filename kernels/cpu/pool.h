// A team of threads that work through one job together, phase by phase.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace edgedec {

// Opens again and again; whoever waits spins briefly, then sleeps.
class Gate {
 public:
  uint32_t seen() const { return opened_.load(std::memory_order_acquire); }
  void open();
  void wait(uint32_t seen, int spin_us);

 private:
  std::atomic<uint32_t> opened_{0};
  std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

class Team {
 public:
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  int size() const { return size_; }

  // job(thread) on every thread; the caller is thread 0. Not for two callers at once.
  void run(const std::function<void(int)>& job);

  // Within a job, called by all threads alike: work(begin, end) over 0..n in pieces of `grain`, each taken by
  // whoever is free, so that a thread on a busy core takes fewer. All is done when it returns.
  template <class Work>
  void share(int n, int grain, Work&& work) {
    if (size_ == 1) {
      if (n > 0) work(0, n);
      return;
    }
    std::atomic<int>& next = next_[phase_ & 1].value;
    for (int begin; (begin = next.fetch_add(grain, std::memory_order_relaxed)) < n;)
      work(begin, begin + grain < n ? begin + grain : n);
    barrier();
  }
  void barrier();

 private:
  void serve(int thread);

  struct alignas(64) Counter {
    std::atomic<int> value{0};
  };
  const int size_;
  Gate start_, meet_;
  alignas(64) std::atomic<int> arrived_{0};
  Counter next_[2];
  std::atomic<uint32_t> phase_{0};
  std::atomic<bool> stop_{false};
  const std::function<void(int)>* job_ = nullptr;
  std::vector<std::thread> threads_;
};

}  // namespace edgedec
