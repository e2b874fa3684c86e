// Kernels with one mistake each, and one without: what the emulation has to report.
#include "device.h"

struct Args {
  float* out;
  int32_t n, reserved;
};

KERNEL(right, Args, 64) {
  SHARED(memory);
  float* shared = reinterpret_cast<float*>(memory);
  shared[THREAD] = (float)THREAD;
  barrier();
  a.out[THREAD] = shared[a.n - 1 - THREAD] + shuffle_xor(0.0f, 1);
}

// No barrier between what a thread writes and what another reads.
KERNEL(no_barrier, Args, 64) {
  SHARED(memory);
  float* shared = reinterpret_cast<float*>(memory);
  shared[THREAD] = (float)THREAD;
  a.out[THREAD] = shared[a.n - 1 - THREAD];
}

// Half a warp takes part in a shuffle.
KERNEL(divergent, Args, 64) {
  float x = (float)THREAD;
  if (THREAD < 16) x = x + shuffle_xor(x, 1);
  a.out[THREAD] = x;
}

// Threads that have ended do not come to the barrier.
KERNEL(missed_barrier, Args, 64) {
  if (THREAD < 32) return;
  barrier();
  a.out[THREAD] = 0.0f;
}

// One element more than there are.
KERNEL(out_of_bounds, Args, 64) { a.out[THREAD + 1] = 0.0f; }

KERNEL(past_shared, Args, 64) {
  SHARED(memory);
  reinterpret_cast<float*>(memory)[THREAD + 16] = 0.0f;
  barrier();
}
