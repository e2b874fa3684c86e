// Pages taken, held and released by three threads, some of them in files of the folder that is named: nobody's content
// changes, and none is left. Ends with 1 if it does.
#include "pages.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace {

std::atomic<int> wrong{0};

struct Page {
  uint8_t* at;
  size_t bytes;
};

void work(edgedec::PagePool& pool, const char* folder, int mark) {
  const size_t sizes[] = {64, 100, 32768, 3000001};
  std::mt19937 random(mark);
  std::vector<Page> held;
  for (int i = 0; i < 20000; i++) {
    if (held.size() < 300 && random() % 2) {
      const size_t bytes = sizes[random() % (i % 50 ? 3 : 4)];
      const bool disk = random() % 4 == 0;
      uint8_t* page = disk ? pool.take_on_disk(bytes, folder) : pool.take(bytes);
      wrong += !page || edgedec::PagePool::on_disk(page) != disk;
      wrong += (uintptr_t)page % 64 != 0;
      std::memset(page, mark, bytes);
      held.push_back({page, bytes});
      if (disk) edgedec::PagePool::rest(page);
      if (random() % 4) continue;
      edgedec::PagePool::hold(page);
      held.push_back(held.back());
    } else if (!held.empty()) {
      const size_t i = random() % held.size();
      wrong += held[i].at[0] != mark || held[i].at[held[i].bytes - 1] != mark;
      pool.release(held[i].at);
      held[i] = held.back();
      held.pop_back();
    }
    if (i % 500 == 0) pool.trim();
  }
  for (const Page& page : held) pool.release(page.at);
}

}  // namespace

int main(int, char** arguments) {
  edgedec::PagePool pool;
  for (int round = 0; round < 2; round++) {
    const char* folder = arguments[1];
    std::thread a(work, std::ref(pool), folder, 1), b(work, std::ref(pool), folder, 2), c(work, std::ref(pool), folder, 3);
    a.join(), b.join(), c.join();
    wrong += pool.live() != 0;
    wrong += pool.take_on_disk(64, "/nowhere/at/all") != nullptr;
  }
  std::printf("wrong: %d\n", wrong.load());
  return wrong ? 1 : 0;
}
