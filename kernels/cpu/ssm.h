// The state of a state-space block, or of the gated delta rule, as it lies in memory, and one step of its recurrence.
//
// State [heads][lane groups][state_size][16]: value d of a head is lane d % 16 of lane group d / 16, so that no sum
// crosses lanes. A head_dim that is no multiple of 16 is padded with zeros, which stay zeros.
#pragma once
#include <cstddef>
#include <cstdint>

namespace edgedec {

static inline int ssm_lane_groups(int head_dim) { return (head_dim + 15) / 16; }
static inline size_t ssm_head_floats(int head_dim, int state_size) {
  return (size_t)ssm_lane_groups(head_dim) * state_size * 16;
}

// One row of one head. ssm_step: to = decay * from + (dt * x) (outer) b; y = to . c + d * x. delta_steps, x, b, c and dt
// being v, k, q and beta: to = decay * from + (dt * (x - decay * from . b)) (outer) b; y = to . c. rwkv7_step, x, b and c being
// v, k and r: to = decays * from - (from . sought) (outer) replaced + x (outer) b; y = to . c.
struct SsmStep {
  const float* from;           // null: zeros; may be `to`
  float* to;
  const float *x, *b, *c;      // [head_dim], [state_size], [state_size]; c null: y is not wanted
  float* y;                    // [head_dim]
  float dt, decay, d;
  int32_t head_dim, state_size;
  const float* decays;         // of delta_steps and rwkv7_step: [state_size]; null: `decay` is that of all
  const float *sought = nullptr, *replaced = nullptr;  // of rwkv7_step: [state_size]
};

// A step from zeros as one from its own memory, zeros too: for kernels that read what they start from. Of some lane groups.
static inline void ssm_from_zeros(SsmStep& step, int lane0, int lane1) {
  if (step.from) return;
  for (size_t i = (size_t)lane0 * step.state_size * 16; i < (size_t)lane1 * step.state_size * 16; i++) step.to[i] = 0.0f;
  step.from = step.to;
}

// One row of a state whose lanes are channels with time steps and decays of their own (Mamba-1): to = exp(dt a) * from +
// (dt * x) (outer) b; y = to . c + d * x. Of lane group g the decays are at a + g * state_size * 16, as the state lies.
struct S6Step {
  const float* from;  // null: zeros; may be `to`
  float* to;
  const float *x, *dt, *d;  // [channels]; d: used if y is wanted
  const float *a, *b, *c;   // [lane groups, state_size, 16], [state_size], [state_size]; c null: y is not wanted
  float* y;                 // [channels]
  int32_t channels, state_size;
};

}  // namespace edgedec
