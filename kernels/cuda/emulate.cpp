// The scheduler of emulate.h, and the interface that a driver has: memory, and launches by name.
#include "emulate.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

// Saves the registers that the ABI preserves, stores the stack in *from, continues at `to`.
extern "C" void ed_switch(void** from, void* to);

#if defined(__x86_64__)
asm(R"(
.text
.type ed_switch,@function
.globl ed_switch
.hidden ed_switch
ed_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size ed_switch,.-ed_switch
)");
static void* first_frame(char* top, void (*entry)()) {
  void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15));
  *--sp = nullptr;  // aligned as after a call
  *--sp = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  return sp;
}
#elif defined(__aarch64__)
asm(R"(
.text
.type ed_switch,%function
.globl ed_switch
.hidden ed_switch
ed_switch:
  sub sp, sp, #176
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #176
  ret
.size ed_switch,.-ed_switch
)");
static void* first_frame(char* top, void (*entry)()) {
  char* sp = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15)) - 176;
  std::memset(sp, 0, 176);
  *reinterpret_cast<void**>(sp + 88) = reinterpret_cast<void*>(entry);  // x30
  return sp;
}
#else
#error "the emulation switches stacks on x86-64 and aarch64 only"
#endif

namespace emulated {

namespace {

constexpr size_t STACK = 64 << 10, SHARED_BYTES = 227 << 10;  // shared: the limit of a block on an H100

thread_local const Kernel* kernel;
thread_local const void* arguments;
thread_local bool failed;
thread_local std::string message;
int order = 0;

std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> all;
  return all;
}

void leave() { ed_switch(&block.all[block.current].stack_pointer, block.scheduler); }

void entry() {
  kernel->run(arguments);
  block.all[block.current].done = true;
  leave();
  std::abort();
}

int next_lane(int lane) { return order ? (lane + WARP - 1) % WARP : (lane + 1) % WARP; }

bool can_run(int thread) {
  return thread < block.threads && !block.all[thread].done && !block.all[thread].waiting;
}

void make_threads() {
  if (block.all) return;
  block.all = new Thread[MAX_THREADS]();
  void* stacks = mmap(nullptr, STACK * MAX_THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (size_t i = 0; i < MAX_THREADS; i++) block.all[i].stack = static_cast<char*>(stacks) + i * STACK;
}

void start_threads() {
  for (int i = 0; i < block.threads; i++) {
    Thread& t = block.all[i];
    // Stacks start at different offsets in a page, so that they do not compete for a few cache lines.
    t.stack_pointer = first_frame(t.stack + STACK - i * 448 % 16384, entry);
    t.done = t.waiting = false, t.met = t.checked = 0;
    t.slot[0].number = t.slot[1].number = 0;
  }
}

// Lanes of a warp run until all are done or wait for the block.
void run_warp(int warp) {
  for (int from = order ? WARP - 1 : 0; !failed;) {
    int found = -1;
    for (int i = 0, lane = from; i < WARP && found < 0; i++, lane = next_lane(lane))
      if (can_run(warp * WARP + lane)) found = warp * WARP + lane;
    if (found < 0) return;
    block.current = found;
    ed_switch(&block.scheduler, block.all[found].stack_pointer);
    block.scheduler = nullptr;  // nothing to go back to
    from = next_lane(block.current % WARP);
  }
}

// Whether threads wait for each other; all of them must, at the same place.
bool release_barrier() {
  int waiting = 0, done = 0, line = 0;
  for (int i = 0; i < block.threads; i++) {
    Thread& t = block.all[i];
    done += t.done;
    if (!t.waiting) continue;
    block.current = i;
    if (waiting++ && line != t.line) fail("threads wait at different barriers", line, t.line);
    line = t.line;
  }
  if (waiting && done) fail("threads ended before a barrier of the others", line, done);
  for (int i = 0; i < block.threads; i++) block.all[i].waiting = false;
  return waiting;
}

void run_block() {
  const int warps = (block.threads + WARP - 1) / WARP;
  start_threads();
  do
    for (int i = 0; i < warps && !failed; i++) run_warp(order ? warps - 1 - i : i);
  while (!failed && release_barrier());
}

}  // namespace

thread_local Block block;

Export::Export(const Kernel& kernel) { kernels()[kernel.name] = kernel; }

struct Failure {};

void fail(const char* what, int line, int other) {
  char text[256];
  std::snprintf(text, sizeof text, "%s, thread %d, line %d: %s (%d)", block.kernel, block.current, line, what, other);
  message = text;
  if (failed) std::abort();
  failed = true;
  if (!block.scheduler) throw Failure{};
  leave();  // and never come back
  std::abort();
}

void wait_for_block(int line) {
  Thread& me = block.all[block.current];
  me.waiting = true, me.line = line;
  leave();
}

void meet(const uint64_t value[2], int line) {
  const int mine = block.current, base = mine & ~(WARP - 1);
  Thread& me = block.all[mine];
  const uint32_t number = ++me.met;
  Slot& slot = me.slot[number & 1];
  slot.number = number, slot.line = line, slot.value[0] = value[0], slot.value[1] = value[1];
  // On to the next lane that can run; back here when all have been.
  int next = mine;
  for (int i = 0; i < WARP; i++) {
    next = base + next_lane(next & (WARP - 1));
    if (can_run(next)) break;
  }
  if (next != mine) {
    block.current = next;
    ed_switch(&me.stack_pointer, block.all[next].stack_pointer);
  }
  if (block.all[base].checked == number) return;  // another lane has looked
  for (int i = 0; i < WARP; i++) brought(i, line);
  block.all[base].checked = number;
}

const Slot& brought(int lane, int line) {
  const Thread& me = block.all[block.current];
  const int at = (block.current & ~(WARP - 1)) + lane;
  if (at >= block.threads) fail("a collective of less than a warp", line, block.threads);
  const Slot& slot = block.all[at].slot[me.met & 1];
  if (slot.number != me.met || slot.line != line) fail("a lane is not in this collective", line, lane);
  return slot;
}

// Lane 4g + t has of a: rows g and g + 8, columns 4t.. and 16 + 4t..; of b: column g, the same rows; of d: rows g and
// g + 8, columns 2t and 2t + 1.
void multiply_s8(int* d, const uint32_t* a, const uint32_t* b, int line) {
  const int g = lane() >> 2, t = lane() & 3;
  uint64_t value[2] = {};
  int8_t rows[2][32], columns[2][32];
  std::memcpy(value, a, 16);
  meet(value, line);
  for (int i = 0; i < 4; i++) {
    uint32_t fragment[4];
    std::memcpy(fragment, brought(g * 4 + i, line).value, 16);
    for (int r = 0; r < 4; r++) std::memcpy(&rows[r & 1][i * 4 + (r >> 1) * 16], &fragment[r], 4);
  }
  std::memcpy(value, b, 8);
  meet(value, line);
  for (int c = 0; c < 2; c++)
    for (int i = 0; i < 4; i++) {
      uint32_t fragment[2];
      std::memcpy(fragment, brought((2 * t + c) * 4 + i, line).value, 8);
      for (int r = 0; r < 2; r++) std::memcpy(&columns[c][i * 4 + r * 16], &fragment[r], 4);
    }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 32; j++) d[i] += (int)rows[i >> 1][j] * columns[i & 1][j];
}

static int run(const Kernel& chosen, const unsigned* grid, unsigned threads, size_t shared_bytes, const void* given) {
  make_threads();
  kernel = &chosen, arguments = given, failed = false;
  block.kernel = chosen.name, block.threads = (int)threads, block.scheduler = nullptr;
  // Its own allocation, so that the address sanitizer knows its end.
  void* shared = std::aligned_alloc(64, (shared_bytes + 63) / 64 * 64);
  block.shared = static_cast<uint8_t*>(shared);
  try {
    for (unsigned z = 0; z < grid[2] && !failed; z++)
      for (unsigned y = 0; y < grid[1] && !failed; y++)
        for (unsigned x = 0; x < grid[0] && !failed; x++) {
          block.at[0] = (int)x, block.at[1] = (int)y, block.at[2] = (int)z;
          std::memset(shared, 0xff, shared_bytes);
          block.scheduler = nullptr;
          run_block();
        }
  } catch (const Failure&) {
  }
  std::free(shared);
  return failed ? 1 : 0;
}

}  // namespace emulated

#define ED_API extern "C" __attribute__((visibility("default")))

ED_API void* ed_cuda_allocate(uint64_t bytes) { return std::aligned_alloc(256, (bytes + 255) / 256 * 256); }
ED_API void ed_cuda_free(void* p) { std::free(p); }
// 1: lanes and warps in the opposite order.
ED_API void ed_cuda_order(int order) { emulated::order = order; }
ED_API const char* ed_cuda_error(void) { return emulated::message.c_str(); }
ED_API int ed_cuda_has(const char* name) { return emulated::kernels().count(name) ? 1 : 0; }
// 0; or an error, with its message in ed_cuda_error.
ED_API int ed_cuda_launch(const char* name, const unsigned* grid, unsigned threads, uint64_t shared, const void* arguments,
                          uint64_t size) {
  using namespace emulated;
  const auto found = kernels().find(name);
  const char* wrong = nullptr;
  if (found == kernels().end()) wrong = "no such kernel";
  else if (found->second.argument_bytes != size) wrong = "arguments of another size";
  else if (!threads || threads % WARP || (int)threads > found->second.most_threads) wrong = "a number of threads that cannot be";
  else if (shared > SHARED_BYTES) wrong = "more shared memory than a block has";
  if (wrong) return message = std::string(name) + ": " + wrong, 2;
  return run(found->second, grid, threads, shared, arguments);
}
