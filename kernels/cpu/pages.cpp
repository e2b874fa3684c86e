#include "pages.h"

#include <algorithm>
#include <new>

#include "mapped_file.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace edgedec {

namespace {

// Of a huge page, and its alignment. Sanitizers detect writes past a page only if the page is a separate allocation.
constexpr size_t HUGE_PAGE = 2u << 20;
#if defined(__has_feature)
#if __has_feature(address_sanitizer)  // as clang says it
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t SLAB = 0;
#else
constexpr size_t SLAB = HUGE_PAGE;
#endif
// For pages on disk: few large files, because each is a mapping.
constexpr size_t DISK_SLAB = 8 * HUGE_PAGE;

uint8_t* slab_memory(size_t bytes) {
  const size_t align = bytes < HUGE_PAGE ? 64 : HUGE_PAGE;
  auto* memory = static_cast<uint8_t*>(::operator new(bytes, std::align_val_t(align)));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (align == HUGE_PAGE) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

void free_slab_memory(uint8_t* memory, size_t bytes) {
  ::operator delete(memory, std::align_val_t(bytes < HUGE_PAGE ? 64 : HUGE_PAGE));
}

size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

// Bytes of a slab's memory, and from page to page.
size_t PagePool::Slab::bytes() const { return std::max(on_disk ? 0 : SLAB, pages * stride()); }
size_t PagePool::Slab::stride() const { return rounded(page_bytes) + HEAD; }

PagePool::Slab::~Slab() {
  if (on_disk && memory) unmap_file(memory, bytes());
  else if (memory) free_slab_memory(memory, bytes());
}

PagePool::PagePool() = default;
PagePool::~PagePool() = default;

void PagePool::rest(uint8_t* page) { rest_file(page, head(page).slab->page_bytes); }

uint8_t* PagePool::take(size_t bytes, const char* folder) {
  std::lock_guard<std::mutex> lock(mutex_);
  Size& size = size_of(bytes, folder != nullptr);
  if (size.free.empty() && !add_slab(size, bytes, folder)) return nullptr;
  uint8_t* page = size.free.back();
  size.free.pop_back();
  free_bytes_ -= bytes;
  head(page).slab->used++;
  head(page).holders.store(1, std::memory_order_relaxed);
  live_.fetch_add(1, std::memory_order_relaxed);
  return page;
}

void PagePool::release(uint8_t* page) {
  if (head(page).holders.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  live_.fetch_sub(1, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(mutex_);
  Slab* slab = head(page).slab;
  Size& size = size_of(slab->page_bytes, slab->on_disk);
  size.free.push_back(page);  // there is room: `add_slab` reserved it
  free_bytes_ += slab->page_bytes;
  if (!--slab->used && (slab->on_disk || free_bytes_ > MOST_FREE)) drop_slab(size, slab);
}

void PagePool::trim() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = slabs_.size(); i-- > 0;)
    if (Slab* slab = slabs_[i].get(); !slab->used) drop_slab(size_of(slab->page_bytes, slab->on_disk), slab);
}

// folder: of its file, null: it is in memory. False: there is no such file.
bool PagePool::add_slab(Size& size, size_t bytes, const char* folder) {
  const size_t pages = std::max<size_t>(1, (folder ? DISK_SLAB : SLAB) / (rounded(bytes) + HEAD));
  size.free.reserve(size.made + pages);
  slabs_.reserve(slabs_.size() + 1);
  auto slab = std::unique_ptr<Slab>(new Slab{nullptr, bytes, pages, 0, folder != nullptr});
  slab->memory = folder ? map_file(folder, slab->bytes()) : slab_memory(slab->bytes());
  if (!slab->memory) return false;
  for (size_t i = pages; i-- > 0;) {  // the first page is taken first
    uint8_t* page = slab->memory + i * slab->stride() + HEAD;
    new (page - HEAD) Head{{0}, slab.get()};
    size.free.push_back(page);
  }
  size.made += pages;
  free_bytes_ += pages * bytes;
  slabs_.push_back(std::move(slab));
  return true;
}

void PagePool::drop_slab(Size& size, Slab* slab) {
  const auto in_slab = [slab](uint8_t* page) { return head(page).slab == slab; };
  size.free.erase(std::remove_if(size.free.begin(), size.free.end(), in_slab), size.free.end());
  size.made -= slab->pages;
  free_bytes_ -= slab->pages * slab->page_bytes;
  const auto own = [slab](const std::unique_ptr<Slab>& each) { return each.get() == slab; };
  slabs_.erase(std::find_if(slabs_.begin(), slabs_.end(), own));
}

}  // namespace edgedec
