// The pool of threads: every task is done once, whether its threads are awake or asleep, and how long they stay awake.
#include "../../kernels/cpu/pool.cpp"

#include <cstdio>

using namespace edgedec;
using std::chrono::microseconds;

static int wrong = 0;

static void check(bool fine, const char* what) {
  if (!fine) wrong++, std::printf("%s\n", what);
}

#ifdef __linux__
static cpu_set_t allowed() {
  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  return all;
}

// Threads wake on other cores than the caller's, where there are others, and may run wherever they could.
static void check_cores() {
  const cpu_set_t all = allowed();
  if (CPU_COUNT(&all) < 2) return;
  ThreadPool pool(2);
  using Clock = std::chrono::steady_clock;
  int beside = 0, helped = 0;
  for (int round = 0; round < 60; round++) {
    std::this_thread::sleep_for(microseconds(5000));
    std::atomic<int> caller{-1}, helper{-1};
    pool.parallel_for(20, 1, [&](int, int, int thread) {
      (thread ? helper : caller) = sched_getcpu();
      const cpu_set_t now = allowed();
      check(CPU_EQUAL(&all, &now), "another set of cores");
      for (const auto until = Clock::now() + microseconds(100); Clock::now() < until;) relax();
    });
    helped += helper >= 0;
    beside += helper >= 0 && helper == caller;
  }
  std::fprintf(stderr, "helped %d, on the caller's core %d\n", helped, beside);
  check(helped > 0 && beside * 10 <= helped, "helpers on the caller's core");
}
#endif

int main() {
  const auto us = [](auto time) { return std::chrono::duration_cast<microseconds>(time).count(); };
  check(us(next_idle(microseconds(200), microseconds(100))) == 600, "called soon: twice what was waited");
  check(us(next_idle(microseconds(600), microseconds(300))) == 1200, "never longer than the longest");
  check(us(next_idle(microseconds(200), microseconds(5000))) == 200, "called late: as before");
  check(us(next_idle(microseconds(1200), microseconds(5000))) == 600, "called late: half as long");
  check(us(next_idle(microseconds(300), microseconds(5000))) == 200, "never shorter than the shortest");
  ThreadPool pool(3);
  std::vector<int> done(1000);
  for (int pause : {0, 50, 300, 900, 3000, 300, 50}) {
    for (int round = 0; round < 20; round++) {
      std::this_thread::sleep_for(microseconds(pause));
      pool.parallel_for((int)done.size(), 7, [&](int begin, int end, int) {
        for (int i = begin; i < end; i++) done[(size_t)i]++;
      });
    }
  }
  for (int n : done) check(n == 140, "a task was not done once a round");
#ifdef __linux__
  check_cores();
#endif
  std::printf("wrong: %d\n", wrong);
  return wrong != 0;
}
