// The pool of threads: every task is done once, whether its threads are awake or asleep, and how long they stay awake.
#include "../../kernels/cpu/pool.cpp"

#include <cstdio>

using namespace edgedec;
using std::chrono::microseconds;

static int wrong = 0;

static void check(bool fine, const char* what) {
  if (!fine) wrong++, std::printf("%s\n", what);
}

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
  std::printf("wrong: %d\n", wrong);
  return wrong != 0;
}
