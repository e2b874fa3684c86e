// A thread pool for one caller. Work is cut into tasks that free threads take; the caller continues when all
// tasks are done, not when all threads have reported. A thread that loses its core to another process
// therefore delays only the task that it holds. If that happens repeatedly, the caller works alone for a
// while.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

namespace edgedec {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  int size() const { return size_; }

  // work(begin, end, thread) over 0..n in pieces of `grain`; all is done when it returns. The caller is
  // thread 0. Not for two callers at once.
  template <class Work>
  void parallel_for(int n, int grain, Work&& work) {
    if (n <= 0) return;
    if (size_ == 1 || n <= grain || alone()) return work(0, n, 0);
    using W = std::remove_reference_t<Work>;
    auto call = [](void* w, int begin, int end, int thread) { (*static_cast<W*>(w))(begin, end, thread); };
    parallel_for(Phase{call, &work, n, grain, (n + grain - 1) / grain});
  }

 private:
  struct Phase {
    void (*call)(void* work, int begin, int end, int thread);
    void* work;
    int n, grain, tasks;
  };

  using Clock = std::chrono::steady_clock;

  // A thread that sleeps; what is done to it, and to itself when it wakes, is done under `mutex_`.
  struct Sleeper {
#ifdef __linux__
    pid_t id = 0;  // 0: awake
    bool kept_off = false;
    cpu_set_t cores;  // that it may run on, while it is kept off one
#endif
    void sleep();
    void keep_off_this_core();
    void wake();
  };

  void parallel_for(const Phase& phase);
  bool alone() const { return Clock::now() < alone_until_; }
  void lost_a_core(Clock::time_point now);
  void serve(int thread);
  bool help(int thread);

  int size_;  // with the caller; fewer than asked for where the system makes no more
  // Which phase it is (upper half) and how many of its tasks are left to take (lower half). Taking one is
  // one compare-and-exchange of both: on success the task belongs to the phase in `phase_`, because that
  // phase cannot end before the task is done.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int> done_{0};
  alignas(64) Phase phase_{};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> caller_sleeps_{false}, stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  // Used by the caller only: until when, and for how long, it works alone because a helper lost its core.
  Clock::time_point alone_until_{};
  Clock::duration alone_for_{};
  std::vector<Sleeper> sleepers_;
  std::vector<std::thread> threads_;
};

}  // namespace edgedec
