// Threads of a shared memory: workers of the host, each with an instance of this module, wait here for work.
// They are started before the engine is opened, because a host starts none while it waits.
#pragma once
#include <cstdint>

namespace edgedec::wasm {

constexpr int MOST_HELPERS = 63;

int helpers();  // how many there are
// Has a helper that is free run `work(given)`; returns its number, -1: none is free.
int begin(void (*work)(void*), void* given);
void finish(int helper);  // waits until it has

// Waits while `*at` is `value`, without a time limit; stops the engine if a helper was lost, because waiting
// for it would never end.
void wait(int32_t* at, int32_t value);
void wake(int32_t* at, uint32_t most);

}  // namespace edgedec::wasm
