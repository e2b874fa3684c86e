#include "pool.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace edgedec {

namespace {

// Spin time of a thread without work, while the program picks a token before the next call. A thread that
// went to sleep shortly before the next call spins longer next time, because waking it takes as long as a
// call of a small model; one that slept long spins half as long. LAST: spin time of the caller at the end of
// a phase, whose last tasks are almost done unless a thread lost its core.
using std::chrono::microseconds;
constexpr std::chrono::nanoseconds IDLE = microseconds(200), LONGEST_IDLE = microseconds(1200), LAST = microseconds(50);
// A task that is this late was held by a thread that lost its core, which costs a time slice, some
// milliseconds.
constexpr auto LATE = microseconds(300);
constexpr std::chrono::milliseconds SHORTEST_ALONE(4), LONGEST_ALONE(400);

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
  asm volatile("yield");
#else
  std::this_thread::yield();
#endif
}

// Spins until `ready` or for `time`; whether it is ready.
template <class Ready>
bool spin(std::chrono::nanoseconds time, Ready ready) {
  using Clock = std::chrono::steady_clock;
  for (auto until = Clock::now() + time;;) {
    for (int i = 0; i < 64; i++) {
      if (ready()) return true;
      relax();
    }
    if (Clock::now() >= until) return ready();
  }
}

// How long to stay awake the next time, after `idle` was not enough and the thread slept for `slept`.
std::chrono::nanoseconds next_idle(std::chrono::nanoseconds idle, std::chrono::nanoseconds slept) {
  if (idle + slept < LONGEST_IDLE) return std::min(LONGEST_IDLE, 2 * (idle + slept));
  return std::max(IDLE, idle / 2);
}

}  // namespace

// Linux often wakes a thread on the core of whoever wakes it, where it waits for the caller or takes its time, while other
// cores are idle. So a sleeping thread may not run on the caller's core until it is awake.
#ifdef __linux__
void ThreadPool::Sleeper::sleep() { id = (pid_t)syscall(SYS_gettid); }

void ThreadPool::Sleeper::keep_off_this_core() {
  const int core = id ? sched_getcpu() : -1;
  if (kept_off || core < 0 || sched_getaffinity(id, sizeof cores, &cores)) return;
  cpu_set_t others = cores;
  CPU_CLR(core, &others);
  kept_off = CPU_COUNT(&others) && !sched_setaffinity(id, sizeof others, &others);
}

void ThreadPool::Sleeper::wake() {
  if (kept_off) sched_setaffinity(0, sizeof cores, &cores);
  id = 0, kept_off = false;
}
#else
void ThreadPool::Sleeper::sleep() {}
void ThreadPool::Sleeper::keep_off_this_core() {}
void ThreadPool::Sleeper::wake() {}
#endif

ThreadPool::ThreadPool(int threads) : size_(threads < 1 ? 1 : threads), sleepers_(size_) {
  threads_.reserve(size_ - 1);
  try {
    for (int i = 1; i < size_; i++) threads_.emplace_back([this, i] { serve(i); });
  } catch (const std::system_error&) {  // the system makes no more: these are enough
    size_ = 1 + (int)threads_.size();
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& t : threads_) t.join();
}

void ThreadPool::serve(int thread) {
  auto called = [this] { return (uint32_t)ticket_.load() != 0 || stop_.load(); };
  std::chrono::nanoseconds idle = IDLE;
  while (!stop_) {
    if (!spin(idle, called)) {
      const auto asleep = Clock::now();
      {
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1);
        sleepers_[thread].sleep();
        wake_.wait(lock, called);
        sleepers_[thread].wake();
        sleeping_.fetch_sub(1);
      }
      idle = next_idle(idle, Clock::now() - asleep);
    }
    while (help(thread)) {
    }
  }
}

// Takes one task and does it; false if there is none.
bool ThreadPool::help(int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  do {
    if ((uint32_t)ticket == 0) return false;
  } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel));
  const Phase& p = phase_;
  int begin = (p.tasks - (int)(uint32_t)ticket) * p.grain, end = begin + p.grain;
  p.call(p.work, begin, end < p.n ? end : p.n, thread);
  int tasks = p.tasks;  // the phase may end, and the next begin, as soon as this task counts as done
  if (done_.fetch_add(1) + 1 == tasks && caller_sleeps_.load()) {
    std::lock_guard<std::mutex> lock(mutex_);
    finished_.notify_one();
  }
  return true;
}

void ThreadPool::parallel_for(const Phase& phase) {
  phase_ = phase;
  done_.store(0);
  ticket_.store(((ticket_.load() >> 32) + 1) << 32 | (uint32_t)phase.tasks);
  if (sleeping_.load()) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Sleeper& sleeper : sleepers_) sleeper.keep_off_this_core();
    wake_.notify_all();
  }
  auto began = Clock::now();
  int mine = 0;
  while (help(0)) mine++;
  auto done = [&] { return done_.load() == phase.tasks; };
  if (spin(LAST, done)) return;
  auto waiting = Clock::now();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    caller_sleeps_ = true;
    finished_.wait(lock, done);
    caller_sleeps_ = false;
  }
  auto now = Clock::now();
  if (mine && now - waiting > LATE + 3 * (waiting - began) / mine) lost_a_core(now);
}

// Backoff: each loss in a row doubles the time alone; after a long time without a loss it starts over.
void ThreadPool::lost_a_core(Clock::time_point now) {
  bool again = now - alone_until_ < 4 * alone_for_;
  alone_for_ = again ? std::min<Clock::duration>(2 * alone_for_, LONGEST_ALONE) : SHORTEST_ALONE;
  alone_until_ = now + alone_for_;
}

}  // namespace edgedec
