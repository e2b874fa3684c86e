// What an instruction set provides: one table of functions, the same arithmetic in every one of them.
//
// Row invariance: whatever the rows of a call, their order, the threads and the width of the vectors,
// an output is made of the same operations in the same order. Integer sums are exact in any order;
// floating-point ones are kept in a fixed order:
// - a product with quantized weights adds up its steps (32 inputs; 16 for blocks of 16) one after another,
//   acc = fma(float(integer sum), weight scale * activation scale, acc).
//   Zero points of int4 are part of the integer sum of each step. A block of int8 that has one is added up by itself: it
//   begins with (128 - zero point) * the sum of the block's activations (that of its steps one after another), goes on with
//   b = fma(float(integer sum), activation scale, b), and ends with acc = fma(weight scale, b, acc);
// - one whose rows have one scale each, of weights and of activations, is float(integer sum of all inputs) * (weight scale *
//   activation scale);
// - sums along a row run in 16 lanes, lane i taking elements i, i+16, ..., and then halves are added to
//   halves: i + (i+8), 4, 2, 1.
// Compiled with -ffp-contract=off: multiply-adds are fused only where the code says fma.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kv.h"
#include "ssm.h"

#if defined(_MSC_VER)
#define ED_IN static __forceinline
#define ED_METHOD __forceinline
#define ED_APART static __declspec(noinline)
#define ED_INLINED
#else
#define ED_IN static inline __attribute__((always_inline))
#define ED_METHOD inline __attribute__((always_inline))
#define ED_APART static __attribute__((noinline))
#define ED_INLINED __attribute__((always_inline))  // of a lambda
#endif
// Functions of shared types are inlined by force: a copy compiled for one instruction set must not be the
// one the linker keeps for all.

namespace edgedec {

enum Format { NONE = 0, F32 = 1, F16 = 2, INT8 = 3, INT4 = 4, INT3 = 5, INT2 = 6, INT5 = 7, INT6 = 8, NL4 = 9, UINT2 = 10, MX4 = 11 };
constexpr bool in_planes(int format) { return format >= INT3 && format != NL4; }
constexpr int BITS[] = {0, 0, 0, 8, 4, 3, 2, 5, 6, 4, 2, 4};
constexpr int bits_of(int format) { return BITS[format]; }
// What the codes of NL4 stand for: ggml's table for IQ4_NL.
constexpr int8_t NL4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Of MX4: 12 more than twice its 4-bit floats (E2M1), which are 0 0.5 1 1.5 2 3 4 6 and the same with a minus.
constexpr uint8_t MX4_VALUES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
// Bytes of 16 outputs in a step of so many inputs, in lines of 64.
constexpr int step_lines(int format, int step) { return step * bits_of(format) / 32; }
// A weight is (code * step - zero) * scale, where no zero points are stored. Of int2 products take code * step from its bits.
constexpr int code_step(int format) { return format == INT2 ? 2 : 1; }
constexpr int ZEROS_OF[] = {0, 0, 0, 128, 8, 4, 3, 16, 32, 0, 0, 12};
constexpr int code_zero(int format) { return ZEROS_OF[format]; }
enum Layout { ROWS = 0, INTERLEAVE16 = 1 };
enum Activation { SILU = 0, GELU_TANH = 1, GELU = 2, RELU = 3, CLAMPED_SWIGLU = 4, RELU2 = 5, XIELU = 6 };

constexpr int LANES = 16;   // outputs of a group in the packed layout
constexpr int CHUNK = 256;  // keys of an attention chunk
constexpr int KEPT_WEIGHTS = CHUNK + 16;
constexpr int SUPER = 256;  // weights of a scale that has parts

// A weight matrix (n out, k in) as it lies in the weights file.
struct Matrix {
  int32_t format, layout, n, k, block;
  // What `zeros` are: 0: zero points. 1: float16 laid out as the scales, that of a block added to its weights; blocks of
  // 32. 2: parts of scales, a byte of each block of 16, laid out as the zero points of int8: int8, and a block's scale is
  // that times the float16 of its 256 weights in `scales`. Of UINT2 the low nibble, unsigned; `scales` has a second
  // float16 there, and that times the high nibble is the block's offset. 3: nothing, and all blocks of a row have the
  // same scale, as a row of activations has one; INT8 in blocks of 32.
  int32_t offsets;
  const uint8_t* data;
  const uint16_t* scales;
  // What stands for zero in each block, instead of 8 (int4) or 128; null: none. Blocks of 32 or more. By rows
  // uint8 [n, blocks], of int4 two in a byte, the low nibble first; packed [groups, blocks, 16], of int4 8 bytes: output i
  // of a group in byte i % 8, the low nibble for the first eight.
  const uint8_t* zeros;

  int blocks() const { return (k + block - 1) / block; }
  int kpad() const { return quantized() ? blocks() * block : k; }
  bool parts() const { return offsets == 2; }
  bool row_scales() const { return offsets == 3; }
  // Float16 in `scales` of a row.
  int scale_count() const { return !parts() ? blocks() : kpad() / SUPER * (format == UINT2 ? 2 : 1); }
  // Inputs of a record of activations. With one scale a row it has them all, in whole lines.
  int step() const { return row_scales() ? (kpad() + 63) / 64 * 64 : block == 16 ? 16 : 32; }
  int steps() const { return row_scales() ? 1 : kpad() / step(); }
  int block_steps() const { return block / step(); }
  int groups() const { return (n + LANES - 1) / LANES; }
  bool zeros_in_steps() const { return zeros && format == INT4 && !offsets; }
  bool quantized() const { return format >= INT8; }
  size_t group_bytes() const { return (size_t)LANES * kpad() * bits_of(format) / 8; }
  // Bytes of the zero points of a row (by rows), or of a group (packed).
  size_t zero_bytes() const {
    if (!zeros) return 0;
    if (layout == ROWS) return offsets == 1 ? 2 * blocks() : zeros_in_steps() ? (blocks() + 1) / 2 : blocks();
    return packed_zero_bytes();
  }
  size_t packed_zero_bytes() const { return zeros ? (size_t)blocks() * LANES * 2 / (offsets == 1 ? 1 : zeros_in_steps() ? 4 : 2) : 0; }
  // The zero points from row `row` on, the first of its group; null if there are none.
  const uint8_t* zeros_from(int64_t row) const {
    return zeros ? zeros + (layout == ROWS ? row : row / LANES) * zero_bytes() : nullptr;
  }
  int zero(int row, int block) const {
    if (!zeros || offsets) return code_zero(format);
    const uint8_t* p = zeros_from(row);
    if (layout == ROWS) return format == INT4 ? p[block / 2] >> 4 * (block % 2) & 15 : p[block];
    return format == INT4 ? p[block * 8 + row % 8] >> row % LANES / 8 * 4 & 15 : p[block * LANES + row % LANES];
  }
  // Rows row0 .. row0 + count - 1 as a matrix of their own: whole groups, or a layout in rows.
  Matrix slice(int64_t row0, int count) const {
    Matrix part = *this;
    part.n = count;
    if (!quantized()) {
      part.data += (size_t)row0 * k * (format == F32 ? 4 : 2);
    } else {
      part.data += group_bytes() / LANES * row0;
      part.scales += (size_t)row0 * scale_count();
      part.zeros = zeros_from(row0);
    }
    return part;
  }
  // Bytes that `product` needs for two strips of two groups in the packed layout.
  size_t scratch() const { return layout == ROWS && quantized() ? 4 * packed_bytes() : 0; }
  // Of a group in the packed layout: weights, scales, zero points.
  size_t packed_bytes() const {
    return group_bytes() + (size_t)scale_count() * LANES * 2 + packed_zero_bytes();
  }
};

// Rows of activations ready to be multiplied. Quantized: a row is records, one a step: its int8 inputs, ordered as the
// weights of the format want them (int4, nl4: 0 2 4 6 1 3 5 7 of every eight; all others as they come), and a Step. For float weights only `x` is read.
struct QuantizedActivations {
  // Beside the inputs of a step: what one unit of them is, -`stands_for_zero` times their sum; and for weights with zero
  // points their sum if `zeros_in_steps`, else, where the step begins a block, the scaled sum of the block (so with
  // offsets too); less their sum.
  struct Step {
    float scale;
    int32_t offset;
    float sum;
    int32_t less;
  };
  int8_t* records;
  const float* x;
  int32_t steps, step;

  // Bytes from row to row: whole lines, and not a multiple of a page, so that adjacent rows do not compete for the same
  // cache lines.
  ED_METHOD static size_t row_bytes(const Matrix& w) {
    return w.quantized() ? QuantizedActivations{nullptr, nullptr, w.steps(), w.step()}.row_bytes() : 0;
  }
  ED_METHOD size_t row_bytes() const { return (steps * record_bytes(step) + 127) / 64 * 64; }
  ED_METHOD static constexpr size_t record_bytes(int step) { return step + sizeof(Step); }
  ED_METHOD int8_t* record(int64_t row, int64_t t) const { return records + row * row_bytes() + t * record_bytes(step); }
  ED_METHOD Step& about(int64_t row, int64_t t) const { return *(Step*)(record(row, t) + step); }
};

enum Epilogue { STORE = 0, ADD = 1, GLU = 2, ACTIVATE = 3 };

// out[m, n] = rows[m] . weights[n] (+ bias); ADD adds it to what is there; GLU: the first half of the
// outputs is the gate of the second, out is [rows, n / 2]; ACTIVATE: the activation of each output.
struct Product {
  Matrix w;
  QuantizedActivations a;
  const float* bias;
  float* out;
  int64_t stride;
  int32_t rows, epilogue, activation;
  float softcap;
};

// One block's attention of one sequence. Slot s of its cache lies in page s / PAGE_SLOTS: keys of head h at
// h * head_stride, each key in `row_bytes`; values the same, `values` bytes after the keys. The first `length` slots are
// committed; slot length + i is row i of the pending tree. Row r is the r-th computed row; it sees all committed
// slots and, of the tree, its path: rows path[begin[r]] ... path[end[r] - 1], ascending; without lists, a chain:
// rows 0 to first + r, the last its own.
// A key's *rank* is its number among all keys the row sees (or saw, before a window hid them); chunks of CHUNK ranks are
// summed apart and merged in order, so that a row's result does not depend on slots, on other rows or on threads.
// A window of w hides positions <= own position - w, but never those below `sinks`. `slot_positions` null: positions
// are ranks, and a row's own key is its last.
struct Attention {
  int32_t heads, kv_heads, dim, window, format, rows, length, first;
  float scale, softcap;
  int64_t row_bytes, head_stride, values;
  uint8_t* const* pages;
  const float* q;  // [rows, heads, dim], stride in floats
  int64_t q_stride;
  float* out;  // [rows, heads * dim]
  int64_t out_stride;
  const int32_t *begin, *end, *path;  // null for a chain
  int32_t sinks = 0;
  const int64_t* slot_positions = nullptr;  // [length + rows of the tree]
  const int64_t* row_positions = nullptr;   // [rows]
  // Where `attend` keeps exp(score - the chunk's maximum) and, after CHUNK of them, that maximum, for attention_sums:
  // [rows, heads, chunks, KEPT_WEIGHTS]; null: nowhere, and attention_sums makes them again.
  float* kept = nullptr;
  int64_t kept_chunks = 0;
  const float* bias = nullptr;  // added to the scores of ranks, whole chunks of them; null: nothing
  int32_t text = 0;  // rows of a whole text, which see each other; a window then reaches to both sides. 0: they do not
  int32_t lanes = 0;  // whether such rows may be computed as lanes: of an encoder's, floats, whose scores get nothing added
  // Added to the scores of a head by distance: that of key - row at [head * distance_stride + key - row]; null: nothing.
  const float* distance = nullptr;
  int64_t distance_stride = 0;
  const float* relative = nullptr;  // [rows, heads, relative_stride], added to the scores of keys of a text; null: nothing
  int64_t relative_stride = 0;
  const float* sink_logit = nullptr;  // [heads]: a score of no token, which has no value; null: none
  const float* slopes = nullptr;  // [heads], times the distance of a key from the row taken from its scores; null: nothing
  const int64_t* row_at = nullptr;  // [rows], the positions of rows, where there are slopes
  const int64_t* slot_at = nullptr;  // [length + rows of the tree], those of keys; null: positions are ranks

  ED_METHOD int group() const { return heads / kv_heads; }
  // The last rank that a row sees.
  ED_METHOD int rank(int row) const {
    if (text) return window && length + row + window < length + text ? length + row + window - 1 : length + text - 1;
    return begin ? length + end[row] - begin[row] - 1 : length + first + row;
  }
  ED_METHOD int first_rank(int row) const {
    const int own = text ? length + row : rank(row);
    return window && !slot_positions && own >= window ? own - window + 1 : 0;
  }
  // The slot of a rank that a row sees.
  ED_METHOD int slot(int row, int rank) const {
    return begin && rank >= length ? length + path[begin[row] + rank - length] : rank;
  }
  // What is kept of a query head of a row and a chunk.
  ED_METHOD float* kept_of(int row, int head, int chunk) const {
    return kept + (((int64_t)row * heads + head) * kept_chunks + chunk) * KEPT_WEIGHTS;
  }
  // Whether a window hides a slot from a row, where positions are not ranks.
  ED_METHOD bool hides(int row, int slot) const {
    return slot_positions[slot] <= row_positions[row] - window && slot_positions[slot] >= sinks;
  }
  // Whether any of rows row0 to row1 may see a key of the chunk: if not, there is nothing to attend or merge.
  ED_METHOD bool sees(int row0, int row1, int chunk) const {
    int from = chunk * CHUNK, to = from + CHUNK;
    for (int row = row0; row < row1; row++)
      if (rank(row) >= from && (from < sinks || first_rank(row) < to)) return true;
    return false;
  }
};

struct Kernels {
  const char* name;
  // The amount that `offset` subtracts from each weight of a matrix: the code of zero, unless products subtract it.
  int (*stands_for_zero)(const Matrix& w);
  // One row of n floats over its root mean square, times weight.
  void (*norm)(const float* x, const float* weight, int n, float eps, float* y);
  // One row less its mean, over its standard deviation, times weight, plus bias (or null).
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int n, float eps, float* y);
  // Steps step0 to step1 (of weights with zero points, of whole blocks) of one row x of w.k floats -> row m of `a`, as
  // products with `w` want them.
  void (*quantize)(const float* x, const Matrix& w, const QuantizedActivations& a, int m, int step0, int step1);
  // Groups group0 to group1 of a product; of GLU: groups of the gate. `scratch`: w.scratch() bytes.
  void (*product)(const Product& p, int group0, int group1, uint8_t* scratch);
  // One row of an embedding table.
  void (*embed)(const Matrix& w, int row, float scale, float* y);
  // x of `dim` turned by its position; cos and sin of `pairs`.
  void (*rope)(float* x, int dim, const float* cos, const float* sin, int pairs);
  // y[i] = activation(gate[i]) * up[i]; y[i] = activation(x[i]); y[i] += x[i].
  void (*glu)(const float* gate, const float* up, int n, int activation, float* y);
  void (*activate)(const float* x, int n, int activation, float* y);
  void (*add)(const float* x, int n, float* y);
  // The largest of n floats; the sum of exp((x - max) * scale), in 16 lanes.
  float (*reduce_max)(const float* x, int n);
  float (*sum_exp)(const float* x, int n, float max, float scale);
  // One key or value of `dim` floats in a cache's format, and back.
  void (*store_kv)(const float* x, int dim, int format, uint8_t* out);
  void (*load_kv)(const uint8_t* row, int dim, int format, float* x);
  // The part that chunk `chunk` has in rows row0 to row1 of kv head h, all its query heads:
  // `part` [row1 - row0, group, dim + 2]: max, sum of exp, weighted values. An empty chunk gives (-inf, 0, 0).
  void (*attend)(const Attention& a, int h, int row0, int row1, int chunk, float* part, uint8_t* scratch);
  // Merge a later part into `total`, n queries; both [n, dim + 2].
  void (*merge)(float* total, const float* part, int n, int dim);
  // Divide by the sums: total [row1 - row0, group, dim + 2] -> a.out.
  void (*finish)(const Attention& a, int h, int row0, int row1, const float* total);
  // sums[slot] += the attention that rows row0 to row1 of kv head h pay to each slot; `total` as for finish.
  void (*attention_sums)(const Attention& a, int h, int row0, int row1, const float* total, float* sums,
                         uint8_t* scratch);
  // For `probe.cpp`: reads memory; multiplies and adds from registers and returns the number of multiply-adds.
  void (*probe_read)(const uint8_t* p, uint64_t bytes);
  int64_t (*probe_int8)(int64_t rounds);
  // y[i] = exp(x[i] - shift); y[i] = 1 / (1 + exp(-x[i])); y[i] = fma(scale, x[i], y[i]).
  void (*exp_shifted)(const float* x, int n, float shift, float* y);
  void (*sigmoid)(const float* x, int n, float* y);
  void (*scale_add)(const float* x, int n, float scale, float* y);
  // out[i] = silu(sum of weights[t * stride + i] * taps[t][i], the first tap first, + bias[i]).
  void (*conv)(const float* const* taps, int n_taps, const float* weights, int64_t stride, const float* bias, int n,
               float* out);
  // dt[i] = softplus(x[i] + bias[i]) clipped to min .. max; decay[i] = exp(dt[i] * a[i]).
  void (*ssm_dt)(const float* x, const float* bias, const float* a, int n, float min, float max, float* dt, float* decay);
  // Lane groups group0 to group1 of one head.
  void (*ssm_step)(const SsmStep& s, int group0, int group1);
  // y[i] = softplus(x[i] + bias[i]).
  void (*softplus)(const float* x, const float* bias, int n, float* y);
  // Lane groups group0 to group1 of the channels.
  void (*s6_step)(const S6Step& s, int group0, int group1);
  // Lane groups group0 to group1 of one head, n rows one after another: each starts from the state of the one before.
  void (*delta_steps)(const SsmStep* steps, int n, int group0, int group1);
  // Lane groups group0 to group1 of one head.
  void (*rwkv7_step)(const SsmStep& s, int group0, int group1);
  // Capped scores of chunk `chunk` by the query heads of kv head h of row 0: out [group, CHUNK], up to its last rank.
  void (*scores)(const Attention& a, int h, int chunk, float* out, uint8_t* scratch);
  // The least and the largest of n keys in each dimension, rounded outward to bfloat16: out [2][dim up to a multiple of
  // 16]. `scratch`: three such rows of floats.
  void (*bounds)(const uint8_t* rows, int64_t row_bytes, int dim, int format, int n, uint16_t* out, float* scratch);
  // out[p] = the most that any of n queries can score among the keys whose bounds stand at pages[p] + offset; q
  // [n][2][dim up to a multiple of 16]: the positive part of each query, then the negative one.
  void (*page_scores)(const float* q, int n, const uint16_t* const* pages, int64_t offset, int dim, int count,
                      float* out);
  // out[i] = the largest of x[i], x[i + width], ...; width: a multiple of 64; the last n % 16 count as of x[0]. Whether
  // one of x is NaN or +infinity.
  bool (*maxima)(const float* x, int n, int width, float* out);
  // The places of x[i] >= least, ascending; returns how many.
  int (*at_least)(const float* x, int n, float least, int32_t* out);
};

}  // namespace edgedec
