// The kinds of blocks. A kind is one file, `<kind>_block.cpp`, which defines its BlockKind; blocks.cpp lists them.
#pragma once
#include <memory>
#include <vector>

#include "api.h"
#include "cache.h"
#include "kernels.h"

namespace edgedec {

class Engine;

enum Kind { ATTENTION = 1, MLP = 2, MOE = 3, SSM = 4, POWER_LAW = 6, LATENT = 7, S6 = 9, CONV = 10, DELTA = 11, SHARED_ATTENTION = 12, LOOKUP = 13, RWKV7 = 14, CHANNEL_MIX = 15, GMU = 16, ALTUP = 17, LAUREL = 18, PRE_ROUTER = 19 };
enum NormKind { NO_NORM = 0, RMS = 1, LAYER = 2, SCALE = 3 };

// What the computed rows of a sequence see of its tree: row r (0: the first computed) sees the committed tokens and the
// rows path[begin[r]] .. path[end[r] - 1] of the tree, ascending. A chain has no lists: row r sees rows 0 .. first + r.
struct Tree {
  bool chain = true;
  bool text = false;  // of an encoder: rows one after another that all see each other; chain then too
  int64_t base = -1;  // position of a first row, if every row's position is base + its depth; -1: they are not
  std::vector<int32_t> depth;  // of every row of the tree, computed or not; not of a chain
  std::vector<int32_t> begin, end, path;
};

// One sequence within a BlockCall: `rows` rows from row `row` of the call's rows on.
struct SequenceRows {
  int row, rows;
  PendingRows pending;        // the whole tree; computed rows are pending.first ..
  const Tree* tree;
  BlockState* state;          // null if the block neither keeps nor reads one; begin() has been called
  const BlockState* owner;    // of the block whose values this one reads; null: it reads no other's
  int text_length;            // tokens committed when the call began
  float* attention_sums;      // null: not wanted
  const ed_lora* lora;        // [ED_LORA_PARTS], or null
  float* queries;             // [rows, heads, head_dim]; null: not wanted
  const ed_view* view;        // null: the rows see everything
};

// A block is run on `rows` rows of one or several sequences, side by side.
struct BlockCall {
  float* hidden;  // [rows, hidden], in and out
  const float* input;  // [rows, hidden], what the block reads: hidden, or the state before the blocks beside it
  const float* before;  // [rows, hidden], the state before the block before it, of one whose router reads that
  const float* embeddings;  // [rows, hidden] of the rows' tokens; null in a model none of whose blocks reads them
  float* streams;  // [rows, model.streams, hidden], beside hidden, in and out; null in a model without
  const float* lookups;  // [rows, model.lookup.k], the tokens' rows of that table; null in a model without it
  int rows;
  int64_t active;  // the same number: the same sequences of the same engine call
  std::vector<SequenceRows> sequences;
};

// One block of an open engine: hidden += post_norm(f(norm(input))); the engine norms and scales the sum.
class Block {
 public:
  virtual ~Block() = default;
  // All weights that Engine::multiply or Kernels::product will be given (one expert's share of stacked ones).
  virtual std::vector<Matrix> matrices() const = 0;
  // Makes room for `rows` rows, before anything is written.
  virtual void reserve(int rows) = 0;
  virtual void run(const BlockCall& call) = 0;
  // Of a mixture: bytes of the experts that the call's rows were given, which begin to be read if they are at most `most`.
  virtual size_t read_given(const BlockCall&, size_t) { return 0; }
};

struct BlockKind {
  int32_t kind;
  // null: not supported. Throws std::bad_alloc only.
  std::unique_ptr<Block> (*make)(Engine& engine, const ed_block& block);
  // The empty state of such a block; null: it keeps none. Must not keep pointers into `block`.
  std::unique_ptr<BlockState> (*make_state)(const ed_model& model, const ed_block& block, int kv,
                                            const std::shared_ptr<PagePool>& pages);
};

// Null if there is no such kind.
const BlockKind* block_kind(int32_t kind);

extern const BlockKind ATTENTION_BLOCK, MLP_BLOCK, MOE_BLOCK, SSM_BLOCK, POWER_LAW_BLOCK, LATENT_BLOCK, S6_BLOCK, CONV_BLOCK, DELTA_BLOCK, SHARED_ATTENTION_BLOCK, LOOKUP_BLOCK, RWKV7_BLOCK, CHANNEL_MIX_BLOCK, GMU_BLOCK, ALTUP_BLOCK, LAUREL_BLOCK, PRE_ROUTER_BLOCK;

}  // namespace edgedec
