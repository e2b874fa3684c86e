#include "pages.h"

#include <new>

namespace edgedec {

PagePool::~PagePool() {
  for (auto& [bytes, pages] : free_)
    for (uint8_t* page : pages) delete[] head(page).memory;
}

uint8_t* PagePool::take(size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<uint8_t*>& pages = free_[bytes];
    if (!pages.empty()) {
      uint8_t* page = pages.back();
      pages.pop_back();
      free_bytes_ -= bytes;
      head(page).holders.store(1, std::memory_order_relaxed);
      live_.fetch_add(1, std::memory_order_relaxed);
      return page;
    }
  }
  uint8_t* memory = new uint8_t[bytes + HEAD + 64];
  uint8_t* page = memory + HEAD + (64 - (reinterpret_cast<uintptr_t>(memory) + HEAD) % 64) % 64;
  new (page - HEAD) Head{{1}, bytes, memory};
  live_.fetch_add(1, std::memory_order_relaxed);
  return page;
}

void PagePool::release(uint8_t* page) {
  if (head(page).holders.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  live_.fetch_sub(1, std::memory_order_relaxed);
  const size_t bytes = head(page).bytes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_bytes_ + bytes <= MOST_FREE) try {
        free_[bytes].push_back(page);
        free_bytes_ += bytes;
        return;
      } catch (const std::bad_alloc&) {
      }
  }
  delete[] head(page).memory;
}

}  // namespace edgedec
