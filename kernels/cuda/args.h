// The arguments of kernels: structs of addresses, then of numbers, mirrored by kernels/device/structs.py and state_structs.py.
#pragma once
#include "arith.h"
#include "device.h"

// A weight matrix (n out, k in) on the device. Quantized ones lie packed in groups of 16 outputs (kernels/cpu/kernels.h,
// INTERLEAVE16): 4 bytes of each output a line, lines one after another; scales and zero points [groups, blocks, 16].
struct Weights {
  const uint8_t* data;
  const uint16_t* scales;
  const uint8_t* zeros;  // null: none
  int32_t format, n, k, block;

  DEVICE_METHOD int blocks() const { return (k + block - 1) / block; }
  DEVICE_METHOD int kpad() const { return blocks() * block; }
  DEVICE_METHOD int step() const { return block == 16 ? 16 : 32; }
  DEVICE_METHOD int steps() const { return kpad() / step(); }
  DEVICE_METHOD int block_steps() const { return block / step(); }
  DEVICE_METHOD int64_t group_bytes() const { return (int64_t)(LANES / 8) * bits_of(format) * kpad(); }
  // Whether zero points are part of the integer sums (kernels/cpu/kernels.h), and whether blocks are added up by themselves.
  DEVICE_METHOD bool zeros_in_steps() const { return zeros && format == INT4; }
  DEVICE_METHOD bool zeros_by_block() const { return zeros && !zeros_in_steps(); }
};

struct Norm {
  const float *weight, *bias;
  int32_t kind;
  float eps;
};

// Rows made ready for a product with quantized weights: int8 [rows, kpad], of int4 every eight in the order
// 0 2 4 6 1 3 5 7; of each step a scale and the sum of its q; where zero points go by block, the sum of each.
struct Prepared {
  int8_t* q;
  float* scale;
  int32_t* sum;
  float* block_sum;
};

// The rows of one sequence in a view: the blocks of the model whose slots are the same share a view.
struct View {
  int32_t length;  // committed slots; row i of the tree lies in slot length + i
  int32_t first;   // the first of the sequence's rows in the call
  int32_t pages;   // where its pages begin in Step::pages
  int32_t slots;   // where the positions of its slots begin in Step::slot_positions; -1: positions are ranks
};

// The state of a recurrent block for one sequence. Rows of its tree [.., row floats]: values before and after the
// convolution, dt and decay of each head.
struct Recurrent {
  const float *start, *history;  // before the tree; the last rows before their convolution, oldest first
  float *next, *rows;            // after the last row that was run
  int64_t first, call_row;       // rows of the tree from `first` on are rows `call_row`.. of the call
};

// The committed slots of a kv head that rows row0 .. row0 + rows - 1 of the call see.
struct ViewSight {
  int32_t sequence, row0, rows;
  int32_t first, last;      // pages below `first` and from `last` on are seen; and
  int32_t chosen, n_chosen; // those listed from `chosen` on; and
  int32_t count, left;      // of the `left` others the `count` with the highest bounds
  int32_t all, seen;        // pages of all slots; how many are seen
  int32_t length;           // committed slots in those
  int32_t slots, n_slots, runs;  // slots listed one by one from there on; how many each stands for (-1: itself)
  int32_t striped;          // or those whose score is at most `theta` (a float's bits) below the anchor
  uint32_t theta;
  int32_t reserved;
};

// Of blocks that see their slots alike: items of attention and the groups of rows that see the same.
struct ViewPlan {
  const int32_t *items;  // [n_items, 6]: sequence, first row, rows, chunk, whether of slots one by one, group
  const int32_t *part, *part_row, *chunks, *page_chunks;  // [rows], as in Step; how many of the items are of pages
  const ViewSight *sights;  // [groups, kv_heads]
  const int32_t *lists;
  const float *logs;        // of 0 .. PAGE_SLOTS
  int32_t n_items, groups;
};

// The inputs of a call, in one piece of memory: kernels and their arguments do not change.
struct Step {
  const int32_t *tokens;     // [rows]; -1 - i: row i of `given`
  const int32_t *positions;  // [rows]
  const int32_t *sequence;   // [rows]
  const int32_t *at;         // [rows]: the row's place in its tree
  const int32_t *begin, *end;  // [rows]: what it sees of its tree is path[begin] .. path[end - 1]; -1: a chain
  const int32_t *part;       // [rows]: its first item (chunk 0)
  const int32_t *part_row;   // [rows]: which row of that item
  const int32_t *chunks;     // [rows]: how many items its keys make
  const int32_t *path;
  const int32_t *items;      // [n_items, 4]: sequence, first row, rows, chunk
  const int32_t *head_rows;  // [n_head]
  const float *heat;         // [n_head]: 1 / temperature
  const uint64_t *pages;     // addresses
  const View *views;         // [views, sequences]
  const int32_t *slot_positions;
  const float *given;        // [.., hidden]
  const Recurrent *recurrent;  // [recurrent blocks, sequences]
  const int32_t *updates;      // [.., 3]: whether from `next`, else from `start`; row; row of the call it is the output of, or -1
  const int32_t *update_ends;  // [recurrent blocks * sequences]: the updates of one come after those of the one before
  const int32_t *taps;         // [rows, n_taps]: rows of the tree, oldest first; -1 - i: the i-th newest committed one
  int32_t rows, n_head, n_items, sequences, n_taps, reserved;
  // After the numbers, whose places are fixed in compiled libraries:
  const int32_t *paid;  // [views, sequences, 4]: of attention sums where the sequence's slots begin (-1: not wanted), how
                        // many they are, computed rows
  const uint64_t *bounds;  // of each of `pages` where its bounds lie; 0: there are none
  const ViewPlan *plans;
};

struct EmbedArgs {
  const Step* step;
  Weights w;
  float* out;
  float scale;
  int32_t hidden;
  const float* positions;  // [positions, hidden], added to embeddings of tokens; null: nothing is
  Norm norm;               // of those
};

// Rows normed, and made ready for `w` if that is quantized. Head: rows Step::head_rows of x.
struct PrepareArgs {
  const Step* step;
  const float* x;
  float* normed;  // null: not wanted
  Weights w;
  Norm norm;
  Prepared out;
  int32_t k, head, copies, reserved;  // copies: rows of x for each row of the call
};

struct ProductArgs {
  const Step* step;
  Weights w;
  Prepared a;
  Norm norm;           // of rows x, if fused
  const float* x;      // [rows, k]: for float weights, or to be made ready by the block itself
  const float* bias;       // of all experts, if there are any
  float* out;
  const int32_t* experts;  // of each row the expert whose share of the weights is used; null: all of them
  int32_t epilogue, activation, fused, head;
  int32_t copies, spread, stride, reserved;  // rows of the product for each row of the call; spread: they share a row of x
  float softcap;
  int32_t tile;  // rows that share a block, of float weights
};

struct RopeArgs {
  const Step* step;
  float* qkv;
  const float *cos, *sin, *q_norm, *k_norm;
  int64_t offset;  // of the block's keys in a page
  int32_t heads, kv_heads, dim, pairs, format, view;
  float eps;
  int32_t row_bytes;
  int32_t width, own, last, reserved;  // of a row of qkv; heads have weights of their own; heads are normed after the rope
  const float *q_bias, *k_bias;        // of LayerNorms; null: heads are normed by their root mean square
};

struct AttendArgs {
  const Step* step;
  const float* qkv;
  float* parts;
  float* out;
  int64_t offset;
  int32_t heads, kv_heads, dim, window, sinks, format, view, row_bytes;
  float scale, softcap;
  // Rows of an item; the launch's first kv head; how many keep their weights; keys that lie in shared memory at once.
  int32_t tile, head0, kept_heads, keys;
  float *kept;    // [items, kept_heads, queries of an item, CHUNK]: exp(score - the chunk's largest); null: not kept
  float *totals;  // [rows, heads, 2]: the largest score of a query and its sum of exp; null: not kept
  const float *sink_logit;  // [heads]: a score of no token, which has no value; null: none
  const float *slopes;      // [heads], times key - row position added to scores; null: nothing is
  int32_t width, gate;      // of a row of qkv; its last `gate` values are gates of the output, of a head or a channel each
};

// Attention sums of the kv heads of a launch, out of the weights that it kept.
struct SumsArgs {
  AttendArgs attend;
  float *sums;     // [kv_heads, width]
  int64_t width;
};

// Rows [.., width] of x: normed (each `part` of them apart) and added to `out`, or stored there.
struct RowsArgs {
  const Step* step;
  const float* x;
  float* out;
  Norm norm;
  int32_t width, part, stride, add;
};

struct GluArgs {
  const Step* step;
  const float* x;
  float* out;
  int32_t inner, gated, activation, copies;
  float above, below, linear, most;  // of XIELU
};

// Bounds of the keys of full pages.
struct BoundsArgs {
  const uint64_t *pages;  // [n, 2]: page, bounds
  int64_t offset, bounds_offset;  // of the block in both
  int32_t dim, format, row_bytes, reserved;
};

// A block of which the rows see a part. Of each group of rows and kv head:
struct ViewArgs {
  AttendArgs attend;
  uint8_t *seen;     // [.., pages_stride]: is the page seen?
  int32_t *pages;    // [.., pages_stride]: those that are, ascending
  float *bounds;     // [.., pages_stride]
  uint8_t *near;     // [.., pages_stride, PAGE_SLOTS]
  int32_t *slots;    // [.., slots_stride]: slots one by one; null: none in any
  int32_t *runs;
  int32_t *counts;   // [..]: how many slots
  uint8_t *means;    // [.., slots_stride, row_bytes]: values of slots that stand for some; null: there are none
  float *floats;     // [.., dim]
  int64_t bounds_offset;
  int32_t pages_stride, slots_stride, plan, listed;
};

struct ViewSumsArgs {
  ViewArgs view;
  float *sums;
  int64_t width;
};

struct CopyArgs {
  const Step* step;
  const float* x;  // [rows, stride]
  float* out;      // [rows, width]
  int32_t width, stride;
  float limit;     // values are cut to -limit .. limit; 0: they are not
  int32_t reserved;
};

struct BestArgs {
  const Step* step;
  const float* logits;
  float* strips;     // [n_head, strips, 2]: largest, sum of exp((x - largest) * heat)
  uint64_t* sorted;  // [n_head, strips, top]
  int32_t *ids;      // [n_head, top]
  float* scores;
  int32_t vocab, top;
};

struct RouteArgs {
  const Step* step;
  const float *logits, *bias;
  int32_t* experts;  // [rows, top_k]
  float* weights;
  float* scratch;  // [rows, 3, n]
  int32_t n, top_k, router, normalize;
  float scale;
  int32_t groups, top_groups;
  float jitter;
};

struct CombineArgs {
  const Step* step;
  const float *experts, *weights, *shared, *shared_gate;
  float* out;
  int32_t top_k, width;
};

// Rows of a cache moved to other slots, one after another: of each move the page it comes from, the slot in that page,
// the page and the slot it goes to. Run x: rows of `runs[2x + 1]` bytes from byte runs[2x] of a page on.
struct MoveArgs {
  const uint64_t* moves;  // [n, 4]
  const int64_t* runs;    // [.., 2]
  int32_t n, reserved;
};

struct SsmArgs {
  const Step* step;
  const float *projected, *conv, *conv_bias, *dt_bias, *a, *d;
  float* y;
  int32_t heads, head_dim, state_size, groups, conv_size, slot, width, reserved;
  float dt_min, dt_max;
};

// Rows of a path applied to a state.
struct AdvanceArgs {
  const float *from, *rows;
  float* to;
  const int32_t* path;
  int32_t heads, head_dim, state_size, groups, n, decays;  // decays: of a head, of the delta rule
};

// projected: rows of B, C and x.
struct ConvArgs {
  const Step* step;
  const float *projected, *conv, *bias;  // bias null: none
  float* y;
  int32_t channels, conv_size, slot, reserved;
};

// projected: rows [width] of v, k, q, then what gives beta from `beta` on; z, g: what gives gates and decays, with the
// strides of their rows. decays: of a head. eps: of the norm of y; near: of those of keys and queries.
struct DeltaArgs {
  const Step* step;
  const float *projected, *z, *g, *conv, *dt_bias, *a, *gate_norm;
  float* y;
  int32_t heads, head_dim, key_dim, groups, conv_size, slot, width, decays, beta, z_stride, g_stride, sigmoid;
  float beta_scale, eps, near, key_scale, query_scale;
  int32_t reserved;
};
