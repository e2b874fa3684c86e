// Matrix products of many rows by int8 tensor cores: the same bytes as product.h.
//
// One mma.m16n8k32 is one step of 32 inputs of 16 rows and 8 outputs, so the floats are added up step after step as
// everywhere. A block has 64 rows and 32 outputs, a warp 16 and 16 of them; four steps of both lie in shared memory while
// the next four are on their way. Steps after the last are zeros, which add nothing. Weights with blocks of 16 are
// product.h's.
#pragma once
#include "product.h"

constexpr int MATRIX_ROWS = 64, MATRIX_OUTPUTS = 32, MATRIX_STEPS = 4;
constexpr int MATRIX_TILES = 2;  // of 8 outputs, a warp
// The bits of 1.5 * 2^23: an integer below 2^22 added to them is that float and the integer, which is faster than to convert it.
constexpr int FLOAT_SHIFT = 0x4b400000;
constexpr float SHIFTED = 12582912.0f;

template <int FORMAT>
struct MatrixMemory {
  static constexpr int STEP_BYTES = 64 * bits_of(FORMAT);                         // of a group of 16 outputs
  static constexpr int ROW_BYTES = 32 * MATRIX_STEPS + (FORMAT == INT4 ? 32 : 16);  // rows that are read at once: other banks
  uint8_t x[MATRIX_ROWS * ROW_BYTES];
  uint8_t w[MATRIX_OUTPUTS / LANES * MATRIX_STEPS * STEP_BYTES];
  float scale[MATRIX_STEPS][MATRIX_ROWS], weight_scale[MATRIX_STEPS][MATRIX_OUTPUTS];
  int32_t sum[MATRIX_STEPS][MATRIX_ROWS];
};

// Where a block's rows and outputs are.
struct MatrixPlace {
  Weights w;
  Prepared a;
  int row0, rows, group0, groups;  // groups: that there are, from group0 on
  int steps, block_steps;
};

// What a thread brings of the next steps; of weights and their scales some threads bring nothing.
template <int FORMAT>
struct Coming {
  static constexpr int X = MATRIX_ROWS * MATRIX_STEPS * 2 / 256;
  static constexpr int W = MATRIX_OUTPUTS / LANES * MATRIX_STEPS * MatrixMemory<FORMAT>::STEP_BYTES / 16;  // of all threads
  Quad x[X], w;
  float scale, weight_scale;
  int32_t sum;
};

// Where a thread finds that: the addresses of step 0; null: nothing is there.
template <int FORMAT>
struct Sources {
  const Quad *x[Coming<FORMAT>::X], *w;
  const float* scale;
  const int32_t* sum;
  const uint16_t* weight_scale;
};

template <int FORMAT>
DEVICE Sources<FORMAT> sources_of(const MatrixPlace& p) {
  constexpr int quads = MatrixMemory<FORMAT>::STEP_BYTES / 16, all = MATRIX_STEPS * quads;
  Sources<FORMAT> found;
  UNROLL
  for (int i = 0; i < Coming<FORMAT>::X; i++) {
    const int at = THREAD + 256 * i, row = at / (2 * MATRIX_STEPS);
    found.x[i] = row < p.rows ? reinterpret_cast<const Quad*>(prepared_row(p.a, p.w, row).q) : nullptr;
  }
  const int group = THREAD / all, row = THREAD % MATRIX_ROWS, output = THREAD % MATRIX_OUTPUTS;
  const bool brings = THREAD < Coming<FORMAT>::W && group < p.groups;
  found.w = brings ? reinterpret_cast<const Quad*>(group_of(p.w, p.group0 + group).data) : nullptr;
  found.scale = row < p.rows ? prepared_row(p.a, p.w, row).scale : nullptr;
  found.sum = row < p.rows ? prepared_row(p.a, p.w, row).sum : nullptr;
  const bool scales = THREAD < MATRIX_STEPS * MATRIX_OUTPUTS && output / LANES < p.groups;
  found.weight_scale = scales ? group_of(p.w, p.group0 + output / LANES).scales + output % LANES : nullptr;
  return found;
}

template <int FORMAT>
DEVICE void fetch(const MatrixPlace& p, const Sources<FORMAT>& from, int t0, Coming<FORMAT>& to) {
  constexpr int quads = MatrixMemory<FORMAT>::STEP_BYTES / 16;
  const Quad nothing = {{0, 0, 0, 0}};
  const int left = p.steps - t0;
  UNROLL
  for (int i = 0; i < to.X; i++) {
    const int part = (THREAD + 256 * i) % (2 * MATRIX_STEPS);
    to.x[i] = from.x[i] && part / 2 < left ? from.x[i][t0 * 2 + part] : nothing;
  }
  const int part = THREAD % (MATRIX_STEPS * quads);
  to.w = from.w && part / quads < left ? from.w[t0 * quads + part] : nothing;
  const int step = THREAD / MATRIX_ROWS, of = THREAD / MATRIX_OUTPUTS;
  const bool there = from.scale && step < left;
  to.scale = there ? from.scale[t0 + step] : 0.0f;
  to.sum = there ? from.sum[t0 + step] : 0;
  const int block = p.block_steps == 1 ? t0 + of : (t0 + of) / p.block_steps;
  to.weight_scale = from.weight_scale && of < left ? half_to_float(from.weight_scale[block * LANES]) : 0.0f;
}

// Where the quad `part` of a step's weights lies: of every other two lines the halves change places, so that what a warp
// reads at once lies in different banks. Of planes that is one line.
template <int FORMAT>
DEVICE int quad_place(int part) {
  return in_planes(FORMAT) ? part : part ^ (part / 4 & 2);
}

template <int FORMAT>
DEVICE void keep(const Coming<FORMAT>& from, MatrixMemory<FORMAT>& to) {
  UNROLL
  for (int i = 0; i < from.X; i++) {
    const int at = THREAD + 256 * i, row = at / (2 * MATRIX_STEPS), part = at % (2 * MATRIX_STEPS);
    reinterpret_cast<Quad*>(to.x + row * to.ROW_BYTES)[part] = from.x[i];
  }
  if (THREAD < from.W) reinterpret_cast<Quad*>(to.w)[quad_place<FORMAT>(THREAD)] = from.w;
  to.scale[THREAD / MATRIX_ROWS][THREAD % MATRIX_ROWS] = from.scale;
  to.sum[THREAD / MATRIX_ROWS][THREAD % MATRIX_ROWS] = from.sum;
  if (THREAD < MATRIX_STEPS * MATRIX_OUTPUTS)
    to.weight_scale[THREAD / MATRIX_OUTPUTS][THREAD % MATRIX_OUTPUTS] = from.weight_scale;
}

// The inputs of a step that lane c of a row or an output multiplies, twice four: of int4 those of the low and of the high
// halves of line c, of int8 of lines c and c + 4; of planes the bits c of each of two lines.
template <int FORMAT>
DEVICE void weight_words(const MatrixMemory<FORMAT>& m, int step, int output, int c, uint32_t* b) {
  const uint32_t* first = reinterpret_cast<const uint32_t*>(m.w) + ((output / LANES) * MATRIX_STEPS + step) * (m.STEP_BYTES / 4);
  if (in_planes(FORMAT)) {
    const uint32_t *low = first + output % LANES, high = low[(m.STEP_BYTES / 64 - 1) * LANES];
    b[0] = plane_bytes<FORMAT>(low[0], high, c), b[1] = plane_bytes<FORMAT>(low[LANES], high, c + 4);
    return;
  }
  const uint32_t* lines = first + c * LANES + (output % LANES ^ (c & 2) * 4);
  if (FORMAT == INT4) b[0] = lines[0] & 0x0f0f0f0fu, b[1] = lines[0] >> 4 & 0x0f0f0f0fu;
  else b[0] = lines[0] ^ 0x80808080u, b[1] = lines[4 * LANES] ^ 0x80808080u;
}

template <int FORMAT>
DEVICE void row_words(const MatrixMemory<FORMAT>& m, int step, int row, int c, uint32_t& low, uint32_t& high) {
  const uint8_t* of = m.x + row * m.ROW_BYTES + step * 32;
  if (FORMAT == INT4) {
    const Pair both = reinterpret_cast<const Pair*>(of)[c];
    low = both.v[0], high = both.v[1];
  } else {
    low = reinterpret_cast<const uint32_t*>(of)[c], high = reinterpret_cast<const uint32_t*>(of)[c + 4];
  }
}

// Weights with zero points have kernels of their own: in one they would take registers from the others.
enum Zeros { NO_ZEROS = 0, ZEROS_IN_STEPS = 1, ZEROS_BY_BLOCK = 2 };

// A step of a warp: rows `row`.. of the block, outputs `output`.. in MATRIX_TILES tiles.
template <int FORMAT, int ZEROS>
DEVICE void matrix_step(const MatrixPlace& p, const MatrixMemory<FORMAT>& m, int step, int t, int row, int output,
                        Total* acc) {
  const int g = (THREAD & 31) >> 2, c = THREAD & 3;
  uint32_t a[4];
  row_words(m, step, row + g, c, a[0], a[2]);
  row_words(m, step, row + g + 8, c, a[1], a[3]);
  const int sums[2] = {m.sum[step][row + g], m.sum[step][row + g + 8]};
  const float scales[2] = {m.scale[step][row + g], m.scale[step][row + g + 8]};
  UNROLL
  for (int n = 0; n < MATRIX_TILES; n++) {
    const int first = output + n * 8;
    uint32_t b[2];
    weight_words(m, step, first + g, c, b);
    const Pair pair = *reinterpret_cast<const Pair*>(&m.weight_scale[step][first + 2 * c]);
    int d[4];
    UNROLL
    for (int i = 0; i < 4; i++) d[i] = FLOAT_SHIFT - off_code(FORMAT) * sums[i >> 1];
    mma_s8(d, a, b);
    UNROLL
    for (int i = 0; i < 4; i++) {
      const float weight_scale = as_float(pair.v[i & 1]);
      Total& total = acc[n * 4 + i];
      if (ZEROS == NO_ZEROS) {
        total.all = fma_(as_float((uint32_t)d[i]) - SHIFTED, weight_scale * scales[i >> 1], total.all);
        continue;
      }
      const int r = row + g + (i >> 1) * 8, o = first + 2 * c + (i & 1);
      if (r >= p.rows || o / LANES >= p.groups || t >= p.steps) continue;
      const Added added = {d[i] - FLOAT_SHIFT, weight_scale, scales[i >> 1]};
      add_step(p.w, group_of(p.w, p.group0 + o / LANES), added, o % LANES, t, sums[i >> 1],
               p.a.block_sum + (int64_t)r * p.w.blocks(), total);
    }
  }
}

template <int FORMAT, int ZEROS>
DEVICE void matrix_sums(const MatrixPlace& p, MatrixMemory<FORMAT>& memory, Total* acc) {
  const int warp = THREAD >> 5, row = warp % 4 * 16, output = warp / 4 * 16, steps = p.steps;
  const Sources<FORMAT> from = sources_of<FORMAT>(p);
  UNROLL
  for (int i = 0; i < MATRIX_TILES * 4; i++) acc[i] = {0.0f, 0.0f};
  Coming<FORMAT> coming;
  fetch(p, from, 0, coming);
  for (int t0 = 0; t0 < steps; t0 += MATRIX_STEPS) {
    barrier();
    keep(coming, memory);
    barrier();
    if (t0 + MATRIX_STEPS < steps) fetch(p, from, t0 + MATRIX_STEPS, coming);
    UNROLL
    for (int s = 0; s < MATRIX_STEPS; s++) matrix_step<FORMAT, ZEROS>(p, memory, s, t0 + s, row, output, acc);
  }
}

// Stores the block's outputs by way of shared memory: written out for each of a thread's sums, the epilogue would not fit
// into the GPU's memory for instructions.
DEVICE void put_all(const ProductArgs& a, const MatrixPlace& p, const Total* acc, const float* gate, float* memory) {
  const int warp = THREAD >> 5, g = (THREAD & 31) >> 2, c = THREAD & 3;
  float* gates = memory + MATRIX_ROWS * MATRIX_OUTPUTS;
  barrier();
  UNROLL
  for (int i = 0; i < MATRIX_TILES * 4; i++) {
    const int row = warp % 4 * 16 + g + (i >> 1 & 1) * 8, output = warp / 4 * 16 + i / 4 * 8 + 2 * c + (i & 1);
    memory[row * MATRIX_OUTPUTS + output] = acc[i].all;
    if (a.epilogue == GLU) gates[row * MATRIX_OUTPUTS + output] = gate[i];
  }
  barrier();
  ONCE
  for (int at = THREAD; at < p.rows * MATRIX_OUTPUTS; at += THREADS) {
    const int row = at / MATRIX_OUTPUTS, output = at % MATRIX_OUTPUTS;
    if (output / LANES < p.groups)
      put(a, p.row0 + row, BLOCK_X * MATRIX_OUTPUTS + output, memory[at], a.epilogue == GLU ? gates[at] : 0.0f);
  }
}

// 32 outputs (of GLU: 32 gates and what they gate) [x] of 64 rows [y].
template <int FORMAT, int ZEROS>
DEVICE void matrix_block(const ProductArgs& a, uint8_t* shared) {
  MatrixMemory<FORMAT>& memory = *reinterpret_cast<MatrixMemory<FORMAT>*>(shared);
  MatrixPlace p;
  const int half = (a.w.n + LANES - 1) / LANES / (a.epilogue == GLU ? 2 : 1);
  p.w = a.w, p.row0 = BLOCK_Y * MATRIX_ROWS, p.rows = min_(MATRIX_ROWS, product_rows(a) - p.row0);
  p.group0 = BLOCK_X * (MATRIX_OUTPUTS / LANES), p.groups = min_(MATRIX_OUTPUTS / LANES, half - p.group0);
  if (p.rows <= 0) return;
  p.a = prepared_row(a.a, p.w, p.row0);
  p.steps = p.w.steps(), p.block_steps = p.w.block_steps();
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
MATRIX(matrix_int8, INT8, NO_ZEROS, 2)
MATRIX(matrix_int3, INT3, NO_ZEROS, 2)
MATRIX(matrix_int2, INT2, NO_ZEROS, 2)
MATRIX(matrix_int4_zeros, INT4, ZEROS_IN_STEPS, 1)
MATRIX(matrix_int8_zeros, INT8, ZEROS_BY_BLOCK, 1)
