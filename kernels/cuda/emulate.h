// The names of device.h on the CPU, for tests: each thread of a block is a fiber, lanes of a warp meet in collectives,
// threads of a block in barriers.
//
// It reports a lane that misses a collective and a thread that misses a barrier, by kernel and line. Shared memory is
// full of NaN when a block begins, and threads may run in the opposite order (`ed_cuda_order`): with both, a missing
// barrier shows in the results. Memory is malloc's: built with -fsanitize=address, an access out of bounds is reported.
// It does not detect: weak ordering between warps, and whatever depends on blocks that run at the same time.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define DEVICE static inline
#define DEVICE_METHOD inline
#define THREAD (emulated::block.current)
#define THREADS (emulated::block.threads)
#define BLOCK_X (emulated::block.at[0])
#define BLOCK_Y (emulated::block.at[1])
#define BLOCK_Z (emulated::block.at[2])
#define KERNEL(name, Args, most)                                                                               \
  static void name(const Args& a);                                                                             \
  static emulated::Export export_##name({#name, sizeof(Args), most,                                            \
                                         [](const void* p) { name(*static_cast<const Args*>(p)); }});          \
  static void name(const Args& a)
#define KERNEL_SHARED(name, Args, most, blocks) KERNEL(name, Args, most)
#define SHARED(name) uint8_t* name = emulated::block.shared
#define UNROLL
#define UNROLL_8
#define ONCE
#define barrier() emulated::wait_for_block(__LINE__)
#define warp_barrier() ((void)emulated::exchange(0, emulated::lane(), __LINE__))
#define shuffle_xor(x, i) emulated::exchange(x, emulated::lane() ^ (i), __LINE__)
#define shuffle(x, from) emulated::exchange(x, (from) & 31, __LINE__)
#define mma_s8(d, a, b) emulated::multiply_s8(d, a, b, __LINE__)

namespace emulated {

constexpr int MAX_THREADS = 1024;
constexpr int WARP = 32;

// A lane's values for a collective.
struct Slot {
  uint32_t number;
  int line;
  uint64_t value[2];
};

struct Thread {
  void* stack_pointer;
  char* stack;
  bool done, waiting;  // waiting: at a barrier
  int line;            // of that barrier
  uint32_t met;        // collectives so far
  uint32_t checked;    // of a warp's first lane: the last collective that was found complete
  Slot slot[2];        // of the last two collectives
};

// The block that runs on this thread of the host.
struct Block {
  int current, threads, at[3];
  uint8_t* shared;
  void* scheduler;
  Thread* all;
  const char* kernel;
};
extern thread_local Block block;

struct Kernel {
  const char* name;
  size_t argument_bytes;
  int most_threads;
  void (*run)(const void* arguments);
};
struct Export {
  explicit Export(const Kernel& kernel);
};

// Ends the launch: one line of what is wrong, and where.
[[noreturn]] void fail(const char* what, int line, int other);
void wait_for_block(int line);
// Passes two values to the warp's next collective; returns when every lane of the warp has done so.
void meet(const uint64_t value[2], int line);
// A lane's values in the collective that just completed.
const Slot& brought(int lane, int line);

inline int lane() { return block.current & (WARP - 1); }

template <class T>
T exchange(T x, int from, int line) {
  static_assert(sizeof(T) <= 8, "a register or two");
  uint64_t value[2] = {};
  std::memcpy(value, &x, sizeof x);
  meet(value, line);
  std::memcpy(&x, brought(from, line).value, sizeof x);
  return x;
}

void multiply_s8(int* d, const uint32_t* a, const uint32_t* b, int line);

}  // namespace emulated

DEVICE float fma_(float a, float b, float c) { return std::fma(a, b, c); }
DEVICE float sqrt_(float x) { return std::sqrt(x); }
DEVICE float round_(float x) { return std::nearbyint(x); }
DEVICE float abs_(float x) { return std::fabs(x); }
DEVICE float as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
DEVICE uint32_t as_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
DEVICE int dp4a(uint32_t a, uint32_t b, int c) {
  for (int i = 0; i < 32; i += 8) c += (int)(int8_t)(a >> i) * (int8_t)(b >> i);
  return c;
}
DEVICE float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  if (!exponent) return as_float(as_bits((float)mantissa * 5.9604644775390625e-8f) | sign);
  return as_float(sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | mantissa << 13);
}
DEVICE uint16_t float_to_half(float f) {
  const uint32_t bits = as_bits(f), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x1ff));
  if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (size < 0x38800000) return (uint16_t)(sign | (uint32_t)std::nearbyint(as_float(size) * 16777216.0f));
  return (uint16_t)(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}
