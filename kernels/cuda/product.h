// Matrix products by dot products: batch 1 to some dozens of rows, limited by the weights that are read.
//
// Sums of integers are exact in any order, so the steps of 16 outputs are shared out over the threads of a block: four
// threads a step, four outputs each, whole lines of weights read once for all rows of the tile. The floats are added
// up by one thread an output and row, step after step, as kernels/cpu/gemm.inl does.
#pragma once
#include "prepare.h"

enum Epilogue { STORE = 0, ADD = 1, GLU = 2, ACTIVATE = 3 };

constexpr int PRODUCT_STEPS = 64;  // at once: 256 threads

// Of a group of 16 outputs: where it begins in each array.
struct Group {
  const uint8_t* data;
  const uint16_t* scales;
  const uint8_t* zeros;
};

DEVICE Group group_of(const Weights& w, int64_t group) {
  const int bytes = w.format == INT4 ? 2 : 1;
  return {w.data + group * LANES * w.kpad() / bytes, w.scales + group * w.blocks() * LANES,
          w.zeros ? w.zeros + group * w.blocks() * LANES / bytes : nullptr};
}

template <int FORMAT, int STEP>
struct Lines {
  static constexpr int COUNT = FORMAT == INT4 ? STEP / 8 : STEP / 4;
  Quad line[COUNT];
};

// The weights of four outputs in one step.
template <int FORMAT, int STEP>
DEVICE Lines<FORMAT, STEP> load_step(const Group& g, int step, int quarter) {
  Lines<FORMAT, STEP> w;
  const Quad* from = reinterpret_cast<const Quad*>(g.data) + (int64_t)step * w.COUNT * 4 + quarter;
  UNROLL
  for (int j = 0; j < w.COUNT; j++) w.line[j] = from[j * 4];
  return w;
}

// Output `o` of the four: its sum of integers with the step of a row.
template <int FORMAT, int STEP>
DEVICE int dot_step(const Lines<FORMAT, STEP>& w, const uint32_t* x, int sum, int o) {
  int total = FORMAT == INT4 ? -8 * sum : 0;
  UNROLL
  for (int j = 0; j < w.COUNT; j++) {
    if (FORMAT == INT4) {
      total = dp4a(w.line[j].v[o] & 0x0f0f0f0fu, x[2 * j], total);
      total = dp4a(w.line[j].v[o] >> 4 & 0x0f0f0f0fu, x[2 * j + 1], total);
    } else {
      total = dp4a(w.line[j].v[o] ^ 0x80808080u, x[j], total);
    }
  }
  return total;
}

// 8 or 128 less the zero point of an output in a block of its group.
DEVICE float off_zero(const Weights& w, const Group& g, int block, int output) {
  if (w.format == INT8) return (float)(128 - g.zeros[block * LANES + output]);
  return (float)(8 - (g.zeros[block * 8 + output % 8] >> output / 8 * 4 & 15));
}

// An output of a row as it is added up; of_block: where blocks with zero points are added up by themselves.
struct Total {
  float all, of_block;
};

// What a step adds: the integers of weights and row, and the scales of both.
struct Added {
  int32_t sum;
  float weight_scale, row_scale;
};

// Adds step t of a row whose integers add up to `row_sum`; block_sum: of the row's blocks.
DEVICE void add_step(const Weights& w, const Group& g, const Added& step, int output, int t, int row_sum, const float* block_sum,
                     Total& x) {
  const int each = w.block_steps(), block = t / each;
  if (!w.zeros_by_block()) {
    const int sum = w.zeros ? step.sum + (int)off_zero(w, g, block, output) * row_sum : step.sum;
    x.all = fma_((float)sum, step.weight_scale * step.row_scale, x.all);
    return;
  }
  if (t % each == 0) x.of_block = off_zero(w, g, block, output) * block_sum[block];
  x.of_block = fma_((float)step.sum, step.row_scale, x.of_block);
  if (t % each == each - 1) x.all = fma_(step.weight_scale, x.of_block, x.all);
}

// Goes on with a sum over steps t0 .. t1 - 1 whose integers lie in `sums` [.., 16].
DEVICE void add_steps(const Weights& w, const Group& g, const Prepared& row, const float* sums, int output, int t0, int t1,
                      Total& x) {
  for (int t = t0; t < t1; t++) {
    const float scale = half_to_float(g.scales[t / w.block_steps() * LANES + output]);
    add_step(w, g, {(int)sums[(t - t0) * LANES + output], scale, row.scale[t]}, output, t, row.sum[t], row.block_sum, x);
  }
}

// The sum of (row, output) that thread `16 row + output` gets. `sums` [M, PRODUCT_STEPS, 16] floats of shared memory.
template <int FORMAT, int STEP, int M>
DEVICE float group_product(const Weights& w, const Group& g, const Prepared& a, int rows, float* sums) {
  const int steps = w.steps(), at_once = min_(THREADS / 4, PRODUCT_STEPS);
  const int own = THREAD >> 2, quarter = THREAD & 3, row = THREAD >> 4, output = THREAD & 15;
  Total total = {0.0f, 0.0f};
  Lines<FORMAT, STEP> lines;
  if (own < min_(at_once, steps)) lines = load_step<FORMAT, STEP>(g, own, quarter);
  for (int t0 = 0; t0 < steps; t0 += at_once) {
    const int t = t0 + own;
    if (own < at_once && t < steps)
      for (int m = 0; m < M; m++) {
        if (m >= rows) break;
        const Prepared of = prepared_row(a, w, m);
        uint32_t x[STEP / 4];
        UNROLL
        for (int i = 0; i < STEP / 4; i++) x[i] = reinterpret_cast<const uint32_t*>(of.q)[t * (STEP / 4) + i];
        const int sum = of.sum[t];
        Quad made;
        UNROLL
        for (int o = 0; o < 4; o++) made.v[o] = as_bits((float)dot_step<FORMAT, STEP>(lines, x, sum, o));
        reinterpret_cast<Quad*>(sums)[(m * PRODUCT_STEPS + own) * 4 + quarter] = made;
      }
    barrier();
    // The next weights are on their way while these are added up.
    if (own < at_once && t + at_once < steps) lines = load_step<FORMAT, STEP>(g, t + at_once, quarter);
    if (row < rows)
      add_steps(w, g, prepared_row(a, w, row), sums + row * PRODUCT_STEPS * LANES, output, t0, min_(t0 + at_once, steps),
                total);
    barrier();
  }
  return total.all;
}

template <int FORMAT, int M>
DEVICE float group_product_of(const Weights& w, const Group& g, const Prepared& a, int rows, float* sums) {
  return w.step() == 32 ? group_product<FORMAT, 32, M>(w, g, a, rows, sums)
                        : group_product<FORMAT, 16, M>(w, g, a, rows, sums);
}

// Applies the epilogue to a sum and stores it.
DEVICE void put(const ProductArgs& a, int row, int output, float y, float gate) {
  const int half = a.w.n / 2;
  if (output >= (a.epilogue == GLU ? half : a.w.n)) return;
  if (a.bias) y = y + a.bias[a.epilogue == GLU ? half + output : output];
  if (a.epilogue == GLU) y = activate(a.bias ? gate + a.bias[output] : gate, a.activation) * y;
  if (a.epilogue == ACTIVATE) y = activate(y, a.activation);
  if (a.softcap > 0.0f) y = tanh_(y / a.softcap) * a.softcap;
  float* out = a.out + (int64_t)row * a.stride + output;
  *out = a.epilogue == ADD ? *out + y : y;
}

DEVICE int product_rows(const ProductArgs& a) { return a.head ? a.step->n_head : a.step->rows * a.copies; }

// The weights that a row's expert has; n, k: of one expert.
DEVICE Weights expert_weights(const ProductArgs& a, int row) {
  Weights w = a.w;
  if (!a.experts) return w;
  const int64_t expert = a.experts[row], outputs = expert * w.n;
  if (w.format < INT8) {
    w.data += outputs * w.k * (w.format == F32 ? 4 : 2);
    return w;
  }
  const Group g = group_of(w, outputs / LANES);
  w.data = g.data, w.scales = g.scales, w.zeros = g.zeros;
  return w;
}

// Rows made ready by the block itself, in its shared memory; returns them, and moves `memory` past them.
template <int M>
DEVICE Prepared prepare_here(const ProductArgs& a, const Weights& w, int row0, int rows, uint8_t*& memory) {
  Prepared made;
  Stats* stats = reinterpret_cast<Stats*>(memory);
  made.scale = reinterpret_cast<float*>(stats + M);
  made.sum = reinterpret_cast<int32_t*>(made.scale + M * w.steps());
  made.block_sum = reinterpret_cast<float*>(made.sum + M * w.steps());
  const int words = 2 * M + M * (2 * w.steps() + (w.zeros ? w.blocks() : 0));
  made.q = reinterpret_cast<int8_t*>(memory) + (words * 4 + 15) / 16 * 16;
  memory = reinterpret_cast<uint8_t*>(made.q) + M * w.kpad();
  // The normed rows lie where the sums will.
  const float* x = stage_rows(a.x + (int64_t)row0 * w.k, a.norm, rows, w.k, stats, reinterpret_cast<float*>(memory));
  for (int m = 0; m < rows; m++) {
    const Stats s = a.norm.kind == NO_NORM ? Stats{0.0f, 1.0f} : stats[m];
    quantize_row(x + (int64_t)m * w.k, a.norm, s, w, prepared_row(made, w, m));
  }
  barrier();
  if (w.zeros_by_block()) {
    for (int m = 0; m < rows; m++) sum_blocks(w, prepared_row(made, w, m));
    barrier();
  }
  return made;
}

// 16 outputs (of GLU: 16 gates and what they gate) of up to M rows a block.
template <int FORMAT, int M>
DEVICE void product_block(const ProductArgs& a, uint8_t* memory) {
  const int row0 = BLOCK_Y * M, rows = min_(M, product_rows(a) - row0), group = BLOCK_X;
  if (rows <= 0) return;
  const Weights w = expert_weights(a, row0);
  const int from = a.spread ? row0 / a.spread : row0;
  const Prepared x = a.fused ? prepare_here<M>(a, w, from, rows, memory) : prepared_row(a.a, w, from);
  float* sums = reinterpret_cast<float*>(memory);
  float gate = 0.0f;
  int64_t at = group;
  if (a.epilogue == GLU) {
    gate = group_product_of<FORMAT, M>(w, group_of(w, at), x, rows, sums);
    at += w.n / 2 / LANES;
  }
  const float y = group_product_of<FORMAT, M>(w, group_of(w, at), x, rows, sums);
  if ((THREAD >> 4) < rows) put(a, row0 + (THREAD >> 4), group * LANES + (THREAD & 15), y, gate);
}

#define PRODUCT(name, FORMAT, M)        \
  KERNEL(name, ProductArgs, 256) {      \
    SHARED(memory);                     \
    product_block<FORMAT, M>(a, memory); \
  }
PRODUCT(product_int4_1, INT4, 1)
PRODUCT(product_int4_2, INT4, 2)
PRODUCT(product_int4_4, INT4, 4)
PRODUCT(product_int4_8, INT4, 8)
PRODUCT(product_int8_1, INT8, 1)
PRODUCT(product_int8_2, INT8, 2)
PRODUCT(product_int8_4, INT8, 4)
PRODUCT(product_int8_8, INT8, 8)

// ---- float weights: sixteen lanes an output ---------------------------------------------------------

template <bool HALF>
DEVICE float float_weight(const Weights& w, int64_t at) {
  return HALF ? half_to_float(reinterpret_cast<const uint16_t*>(w.data)[at]) : reinterpret_cast<const float*>(w.data)[at];
}

constexpr int FLOAT_ROWS = 4;

// An output of up to four rows, by half a warp; every lane gets the sums.
template <bool HALF>
DEVICE void float_dots(const Weights& w, int output, const float* x, int rows, float* sums) {
  const int lane = THREAD & 15;
  UNROLL
  for (int m = 0; m < FLOAT_ROWS; m++) sums[m] = 0.0f;
  if (output < w.n)
    for (int k = lane; k < w.k; k += LANES) {
      const float weight = float_weight<HALF>(w, (int64_t)output * w.k + k);
      UNROLL
      for (int m = 0; m < FLOAT_ROWS; m++)
        if (m < rows) sums[m] = fma_(x[(int64_t)m * w.k + k], weight, sums[m]);
    }
  UNROLL
  for (int m = 0; m < FLOAT_ROWS; m++) sums[m] = sum16(sums[m]);
}

// Of four, by a number known at run time only: no memory.
DEVICE float pick(const float* x, int i) { return i < 2 ? (i ? x[1] : x[0]) : (i == 2 ? x[2] : x[3]); }

template <bool HALF>
DEVICE void float_block(const ProductArgs& a) {
  const int row0 = BLOCK_Y * a.tile, rows = min_(a.tile, product_rows(a) - row0), lane = THREAD & 15;
  if (rows <= 0) return;
  const int output = BLOCK_X * (THREADS / LANES) + THREAD / LANES;
  const Weights w = expert_weights(a, row0);
  const float* x = a.x + (int64_t)(a.spread ? row0 / a.spread : row0) * w.k;
  float gate[FLOAT_ROWS] = {0.0f, 0.0f, 0.0f, 0.0f}, y[FLOAT_ROWS];
  if (a.epilogue == GLU) float_dots<HALF>(w, output, x, rows, gate);
  float_dots<HALF>(w, a.epilogue == GLU ? w.n / 2 + output : output, x, rows, y);
  if (lane < rows) put(a, row0 + lane, output, pick(y, lane), pick(gate, lane));
}

KERNEL(product_f32, ProductArgs, 256) { float_block<false>(a); }
KERNEL(product_f16, ProductArgs, 256) { float_block<true>(a); }
