// Pages taken, held and released by three threads, some of them in files of the folder that is named: nobody's content
// changes, and none is left. Then texts that come and go: what they leave is given back. Ends with 1 if that is not so.
#include "pages.h"

#include <algorithm>
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

constexpr size_t BYTES = 65536, SLAB = 2u << 20, MOST_EMPTY = 16u << 20;

std::vector<uint8_t*> text(edgedec::PagePool& pool, size_t bytes = BYTES) {
  std::vector<uint8_t*> pages(62);  // of two slabs
  for (uint8_t*& page : pages) page = pool.take(bytes);
  return pages;
}

void end(edgedec::PagePool& pool, std::vector<uint8_t*>& pages) {
  for (uint8_t* page : pages) pool.release(page);
  pages.clear();
}

void expect(bool right, const char* what, size_t found) {
  if (right) return;
  wrong++;
  std::printf("%s: %zu slabs\n", what, found / SLAB);
}

// 80 texts grow side by side, so that each slab has pages of many; 8 stay, and others come and go.
void fragments(edgedec::PagePool& pool, const char* folder) {
  pool.trim();
  std::mt19937 random(1);
  std::vector<std::vector<uint8_t*>> texts(80);
  for (int page = 0; page < 62; page++)
    for (auto& text : texts) text.push_back(pool.take(BYTES));
  expect(pool.reserved() <= 161 * SLAB, "80 texts", pool.reserved());
  std::shuffle(texts.begin(), texts.end(), random);
  for (; texts.size() > 8; texts.pop_back()) end(pool, texts.back());
  for (int i = 0; i < 200; i++) {
    auto& leaves = texts[random() % texts.size()];
    end(pool, leaves);
    leaves = text(pool);
  }
  // Slabs of 8 texts, and one that is not full.
  expect(pool.reserved() <= 17 * SLAB + MOST_EMPTY, "8 texts of 80", pool.reserved());
  std::vector<std::vector<uint8_t*>> other;
  for (int i = 0; i < 40; i++) other.push_back(text(pool, BYTES / 2));
  uint8_t* disk = pool.take_on_disk(64, folder);
  expect(pool.reserved() > 80 * SLAB / 2, "a file", pool.reserved());
  pool.release(disk);
  for (auto& text : other) end(pool, text);
  expect(pool.reserved() <= 17 * SLAB + MOST_EMPTY, "8 texts, and 40 of another size that ended", pool.reserved());
  for (auto& text : texts) end(pool, text);
  expect(pool.reserved() <= MOST_EMPTY && pool.reserved() > MOST_EMPTY - SLAB, "none", pool.reserved());
  auto again = text(pool);
  expect(pool.reserved() <= MOST_EMPTY, "one from what was kept", pool.reserved());
  end(pool, again);
  pool.trim();
  expect(!pool.reserved() && !pool.live(), "trimmed", pool.reserved());
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
  fragments(pool, arguments[1]);
  std::printf("wrong: %d\n", wrong.load());
  return wrong ? 1 : 0;
}
