// Parts of a mapped file that begin and end anywhere: the pages that the system is to read are those of the part, in
// pieces that it reads whole. The system's functions are replaced by ones that count.
//
//     read_ahead_test FILE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "mapped_file.h"

namespace {

struct Range {
  uintptr_t from, to;
};

int wrong = 0, there = 0, failing = 0;
std::vector<Range> requests;
uintptr_t looked_at = 0;

void expect(bool right, const char* what, size_t begin, size_t bytes) {
  if (right) return;
  wrong++;
  std::printf("%s: %zu bytes from %zu on\n", what, bytes, begin);
}

void part(const uint8_t* file, size_t begin, size_t bytes) {
  const uintptr_t unit = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)file + begin;
  requests.clear();
  edgedec::read_ahead(file + begin, bytes);
  uintptr_t next = at / unit * unit;
  for (const Range& each : requests) {
    expect(each.from == next && each.from < each.to, "pieces one after another", begin, bytes);
    expect(each.to - each.from <= edgedec::READ_AT_ONCE, "a piece that the system reads whole", begin, bytes);
    next = each.to;
  }
  expect(next == (bytes ? at + bytes : at / unit * unit), "all of it and no more", begin, bytes);
}

void page(const uint8_t* file, size_t at) {
  const uintptr_t unit = (uintptr_t)sysconf(_SC_PAGESIZE);
  for (there = 0; there < 2; there++) {
    expect(edgedec::in_memory(file + at) == there, "in memory", at, 1);
    expect(looked_at == ((uintptr_t)file + at) / unit * unit, "of its page", at, 1);
  }
  failing = 1, there = 0;
  expect(edgedec::in_memory(file + at), "in memory where the system does not say", at, 1);
  failing = 0;
}

}  // namespace

extern "C" int madvise(void* at, size_t bytes, int advice) noexcept {
  const int failed = (int)syscall(SYS_madvise, at, bytes, advice);
  if (advice != MADV_WILLNEED) return failed;
  requests.push_back({(uintptr_t)at, (uintptr_t)at + bytes});
  expect(!failed, "madvise", (size_t)at, bytes);
  return failed;
}

extern "C" int mincore(void* at, size_t, unsigned char* found) noexcept {
  looked_at = (uintptr_t)at;
  if (failing) return -1;
  *found = (unsigned char)(0xfe | there);  // the other bits mean nothing
  return 0;
}

int main(int, char** arguments) {
  const size_t unit = (size_t)sysconf(_SC_PAGESIZE), size = 5 * edgedec::READ_AT_ONCE + 100;
  const int file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || ftruncate(file, (off_t)size)) return 2;
  const auto* memory = static_cast<const uint8_t*>(mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0));
  if (memory == MAP_FAILED) return 2;
  for (size_t begin : {(size_t)0, (size_t)1, unit - 1, unit, unit + 64, 3 * unit + unit / 2, edgedec::READ_AT_ONCE - 1}) {
    page(memory, begin);
    for (size_t bytes : {(size_t)0, (size_t)1, (size_t)64, unit - 1, unit, unit + 1, 2 * unit, edgedec::READ_AT_ONCE,
                         edgedec::READ_AT_ONCE + 1, 3 * edgedec::READ_AT_ONCE, size - begin})
      part(memory, begin, bytes);
  }
  part(memory, size - 1, 1), part(memory, size - 100, 100), part(memory, size - unit, unit);  // of the last page
  page(memory, size - 1);
  std::printf("wrong: %d\n", wrong);
  return wrong ? 1 : 0;
}
