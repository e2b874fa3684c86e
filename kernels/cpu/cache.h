// The state of a text: one BlockState for each block that keeps one. Attention keeps its rows in pages that several
// caches may hold (attention_state.h); a recurrent block keeps what its file says.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "api.h"

namespace edgedec {

class PagePool;

// The rows of a pending tree, as a call brings them: `count` of them, of which those from `first` on are computed.
struct PendingRows {
  int first, count;
  const int64_t* positions;  // [count]
  const int64_t* parents;    // [count]; null: a chain
  const int64_t* numbers;    // [count], ascending; null: 0 ..
};

// Numbers and positions of a pending tree, for all blocks of a cache.
struct RowNames {
  std::vector<int64_t> numbers, positions;
  // Null if row i has number i and position base + i.
  static std::shared_ptr<const RowNames> of(const PendingRows& rows);
};

// A pending row that is committed: its index among the block's pending rows, and which token of the text it is of.
struct KeptRow {
  int32_t row, token;
  int64_t position;
};

// What one block keeps of one text. The base class knows committed slots and pending rows; a kind stores them.
// Pending row i (the i-th row of the call) comes after the start() slots that were committed when its tree began.
class BlockState {
 public:
  virtual ~BlockState() = default;
  int slots() const { return slots_; }  // committed slots; of a recurrent block: committed tokens
  int start() const { return start_; }
  int rows() const { return rows_; }  // pending
  int64_t position(int row) const { return names_ ? names_->positions[row] : base_ + row; }
  int row_of(int64_t number) const;  // the pending row of a number; -1: not held

  // Whether a call may write these rows: those before `first` are held, and no pending row is committed.
  bool accepts(const PendingRows& rows) const;
  // Before a call writes rows of these blocks, of which some keep a state. A tree is of all blocks: rows from 0 on begin
  // another if rows of this one are committed; then all blocks forget what is left of this one.
  void begin(const int32_t* blocks, int n_blocks, const PendingRows& rows, const std::shared_ptr<const RowNames>& names);
  bool committing() const { return tree_done_ >= 0; }  // rows of the pending tree are committed
  int commit(const int64_t* rows, int n);
  void rollback();
  int truncate(int length);
  int drop(int block, const int64_t* slots, int n);
  int reserve(int rows);
  void pages(int64_t* held, int64_t* shared) const;
  std::vector<int64_t> page_ids() const;
  size_t bytes() const;
  size_t save_bytes() const;
  void save(uint8_t* out) const;
  int load(const uint8_t* data, size_t size);

 private:
  int checkpoint(int length) const;

  std::shared_ptr<const CachePool> pool_;
  void forget_tree() { tree_size_ = 0, tree_done_ = -1; }

  int capacity_, length_ = 0;
  int64_t tree_size_ = 0, tree_done_ = -1;  // numbers of the pending tree, and the last that was committed
  std::vector<std::unique_ptr<BlockState>> states_;
};

}  // namespace edgedec

struct ed_cache_pool {
  std::shared_ptr<const edgedec::CachePool> pool;
};

struct ed_cache {
  edgedec::Cache cache;
};
