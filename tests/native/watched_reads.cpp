// Preloaded: keeps which memory a program wants the system to read, and answers whether a page is in memory.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

extern "C" {

int watched_count = 0, watched_in_memory = 0;
uintptr_t watched_ranges[1 << 16];

int madvise(void* at, size_t bytes, int advice) noexcept {
  if (advice == MADV_WILLNEED && watched_count < 1 << 15) {
    watched_ranges[2 * watched_count] = (uintptr_t)at;
    watched_ranges[2 * watched_count++ + 1] = bytes;
  }
  return (int)syscall(SYS_madvise, at, bytes, advice);
}

int mincore(void*, size_t bytes, unsigned char* found) noexcept {
  for (size_t i = 0; i < (bytes + 4095) / 4096; i++) found[i] = (unsigned char)watched_in_memory;
  return 0;
}
}
