#include "helpers.h"

#include <cstddef>

#include "../wasm.h"

// Of the host. (The instruction for it loses a register in V8 11's first compiler, and with it the thread.)
extern "C" __attribute__((import_module("edgedec"), import_name("wait"))) void host_wait(int32_t* at, int32_t value, int32_t milliseconds);
extern "C" __attribute__((import_module("edgedec"), import_name("wake"))) void host_wake(int32_t* at, uint32_t most);

namespace edgedec::wasm {

namespace {

constexpr int32_t LOOK = 1000, FOREVER = -1;  // milliseconds; after LOOK a lost helper is noticed
constexpr size_t STACK = 512 << 10;

struct Helper {
  int32_t busy = 0, taken = 0;
  void (*work)(void*) = nullptr;
  void* given = nullptr;
};

Helper all[MOST_HELPERS];
int32_t count, lost;

}  // namespace

int helpers() { return count; }

void wake(int32_t* at, uint32_t most) { host_wake(at, most); }

void wait(int32_t* at, int32_t value) {
  host_wait(at, value, LOOK);
  if (__atomic_load_n(&lost, __ATOMIC_ACQUIRE)) __builtin_trap();
}

int begin(void (*work)(void*), void* given) {
  for (int i = 0; i < count; i++) {
    Helper& helper = all[i];
    if (__atomic_exchange_n(&helper.taken, 1, __ATOMIC_ACQ_REL)) continue;
    helper.work = work, helper.given = given;
    __atomic_store_n(&helper.busy, 1, __ATOMIC_RELEASE);
    wake(&helper.busy, 1);
    return i;
  }
  return -1;
}

void finish(int number) {
  Helper& helper = all[number];
  while (__atomic_load_n(&helper.busy, __ATOMIC_ACQUIRE)) wait(&helper.busy, 1);
  __atomic_store_n(&helper.taken, 0, __ATOMIC_RELEASE);
}

}  // namespace edgedec::wasm

using namespace edgedec::wasm;

void edgedec_helpers(int32_t n) { count = n < 0 ? 0 : n > MOST_HELPERS ? MOST_HELPERS : n; }

// The linker's: makes a thread's own variables at this place.
extern "C" void __wasm_init_tls(void*);

size_t edgedec_helper_bytes(void) { return STACK + (__builtin_wasm_tls_size() + 63) / 64 * 64; }
void edgedec_helper_begin(void* own) { __wasm_init_tls(own); }

void edgedec_helper_help(int32_t number) {
  Helper& helper = all[number];
  for (;;) {
    while (!__atomic_load_n(&helper.busy, __ATOMIC_ACQUIRE)) host_wait(&helper.busy, 0, FOREVER);
    helper.work(helper.given);
    __atomic_store_n(&helper.busy, 0, __ATOMIC_RELEASE);
    wake(&helper.busy, 1);
  }
}

void edgedec_helper_lost(void) { __atomic_store_n(&lost, 1, __ATOMIC_RELEASE); }
