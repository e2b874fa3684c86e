// An allocator that reports exhausted memory: WASI's C++ library is built without exceptions and would end the program.
#include <cstdlib>
#include <mutex>
#include <new>

#include "wasm.h"

namespace {

std::mutex one;  // the allocator is for one thread

void* found(std::size_t bytes, std::size_t align) {
  const std::lock_guard<std::mutex> lock(one);
  bytes = bytes ? bytes : 1;
  return align > 16 ? std::aligned_alloc(align, (bytes + align - 1) / align * align) : std::malloc(bytes);
}

void* taken(std::size_t bytes, std::size_t align) {
  void* memory = found(bytes, align);
  if (!memory) throw std::bad_alloc();
  return memory;
}

void given(void* memory) {
  const std::lock_guard<std::mutex> lock(one);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return taken(bytes, 0); }
void* operator new[](std::size_t bytes) { return taken(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t align) { return taken(bytes, (std::size_t)align); }
void* operator new[](std::size_t bytes, std::align_val_t align) { return taken(bytes, (std::size_t)align); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return found(bytes, 0); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return found(bytes, 0); }
void operator delete(void* memory) noexcept { given(memory); }
void operator delete[](void* memory) noexcept { given(memory); }
void operator delete(void* memory, std::size_t) noexcept { given(memory); }
void operator delete[](void* memory, std::size_t) noexcept { given(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { given(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { given(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { given(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { given(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { given(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { given(memory); }

uint8_t* edgedec_alloc(size_t bytes) { return (uint8_t*)found(bytes + 1, 64); }
void edgedec_free(void* memory) { given(memory); }
