// Matrix products by dot products: batch 1 to some dozens of rows, limited by the weights that are read.
//
// Sums of integers are exact in any order, so the steps of 16 outputs are shared out over the threads of a block: four
// threads a step, four outputs each, whole lines of weights read once for all rows of the tile. The floats are added
// up by one thread an output and row, step after step, as kernels/cpu/gemm.inl does; sums and scales lie in shared
// memory then, for a load from the GPU's memory in that chain costs more than all the rest.
#pragma once
#include "prepare.h"

enum Epilogue { STORE = 0, ADD = 1, GLU = 2, ACTIVATE = 3 };

constexpr int PRODUCT_STEPS = 64;  // at once: 256 threads
// Floats of a row's sums and of its scales in shared memory, so that two rows lie in different banks.
constexpr int SUM_ROW = PRODUCT_STEPS * LANES + LANES, SCALE_ROW = PRODUCT_STEPS + 1;

// Of a group of 16 outputs: where it begins in each array.
struct Group {
  const uint8_t* data;
  const uint16_t* scales;
  const uint8_t* zeros;
};

DEVICE Group group_of(const Weights& w, int64_t group) {
  const int each = w.format == INT4 ? 2 : 1;  // zero points in a byte
  return {w.data + group * w.group_bytes(), w.scales + group * w.blocks() * LANES,
          w.zeros ? w.zeros + group * w.blocks() * LANES / each : nullptr};
}

struct alignas(8) Pair {
  uint32_t v[2];
};

// The weights of four outputs in one step, and their scales.
template <int FORMAT, int STEP>
struct Lines {
  static constexpr int COUNT = STEP * bits_of(FORMAT) / 32;
  Quad line[COUNT];
  Pair scales;
};

template <int FORMAT, int STEP>
DEVICE Lines<FORMAT, STEP> load_step(const Weights& w, const Group& g, int step, int quarter) {
  Lines<FORMAT, STEP> found;
  const Quad* from = reinterpret_cast<const Quad*>(g.data) + (int64_t)step * found.COUNT * 4 + quarter;
  UNROLL
  for (int j = 0; j < found.COUNT; j++) found.line[j] = from[j * 4];
  found.scales = reinterpret_cast<const Pair*>(g.scales + step / w.block_steps() * LANES)[quarter];
  return found;
}

// Output `o` of the four: its sum of integers with the step of a row.
template <int FORMAT, int STEP>
DEVICE int dot_step(const Lines<FORMAT, STEP>& w, const uint32_t* x, int sum, int o) {
  int total = -off_code(FORMAT) * sum;
  if (in_planes(FORMAT)) {
    UNROLL
    for (int i = 0; i < STEP / 4; i++)
      total = dp4a(plane_bytes<FORMAT>(w.line[i / 4].v[o], w.line[w.COUNT - 1].v[o], i), x[i], total);
    return total;
  }
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

// Shared memory of a block: scales of weights [PRODUCT_STEPS, 16], sums of rows [M, SUM_ROW], scales of rows
// [M, SCALE_ROW]; structs.py has the bytes.
struct Sums {
  float *weight_scale, *sum, *row_scale;
};

template <int M>
DEVICE Sums sums_in(uint8_t* memory) {
  float* first = reinterpret_cast<float*>(memory);
  return {first, first + PRODUCT_STEPS * LANES, first + PRODUCT_STEPS * LANES + M * SUM_ROW};
}

// A thread's part of the sums of integers, step t: four outputs of all rows.
template <int FORMAT, int STEP, int M>
DEVICE void keep_sums(const Weights& w, const Group& g, const Lines<FORMAT, STEP>& lines, const Prepared& a, int rows, int t,
                      const Sums& to) {
  const int own = THREAD >> 2, quarter = THREAD & 3;
  for (int m = 0; m < M; m++) {
    if (m >= rows) break;
    const Prepared of = prepared_row(a, w, m);
    uint32_t x[STEP / 4];
    UNROLL
    for (int i = 0; i < STEP / 16; i++) {
      const Quad four = reinterpret_cast<const Quad*>(of.q)[t * (STEP / 16) + i];
      UNROLL
      for (int j = 0; j < 4; j++) x[4 * i + j] = four.v[j];
    }
    Quad made;
    const int sum = of.sum[t];
    UNROLL
    for (int o = 0; o < 4; o++) {
      int dot = dot_step<FORMAT, STEP>(lines, x, sum, o);
      if (FORMAT == INT4 && w.zeros) dot += (int)off_zero(w, g, t / w.block_steps(), quarter * 4 + o) * sum;
      made.v[o] = as_bits((float)dot);
    }
    reinterpret_cast<Quad*>(to.sum + m * SUM_ROW)[own * 4 + quarter] = made;
    if (quarter == 0) to.row_scale[m * SCALE_ROW + own] = of.scale[t];
  }
  const Pair s = lines.scales;
  reinterpret_cast<Quad*>(to.weight_scale)[own * 4 + quarter] = {
      as_bits(half_to_float(s.v[0] & 0xffff)), as_bits(half_to_float(s.v[0] >> 16)),
      as_bits(half_to_float(s.v[1] & 0xffff)), as_bits(half_to_float(s.v[1] >> 16))};
}

// Goes on with a sum over n steps from t0 on. BY_BLOCK: zero points go by block.
template <bool BY_BLOCK>
DEVICE void add_steps(const Weights& w, const Group& g, const Prepared& rows, const Sums& from, int t0, int n, Total& x) {
  const int row = THREAD >> 4, output = THREAD & 15;
  const float *sum = from.sum + row * SUM_ROW + output, *scale = from.weight_scale + output;
  const float* row_scale = from.row_scale + row * SCALE_ROW;
  if (!BY_BLOCK) {
    UNROLL_8
    for (int t = 0; t < n; t++) x.all = fma_(sum[t * LANES], scale[t * LANES] * row_scale[t], x.all);
    return;
  }
  const Prepared of = prepared_row(rows, w, row);
  for (int t = 0; t < n; t++)
    add_step(w, g, {(int)sum[t * LANES], scale[t * LANES], row_scale[t]}, output, t0 + t, 0, of.block_sum, x);
}

// Where a block's outputs are: one group of 16, of GLU a second one that it gates.
struct ProductPlace {
  Weights w;
  int64_t group;
  int parts, steps, at_once;  // steps of a part; of them at once

  DEVICE_METHOD Group part(int i) const { return group_of(w, i ? group + w.n / 2 / LANES : group); }
  DEVICE_METHOD int rounds() const { return (steps + at_once - 1) / at_once; }
};

// The lines of a thread in a round; rounds of the second part come after those of the first.
template <int FORMAT, int STEP>
DEVICE void load_round(const ProductPlace& p, int part, int t0, Lines<FORMAT, STEP>& lines) {
  const int own = THREAD >> 2;
  if (part < p.parts && own < p.at_once && t0 + own < p.steps)
    lines = load_step<FORMAT, STEP>(p.w, p.part(part), t0 + own, THREAD & 3);
}

// The sum of (row, output) that thread `16 row + output` gets: of the first part, and of the second. `lines`: of the
// first round.
template <int FORMAT, int STEP, int M, bool BY_BLOCK>
DEVICE void products(const ProductPlace& p, Lines<FORMAT, STEP>& lines, const Prepared& a, int rows, uint8_t* memory, float& first,
                     float& second) {
  const Sums sums = sums_in<M>(memory);
  const int own = THREAD >> 2;
  const bool adds = (THREAD >> 4) < rows;
  for (int part = 0; part < p.parts; part++) {
    const Group g = p.part(part);
    Total total = {0.0f, 0.0f};
    for (int t0 = 0; t0 < p.steps; t0 += p.at_once) {
      const int n = min_(p.at_once, p.steps - t0);
      if (own < n) keep_sums<FORMAT, STEP, M>(p.w, g, lines, a, rows, t0 + own, sums);
      barrier();
      // The next weights are on their way while these are added up.
      if (t0 + n < p.steps) load_round(p, part, t0 + n, lines);
      else load_round(p, part + 1, 0, lines);
      if (adds) add_steps<BY_BLOCK>(p.w, g, a, sums, t0, n, total);
      barrier();
    }
    if (part) second = total.all;
    else first = total.all;
  }
}

// Applies the epilogue to a sum and stores it.
DEVICE void put(const ProductArgs& a, int row, int output, float y, float gate) {
  const int half = a.w.n / 2;
  if (output >= (a.epilogue == GLU ? half : a.w.n)) return;
  if (a.bias) {
    const float* bias = a.bias + (a.experts ? (int64_t)a.experts[row] * a.w.n : 0);
    y = y + bias[a.epilogue == GLU ? half + output : output];
    if (a.epilogue == GLU) gate = gate + bias[output];
  }
  if (a.epilogue == GLU) y = glu(gate, y, a.activation);
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

// 16 outputs (of GLU: 16 gates and what they gate) of up to M rows a block. Its first weights are asked for before its
// rows are made ready.
template <int FORMAT, int STEP, int M, bool BY_BLOCK>
DEVICE void product_block(const ProductArgs& a, const Weights& w, int row0, int rows, uint8_t* memory) {
  const ProductPlace p = {w, BLOCK_X, a.epilogue == GLU ? 2 : 1, w.steps(), min_(THREADS / 4, PRODUCT_STEPS)};
  Lines<FORMAT, STEP> lines;
  load_round(p, 0, 0, lines);
  const int from = a.spread ? row0 / a.spread : row0;
  const Prepared x = a.fused ? prepare_here<M>(a, w, from, rows, memory) : prepared_row(a.a, w, from);
  float first = 0.0f, second = 0.0f;
  products<FORMAT, STEP, M, BY_BLOCK>(p, lines, x, rows, memory, first, second);
  const bool glu = a.epilogue == GLU;
  if ((THREAD >> 4) < rows)
    put(a, row0 + (THREAD >> 4), BLOCK_X * LANES + (THREAD & 15), glu ? second : first, glu ? first : 0.0f);
}

template <int FORMAT, int M>
DEVICE void product_of(const ProductArgs& a, uint8_t* memory) {
  const int row0 = BLOCK_Y * M, rows = min_(M, product_rows(a) - row0);
  if (rows <= 0) return;
  const Weights w = expert_weights(a, row0);
  // Zero points and planes come with blocks of 32 or more.
  if (FORMAT == INT8 && w.zeros) return product_block<FORMAT, 32, M, true>(a, w, row0, rows, memory);
  return in_planes(FORMAT) || w.step() == 32 ? product_block<FORMAT, 32, M, false>(a, w, row0, rows, memory)
                                             : product_block<FORMAT, 16, M, false>(a, w, row0, rows, memory);
}

#define PRODUCT(name, FORMAT, M, blocks)          \
  KERNEL_SHARED(name, ProductArgs, 256, blocks) { \
    SHARED(memory);                               \
    product_of<FORMAT, M>(a, memory);             \
  }
PRODUCT(product_int4_1, INT4, 1, 2)
PRODUCT(product_int4_2, INT4, 2, 2)
PRODUCT(product_int4_4, INT4, 4, 2)
PRODUCT(product_int4_8, INT4, 8, 2)
PRODUCT(product_int8_1, INT8, 1, 2)
PRODUCT(product_int8_2, INT8, 2, 1)
PRODUCT(product_int8_4, INT8, 4, 1)
PRODUCT(product_int8_8, INT8, 8, 1)
PRODUCT(product_int3_1, INT3, 1, 2)
PRODUCT(product_int3_2, INT3, 2, 2)
PRODUCT(product_int3_4, INT3, 4, 2)
PRODUCT(product_int3_8, INT3, 8, 2)
PRODUCT(product_int2_1, INT2, 1, 2)
PRODUCT(product_int2_2, INT2, 2, 2)
PRODUCT(product_int2_4, INT2, 4, 2)
PRODUCT(product_int2_8, INT2, 8, 2)

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
