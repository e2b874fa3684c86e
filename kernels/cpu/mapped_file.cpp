#include "mapped_file.h"

#if defined(__linux__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#endif

namespace edgedec {

#if defined(__linux__) || defined(__APPLE__)

namespace {

// An unnamed file; -1: not supported.
int nameless(const char* folder) {
  std::string path = std::string(folder) + "/edgedec-pages-XXXXXX";
  const int file = mkstemp(path.data());
  if (file >= 0) unlink(path.c_str());
  return file;
}

// Allocates disk space now: on a full disk a later write would end the process.
bool sized(int file, size_t bytes) {
#if defined(__linux__)
  return posix_fallocate(file, 0, (off_t)bytes) == 0;
#else
  fstore_t wish = {F_ALLOCATEALL, F_PEOFPOSMODE, 0, (off_t)bytes, 0};
  return fcntl(file, F_PREALLOCATE, &wish) != -1 && ftruncate(file, (off_t)bytes) == 0;
#endif
}

uintptr_t page_size() {
  static const uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
  return size;
}

}  // namespace

uint8_t* map_file(const char* folder, size_t bytes) {
  const int file = nameless(folder);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (sized(file, bytes)) memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<uint8_t*>(memory);
}

void unmap_file(uint8_t* memory, size_t bytes) { munmap(memory, bytes); }

void rest_file(uint8_t* memory, size_t bytes) {
  const uintptr_t unit = page_size(), at = (uintptr_t)memory;
  const uintptr_t begin = (at + unit - 1) / unit * unit, end = (at + bytes) / unit * unit;
  if (begin < end) madvise((void*)begin, end - begin, MADV_DONTNEED);
}

void read_ahead(const void* memory, size_t bytes) {
  const uintptr_t begin = (uintptr_t)memory, end = begin + bytes;
  for (uintptr_t at = begin / page_size() * page_size(); bytes && at < end; at += READ_AT_ONCE)
    madvise((void*)at, std::min<uintptr_t>(READ_AT_ONCE, end - at), MADV_WILLNEED);
}

bool in_memory(const void* memory) {
#if defined(__linux__)
  unsigned char found = 1;
#else
  char found = 1;
#endif
  return mincore((void*)((uintptr_t)memory / page_size() * page_size()), 1, &found) || found & 1;
}

#else

uint8_t* map_file(const char*, size_t) { return nullptr; }
void unmap_file(uint8_t*, size_t) {}
void rest_file(uint8_t*, size_t) {}
void read_ahead(const void*, size_t) {}
bool in_memory(const void*) { return true; }

#endif

}  // namespace edgedec
