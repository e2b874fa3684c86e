// Operations before products: embedding rows, norms, quantization of rows.
#pragma once
#include "args.h"
#include "arith.h"

// ---- norms: what each element is multiplied by, and what is taken off before -----------------------

struct Stats {
  float mean, scale;
};

// Of one row, by one warp: sixteen lanes along the row (the other sixteen do the same).
DEVICE Stats row_stats(const float* x, const Norm& norm, int n) {
  if (norm.kind == NO_NORM) return {0.0f, 1.0f};
  const int lane = THREAD & 15;
  float mean = 0.0f, squares = 0.0f;
  if (norm.kind == LAYER) {
    float sum = 0.0f;
    UNROLL_8
    for (int i = lane; i < n; i += LANES) sum = sum + x[i];
    mean = sum16(sum) / (float)n;
    UNROLL_8
    for (int i = lane; i < n; i += LANES) squares = fma_(x[i] - mean, x[i] - mean, squares);
  } else {
    UNROLL_8
    for (int i = lane; i < n; i += LANES) squares = fma_(x[i], x[i], squares);
  }
  const float size = sum16(squares) / (float)n;
  return {mean, size <= FLOAT_MAX ? 1.0f / sqrt_(size + norm.eps) : not_a_number()};
}

DEVICE float normed(float x, const Norm& norm, const Stats& s, int i) {
  if (norm.kind == NO_NORM) return x;
  if (norm.kind == RMS) return x * s.scale * norm.weight[i];
  const float y = (x - s.mean) * s.scale * norm.weight[i];
  return norm.bias ? y + norm.bias[i] : y;
}

// ---- rows quantized --------------------------------------------------------------------------------

// Eight inputs from `i` on, zeros after the last.
DEVICE void load_eight(const float* x, const Norm& norm, const Stats& stats, int i, int k, float* v) {
  if (k % 4 == 0 && i + 8 <= k) {
    const Quad* from = reinterpret_cast<const Quad*>(x + i);
    const Quad low = from[0], high = from[1];
    UNROLL
    for (int j = 0; j < 8; j++) v[j] = normed(as_float(j < 4 ? low.v[j & 3] : high.v[j & 3]), norm, stats, i + j);
    return;
  }
  UNROLL
  for (int j = 0; j < 8; j++) v[j] = i + j < k ? normed(x[i + j], norm, stats, i + j) : 0.0f;
}

// Eight of them as they lie: of int4 in the order 0 2 4 6 1 3 5 7. Returns their sum.
DEVICE int store_eight(const float* v, float inverse, int format, uint32_t* to) {
  uint32_t words[2] = {0, 0};
  int sum = 0;
  UNROLL
  for (int j = 0; j < 8; j++) {
    const int q = (int8_t)round_int(v[j] * inverse), word = format == INT4 ? j & 1 : j >> 2;
    const uint32_t byte = (uint32_t)(q & 255) << 8 * (format == INT4 ? j >> 1 : j & 3);
    if (word) words[1] |= byte;
    else words[0] |= byte;
    sum += q;
  }
  to[0] = words[0], to[1] = words[1];
  return sum;
}

// One row of w.k floats, by all threads of the block, eight inputs each: four threads a step of 32, two one of 16.
DEVICE void quantize_row(const float* x, const Norm& norm, const Stats& stats, const Weights& w, const Prepared& to) {
  const int each = w.step() / 8, eights = w.kpad() / 8;
  for (int from = 0; from < eights; from += THREADS) {
    const int e = from + THREAD, t = e / each;
    float v[8], top = 0.0f, nothing = 0.0f;  // 0; NaN of a NaN or an infinity: then the scale is, and so all outputs
    load_eight(x, norm, stats, e * 8, w.k, v);
    UNROLL
    for (int j = 0; j < 8; j++) top = larger(abs_(v[j]), top), nothing = nothing + (v[j] - v[j]);
    for (int d = each / 2; d; d /= 2) {
      top = larger(shuffle_xor(top, d), top);
      nothing = nothing + shuffle_xor(nothing, d);
    }
    const float size = top + nothing, inverse = size > 0.0f ? 127.0f / size : 0.0f;
    int sum = 0;
    if (e < eights) sum = store_eight(v, inverse, w.format, reinterpret_cast<uint32_t*>(to.q) + e * 2);
    for (int d = each / 2; d; d /= 2) sum += shuffle_xor(sum, d);
    if (e < eights && e % each == 0) to.scale[t] = size * (1.0f / 127.0f), to.sum[t] = sum;
  }
}

// Rows [rows, k] in shared memory, and what their norm needs of each; nothing if there is no norm.
DEVICE const float* stage_rows(const float* x, const Norm& norm, int rows, int k, Stats* stats, float* memory) {
  if (norm.kind == NO_NORM) return x;
  if (k % 4 == 0) {
    UNROLL_8
    for (int i = THREAD; i < rows * k / 4; i += THREADS)
      reinterpret_cast<Quad*>(memory)[i] = reinterpret_cast<const Quad*>(x)[i];
  } else {
    for (int i = THREAD; i < rows * k; i += THREADS) memory[i] = x[i];
  }
  barrier();
  for (int m = THREAD >> 5; m < rows; m += THREADS >> 5) {
    const Stats found = row_stats(memory + (int64_t)m * k, norm, k);
    if ((THREAD & 31) == 0) stats[m] = found;
  }
  barrier();
  return memory;
}

// The sums of blocks, after all steps of the row are there.
DEVICE void sum_blocks(const Weights& w, const Prepared& to) {
  const int each = w.block_steps();
  for (int b = THREAD; b < w.blocks(); b += THREADS) {
    float total = 0.0f;
    for (int t = b * each; t < (b + 1) * each; t++) total = total + to.scale[t] * (float)to.sum[t];
    to.block_sum[b] = total;
  }
}

DEVICE Prepared prepared_row(const Prepared& all, const Weights& w, int row) {
  return {all.q + (int64_t)row * w.kpad(), all.scale + (int64_t)row * w.steps(), all.sum + (int64_t)row * w.steps(),
          all.block_sum + (int64_t)row * w.blocks()};
}

// A row a block; shared memory: 16 bytes, and the row if it is normed.
KERNEL(prepare, PrepareArgs, 256) {
  SHARED(memory);
  const int row = BLOCK_X;
  if (row >= (a.head ? a.step->n_head : a.step->rows * a.copies)) return;
  Stats* stats = reinterpret_cast<Stats*>(memory);
  const float* x = stage_rows(a.x + (int64_t)(a.head ? a.step->head_rows[row] : row) * a.k, a.norm, 1, a.k, stats,
                              reinterpret_cast<float*>(memory + 16));
  const Stats s = a.norm.kind == NO_NORM ? Stats{0.0f, 1.0f} : *stats;
  if (a.normed)
    for (int i = THREAD; i < a.k; i += THREADS) a.normed[(int64_t)row * a.k + i] = normed(x[i], a.norm, s, i);
  if (a.w.format < INT8) return;
  const Prepared to = prepared_row(a.out, a.w, row);
  quantize_row(x, a.norm, s, a.w, to);
  if (!a.w.zeros_by_block()) return;
  barrier();
  sum_blocks(a.w, to);
}

// ---- the embedding ---------------------------------------------------------------------------------

DEVICE float zero_point(const Weights& w, int row, int block) {
  if (!w.zeros) return w.format == INT8 ? 128.0f : (float)off_code(w.format);
  const int64_t at = (int64_t)(row / LANES) * w.blocks() + block;
  if (w.format == INT8) return (float)w.zeros[at * LANES + row % LANES];
  return (float)(w.zeros[at * 8 + row % 8] >> row % LANES / 8 * 4 & 15);
}

// The code of input i of an output, times its step; lines: of its group, from its own four bytes on.
DEVICE int code_at(int format, const uint8_t* lines, int i) {
  if (format == INT8) return lines[i / 4 * 64 + i % 4];
  if (format == INT4) return lines[i / 8 * 64 + i % 8 / 2] >> (i & 1) * 4 & 15;
  const uint8_t* step = lines + i / 32 * bits_of(format) * 64 + i % 4;
  const int low = step[i % 32 / 16 * 64] >> i / 4 % 4 * 2 & 3;
  return format == INT2 ? 2 * low : low | (step[128] >> i % 32 / 4 & 1) << 2;
}

DEVICE float embedding(const Weights& w, int row, int i) {
  if (w.format == F32) return reinterpret_cast<const float*>(w.data)[(int64_t)row * w.k + i];
  if (w.format == F16) return half_to_float(reinterpret_cast<const uint16_t*>(w.data)[(int64_t)row * w.k + i]);
  const int block = i / w.block;
  const int64_t group = row / LANES;
  const int q = code_at(w.format, w.data + group * w.group_bytes() + row % LANES * 4, i);
  return ((float)q - zero_point(w, row, block)) * half_to_float(w.scales[(group * w.blocks() + block) * LANES + row % LANES]);
}

KERNEL(embed, EmbedArgs, 256) {
  const int row = BLOCK_X;
  if (row >= a.step->rows) return;
  const int token = a.step->tokens[row];
  float* out = a.out + (int64_t)row * a.hidden;
  if (token < 0) {
    const float* given = a.step->given + (int64_t)(-1 - token) * a.hidden;
    for (int i = THREAD; i < a.hidden; i += THREADS) out[i] = given[i];
    return;
  }
  const float* place = a.positions ? a.positions + (int64_t)a.step->positions[row] * a.hidden : nullptr;
  UNROLL_8
  for (int i = THREAD; i < a.hidden; i += THREADS) {
    const float y = embedding(a.w, token, i) * a.scale;
    out[i] = place ? y + place[i] : y;
  }
  if (a.norm.kind == NO_NORM) return;
  barrier();
  const Stats s = row_stats(out, a.norm, a.hidden);
  barrier();
  for (int i = THREAD; i < a.hidden; i += THREADS) out[i] = normed(out[i], a.norm, s, i);
}

// ---- between products ------------------------------------------------------------------------------

DEVICE Norm weights_from(const Norm& norm, int i) {
  return {norm.weight + i, norm.bias ? norm.bias + i : nullptr, norm.kind, norm.eps};
}

// Rows normed by parts and added to, or stored in, `out`: a row a block, a part a warp at a time.
KERNEL(norm_rows, RowsArgs, 256) {
  const int row = BLOCK_X, lane = THREAD & 31;
  if (row >= a.step->rows) return;
  for (int part = THREAD >> 5; part * a.part < a.width; part += THREADS >> 5) {
    const float* x = a.x + (int64_t)row * a.stride + part * a.part;
    float* out = a.out + (int64_t)row * a.stride + part * a.part;
    const Stats s = row_stats(x, a.norm, a.part);
    for (int i = lane; i < a.part; i += 32) {
      const float y = normed(x[i], weights_from(a.norm, part * a.part), s, i);
      out[i] = a.add ? out[i] + y : y;
    }
  }
}

// linear * x + above * x^2 above 0, linear * x + below * (exp(min(x, most)) - 1 - x) below.
DEVICE float xielu(const GluArgs& a, float x) {
  const float bent = x > 0.0f ? a.above * (x * x) : a.below * (exp_(smaller(a.most, x)) - 1.0f - x);
  return a.linear * x + bent;
}

// Activations where the product could not do them: its halves are no whole groups, or they are XIELU.
KERNEL(gated, GluArgs, 256) {
  const int row = BLOCK_X;
  if (row >= a.step->rows * a.copies) return;
  const float* x = a.x + (int64_t)row * a.inner * (a.gated ? 2 : 1);
  float* out = a.out + (int64_t)row * a.inner;
  for (int i = THREAD; i < a.inner; i += THREADS) {
    if (a.activation == XIELU) out[i] = xielu(a, x[i]);
    else out[i] = a.gated ? glu(x[i], x[a.inner + i], a.activation) : activate(x[i], a.activation);
  }
}

KERNEL(copy_rows, CopyArgs, 256) {
  const int row = BLOCK_X;
  if (row >= a.step->rows) return;
  for (int i = THREAD; i < a.width; i += THREADS) {
    const float x = a.x[(int64_t)row * a.stride + i];
    a.out[(int64_t)row * a.width + i] = a.limit == 0.0f ? x : x > a.limit ? a.limit : x < 0.0f - a.limit ? 0.0f - a.limit : x;
  }
}
