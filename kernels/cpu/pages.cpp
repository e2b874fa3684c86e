#include "pages.h"

#include <algorithm>
#include <new>

#include "mapped_file.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif
#if defined(_MSC_VER)
#include <intrin.h>
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

#if defined(__linux__)
// Whether a slab is a mapping of its own. In an allocator's heap holes would stay that no aligned slab fits into.
bool mapped(size_t bytes) { return SLAB && bytes >= HUGE_PAGE; }
#endif

uint8_t* slab_memory(size_t bytes) {
#if defined(__linux__)
  if (mapped(bytes)) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page + HUGE_PAGE;
    void* found = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) throw std::bad_alloc();
    auto* begin = static_cast<uint8_t*>(found);
    const size_t before = (HUGE_PAGE - reinterpret_cast<uintptr_t>(begin) % HUGE_PAGE) % HUGE_PAGE;
    const size_t after = HUGE_PAGE - before;
    if (before) munmap(begin, before);
    if (after) munmap(begin + whole - after, after);
#if defined(MADV_HUGEPAGE)
    madvise(begin + before, bytes, MADV_HUGEPAGE);
#endif
    return begin + before;
  }
#endif
  return static_cast<uint8_t*>(::operator new(bytes, std::align_val_t(bytes < HUGE_PAGE ? 64 : HUGE_PAGE)));
}

void free_slab_memory(uint8_t* memory, size_t bytes) {
#if defined(__linux__)
  if (mapped(bytes)) {
    munmap(memory, bytes);
    return;
  }
#endif
  ::operator delete(memory, std::align_val_t(bytes < HUGE_PAGE ? 64 : HUGE_PAGE));
}

size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

// The lowest bit of a word that has one.
size_t lowest_bit(uint64_t word) {
#if defined(_MSC_VER)
  unsigned long found;
  if (_BitScanForward(&found, (unsigned long)word)) return found;
  _BitScanForward(&found, (unsigned long)(word >> 32));
  return 32 + found;
#else
  return (size_t)__builtin_ctzll(word);
#endif
}

}  // namespace

PagePool::Slab::~Slab() {
  if (size.on_disk && memory) unmap_file(memory, size.bytes);
  else if (memory) free_slab_memory(memory, size.bytes);
}

PagePool::PagePool() = default;
PagePool::~PagePool() = default;

void PagePool::rest(uint8_t* page) { rest_file(page, head(page).slab->size.page_bytes); }

uint8_t* PagePool::take(size_t bytes, const char* folder) {
  std::lock_guard<std::mutex> lock(mutex_);
  Size& size = size_of(bytes, folder != nullptr);
  Slab* slab = lowest(size);
  if (!slab && !(slab = add_slab(size, folder))) return nullptr;
  uint8_t* page = slab->free;
  if (page) {
    slab->free = head(page).next;
  } else {
    page = slab->memory + slab->cut++ * size.stride + HEAD;
    new (page - HEAD) Head{{0}, slab, nullptr};
  }
  if (!slab->used++ && !size.on_disk) empty_ -= size.bytes;
  if (slab->used == size.pages) mark(*slab, false);
  head(page).holders.store(1, std::memory_order_relaxed);
  live_.fetch_add(1, std::memory_order_relaxed);
  return page;
}

void PagePool::release(uint8_t* page) {
  if (head(page).holders.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  live_.fetch_sub(1, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(mutex_);
  Slab& slab = *head(page).slab;
  head(page).next = slab.free;
  slab.free = page;
  if (slab.used == slab.size.pages) mark(slab, true);
  if (--slab.used) return;
  if (!slab.size.on_disk) empty_ += slab.size.bytes;
  if (slab.size.on_disk || empty_ > MOST_EMPTY) drop_slab(slab);
}

void PagePool::trim() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& each : sizes_)
    for (auto& slab : each.second.slabs)
      if (slab && !slab->used) drop_slab(*slab);
}

size_t PagePool::reserved() {
  std::lock_guard<std::mutex> lock(mutex_);
  return reserved_;
}

PagePool::Size& PagePool::size_of(size_t bytes, bool on_disk) {
  Size& size = sizes_[2 * bytes + on_disk];
  if (size.pages) return size;
  const size_t stride = rounded(bytes) + HEAD, slab = on_disk ? DISK_SLAB : SLAB;
  size.page_bytes = bytes, size.stride = stride, size.on_disk = on_disk;
  size.pages = std::max<size_t>(1, slab / stride);
  size.bytes = std::max(on_disk ? 0 : SLAB, size.pages * stride);
  return size;
}

// Null: no slab has a page to take.
PagePool::Slab* PagePool::lowest(Size& size) {
  for (; size.first < size.open.size(); size.first++)
    if (const uint64_t word = size.open[size.first]) return size.slabs[64 * size.first + lowest_bit(word)].get();
  return nullptr;
}

void PagePool::mark(Slab& slab, bool open) {
  Size& size = slab.size;
  const size_t word = slab.index / 64;
  const uint64_t bit = uint64_t{1} << slab.index % 64;
  size.open[word] = open ? size.open[word] | bit : size.open[word] & ~bit;
  if (open) size.first = std::min(size.first, word);
}

// folder: of its file, null: it is in memory. Null: there is no such file.
PagePool::Slab* PagePool::add_slab(Size& size, const char* folder) {
  const size_t index = std::find(size.slabs.begin(), size.slabs.end(), nullptr) - size.slabs.begin();
  if (index == size.slabs.size()) size.slabs.emplace_back();
  size.open.resize((size.slabs.size() + 63) / 64);
  auto slab = std::unique_ptr<Slab>(new Slab{nullptr, size, index});
  slab->memory = folder ? map_file(folder, size.bytes) : slab_memory(size.bytes);
  if (!slab->memory) return nullptr;
  reserved_ += size.bytes;
  if (!size.on_disk) empty_ += size.bytes;
  mark(*slab, true);
  size.slabs[index] = std::move(slab);
  return size.slabs[index].get();
}

void PagePool::drop_slab(Slab& slab) {
  Size& size = slab.size;
  reserved_ -= size.bytes;
  if (!size.on_disk) empty_ -= size.bytes;
  mark(slab, false);
  size.slabs[slab.index].reset();
}

}  // namespace edgedec
