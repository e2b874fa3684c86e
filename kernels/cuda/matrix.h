// Matrix products of many rows by int8 tensor cores: the same bytes as product.h.
//
// One mma.m16n8k32 is one step of 32 inputs of 16 rows and 8 outputs, so the floats are added up step after step as
// everywhere. A block has 64 rows and 64 outputs, a warp 16 and 32 of them; four steps of both lie in shared memory while
// the next four are on their way. Weights with blocks of 16 are product.h's.
#pragma once
#include "product.h"

constexpr int MATRIX_ROWS = 64, MATRIX_OUTPUTS = 64, MATRIX_STEPS = 4;
constexpr int MATRIX_ROW_BYTES = 32 * MATRIX_STEPS + 16;  // so that eight rows lie in different banks
constexpr int MATRIX_TILES = 4;                           // of 8 outputs, a warp

template <int FORMAT>
struct MatrixMemory {
  static constexpr int STEP_BYTES = FORMAT == INT4 ? 256 : 512;  // of a group of 16 outputs
  uint8_t x[MATRIX_ROWS * MATRIX_ROW_BYTES];
  uint8_t w[MATRIX_OUTPUTS / LANES * MATRIX_STEPS * STEP_BYTES];
  float scale[MATRIX_STEPS][MATRIX_ROWS], weight_scale[MATRIX_STEPS][MATRIX_OUTPUTS];
  int32_t sum[MATRIX_STEPS][MATRIX_ROWS];
};

// Where a block's rows and outputs are.
struct MatrixPlace {
  Weights w;
  Prepared a;
  int row0, rows, group0, groups;  // groups: that there are, from group0 on
};

// What a thread brings of the next steps.
template <int FORMAT>
struct Coming {
  static constexpr int X = MATRIX_ROWS * MATRIX_STEPS * 2 / 256;
  static constexpr int W = MATRIX_OUTPUTS / LANES * MATRIX_STEPS * MatrixMemory<FORMAT>::STEP_BYTES / 16 / 256;
  Quad x[X], w[W];
  float scale, weight_scale;
  int32_t sum;
};

template <int FORMAT>
DEVICE void fetch(const MatrixPlace& p, int t0, Coming<FORMAT>& to) {
  const Quad nothing = {{0, 0, 0, 0}};
  const int steps = p.w.steps();
  UNROLL
  for (int i = 0; i < to.X; i++) {
    const int at = THREAD + 256 * i, row = at / (2 * MATRIX_STEPS), part = at % (2 * MATRIX_STEPS);
    const bool there = row < p.rows && t0 + part / 2 < steps;
    to.x[i] = there ? reinterpret_cast<const Quad*>(p.a.q + (int64_t)row * p.w.kpad() + t0 * 32)[part] : nothing;
  }
  constexpr int quads = MatrixMemory<FORMAT>::STEP_BYTES / 16;
  UNROLL
  for (int i = 0; i < to.W; i++) {
    const int at = THREAD + 256 * i, group = at / (MATRIX_STEPS * quads), part = at % (MATRIX_STEPS * quads);
    const bool there = group < p.groups && t0 + part / quads < steps;
    to.w[i] = there ? reinterpret_cast<const Quad*>(group_of(p.w, p.group0 + group).data)[t0 * quads + part] : nothing;
  }
  const int t = THREAD / 64, place = THREAD % 64, step = t0 + t, block = step / p.w.block_steps();
  const bool row_there = place < p.rows && step < steps, group_there = place / LANES < p.groups && step < steps;
  to.scale = row_there ? p.a.scale[(int64_t)place * steps + step] : 0.0f;
  to.sum = row_there ? p.a.sum[(int64_t)place * steps + step] : 0;
  to.weight_scale =
      group_there ? half_to_float(group_of(p.w, p.group0 + place / LANES).scales[block * LANES + place % LANES]) : 0.0f;
}

template <int FORMAT>
DEVICE void keep(const Coming<FORMAT>& from, MatrixMemory<FORMAT>& to) {
  UNROLL
  for (int i = 0; i < from.X; i++) {
    const int at = THREAD + 256 * i, row = at / (2 * MATRIX_STEPS), part = at % (2 * MATRIX_STEPS);
    reinterpret_cast<Quad*>(to.x + row * MATRIX_ROW_BYTES)[part] = from.x[i];
  }
  UNROLL
  for (int i = 0; i < from.W; i++) reinterpret_cast<Quad*>(to.w)[THREAD + 256 * i] = from.w[i];
  to.scale[THREAD / 64][THREAD % 64] = from.scale;
  to.sum[THREAD / 64][THREAD % 64] = from.sum;
  to.weight_scale[THREAD / 64][THREAD % 64] = from.weight_scale;
}

// Four inputs of an output: number 4 * part of the step's 32, in the order in which the rows lie.
template <int FORMAT>
DEVICE uint32_t weight_word(const MatrixMemory<FORMAT>& m, int step, int output, int part) {
  const uint32_t* lines = reinterpret_cast<const uint32_t*>(m.w) +
                          ((output / LANES) * MATRIX_STEPS + step) * (m.STEP_BYTES / 4) + output % LANES;
  if (FORMAT == INT8) return lines[part * LANES] ^ 0x80808080u;
  return lines[part / 2 * LANES] >> (part & 1) * 4 & 0x0f0f0f0fu;
}

// Weights with zero points have kernels of their own: in one they would take registers from the others.
enum Zeros { NO_ZEROS = 0, ZEROS_IN_STEPS = 1, ZEROS_BY_BLOCK = 2 };

// A step of a warp: rows `row`.. of the block, outputs `output`.. in MATRIX_TILES tiles.
template <int FORMAT, int ZEROS>
DEVICE void matrix_step(const MatrixPlace& p, const MatrixMemory<FORMAT>& m, int step, int t, int row, int output,
                        Total* acc) {
  const int g = (THREAD & 31) >> 2, c = THREAD & 3;
  uint32_t a[4];
  UNROLL
  for (int i = 0; i < 4; i++) {
    const uint8_t* of = m.x + (row + g + (i & 1) * 8) * MATRIX_ROW_BYTES;
    a[i] = reinterpret_cast<const uint32_t*>(of)[step * 8 + c + (i >> 1) * 4];
  }
  UNROLL
  for (int n = 0; n < MATRIX_TILES; n++) {
    const int first = output + n * 8;
    const uint32_t b[2] = {weight_word<FORMAT>(m, step, first + g, c), weight_word<FORMAT>(m, step, first + g, c + 4)};
    int d[4] = {0, 0, 0, 0};
    mma_s8(d, a, b);
    UNROLL
    for (int i = 0; i < 4; i++) {
      const int r = row + g + (i >> 1) * 8, o = first + 2 * c + (i & 1);
      const int sum = FORMAT == INT4 ? d[i] - 8 * m.sum[step][r] : d[i];
      Total& total = acc[n * 4 + i];
      if (ZEROS == NO_ZEROS) {
        total.all = fma_((float)sum, m.weight_scale[step][o] * m.scale[step][r], total.all);
        continue;
      }
      if (r >= p.rows || o / LANES >= p.groups) continue;
      const Added added = {sum, m.weight_scale[step][o], m.scale[step][r]};
      add_step(p.w, group_of(p.w, p.group0 + o / LANES), added, o % LANES, t, m.sum[step][r],
               p.a.block_sum + (int64_t)r * p.w.blocks(), total);
    }
  }
}

template <int FORMAT, int ZEROS>
DEVICE void matrix_sums(const MatrixPlace& p, MatrixMemory<FORMAT>& memory, Total* acc) {
  const int warp = THREAD >> 5, row = warp % 4 * 16, output = warp / 4 * 32, steps = p.w.steps();
  UNROLL
  for (int i = 0; i < MATRIX_TILES * 4; i++) acc[i] = {0.0f, 0.0f};
  Coming<FORMAT> coming;
  fetch(p, 0, coming);
  for (int t0 = 0; t0 < steps; t0 += MATRIX_STEPS) {
    barrier();
    keep(coming, memory);
    barrier();
    if (t0 + MATRIX_STEPS < steps) fetch(p, t0 + MATRIX_STEPS, coming);
    const int n = min_(MATRIX_STEPS, steps - t0);
    ONCE
    for (int s = 0; s < n; s++) matrix_step<FORMAT, ZEROS>(p, memory, s, t0 + s, row, output, acc);
  }
}

// Stores the block's outputs, half of its rows at a time, by way of shared memory: written out for each of a thread's
// sums, the epilogue would not fit into the GPU's memory for instructions.
DEVICE void put_all(const ProductArgs& a, const MatrixPlace& p, const Total* acc, const float* gate, float* memory) {
  const int warp = THREAD >> 5, g = (THREAD & 31) >> 2, c = THREAD & 3, half = MATRIX_ROWS / 2;
  float* gates = memory + half * MATRIX_OUTPUTS;
  ONCE
  for (int first = 0; first < MATRIX_ROWS; first += half) {
    barrier();
    if (warp % 4 / 2 * half == first) {
      UNROLL
      for (int i = 0; i < MATRIX_TILES * 4; i++) {
        const int row = warp % 2 * 16 + g + (i >> 1 & 1) * 8, output = warp / 4 * 32 + i / 4 * 8 + 2 * c + (i & 1);
        memory[row * MATRIX_OUTPUTS + output] = acc[i].all;
        if (a.epilogue == GLU) gates[row * MATRIX_OUTPUTS + output] = gate[i];
      }
    }
    barrier();
    ONCE
    for (int at = THREAD; at < half * MATRIX_OUTPUTS; at += THREADS) {
      const int row = first + at / MATRIX_OUTPUTS, output = at % MATRIX_OUTPUTS;
      if (row < p.rows && output / LANES < p.groups)
        put(a, p.row0 + row, BLOCK_X * MATRIX_OUTPUTS + output, memory[at], a.epilogue == GLU ? gates[at] : 0.0f);
    }
  }
}

// 64 outputs (of GLU: 64 gates and what they gate) [x] of 64 rows [y].
template <int FORMAT, int ZEROS>
DEVICE void matrix_block(const ProductArgs& a, uint8_t* shared) {
  MatrixMemory<FORMAT>& memory = *reinterpret_cast<MatrixMemory<FORMAT>*>(shared);
  MatrixPlace p;
  const int half = (a.w.n + LANES - 1) / LANES / (a.epilogue == GLU ? 2 : 1);
  p.w = a.w, p.row0 = BLOCK_Y * MATRIX_ROWS, p.rows = min_(MATRIX_ROWS, product_rows(a) - p.row0);
  p.group0 = BLOCK_X * (MATRIX_OUTPUTS / LANES), p.groups = min_(MATRIX_OUTPUTS / LANES, half - p.group0);
  if (p.rows <= 0) return;
  p.a = prepared_row(a.a, p.w, p.row0);
  float gate[MATRIX_TILES * 4];
  Total acc[MATRIX_TILES * 4];
  ONCE
  for (int part = a.epilogue == GLU ? 0 : 1; part < 2; part++) {
    matrix_sums<FORMAT, ZEROS>(p, memory, acc);
    if (part) break;
    UNROLL
    for (int i = 0; i < MATRIX_TILES * 4; i++) gate[i] = acc[i].all;
    p.group0 += half;
  }
  put_all(a, p, acc, gate, reinterpret_cast<float*>(shared));
}

#define MATRIX(name, FORMAT, ZEROS, blocks)       \
  KERNEL_SHARED(name, ProductArgs, 256, blocks) { \
    SHARED(memory);                               \
    matrix_block<FORMAT, ZEROS>(a, memory);       \
  }
MATRIX(matrix_int4, INT4, NO_ZEROS, 2)
MATRIX(matrix_int8, INT8, NO_ZEROS, 1)
MATRIX(matrix_int4_zeros, INT4, ZEROS_IN_STEPS, 1)
MATRIX(matrix_int8_zeros, INT8, ZEROS_BY_BLOCK, 1)
