// The state of a text: one BlockState for each block that keeps one. Attention keeps its rows in pages that
// caches may share (attention_state.h); for recurrent blocks see recurrent.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "api.h"

namespace edgedec {

class PagePool;

// The rows of a pending tree, as passed by a call: `count` of them, of which those from `first` on are computed.
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

// A block may hold this many more slots than tokens.
constexpr int MOST_ATTACHED = 64;

// The state of one block for one text. The base class counts committed slots and pending rows; a kind stores them.
// Pending row i (the i-th row of the call) comes after the start() slots that were committed when its tree began.
class BlockState {
 public:
  virtual ~BlockState() = default;
  int slots() const { return slots_; }  // committed slots; of a recurrent block: committed tokens
  int start() const { return start_; }
  int rows() const { return rows_; }  // pending
  int64_t position(int row) const { return names_ ? names_->positions[row] : base_ + row; }
  int row_of(int64_t number) const;  // the pending row of a number; -1: not held

  // Whether a call may write these rows: those before `first` are pending here, and no pending row is committed.
  bool accepts(const PendingRows& rows) const;
  // Before a call writes rows first .. count - 1: they replace the pending ones from `first` on. `names`: RowNames::of.
  void begin(const PendingRows& rows, const std::shared_ptr<const RowNames>& names);
  // Commits those of the pending rows `numbers` that are held; number i becomes token `token` + i * `step` of the text.
  void commit(const int64_t* numbers, int n, int token, int step = 1);
  // Whether a token may have several slots.
  virtual bool extensible() const { return false; }
  void rollback();

  // The largest number of tokens <= length that truncate and fork can leave.
  virtual int checkpoint(int length) const { return length; }
  virtual void truncate(int length) = 0;
  // Another state with the tokens below `length`, a value of checkpoint(), and no pending rows. fork(0) of a new one: a
  // new one.
  virtual std::unique_ptr<BlockState> fork(int length) const = 0;
  virtual bool drop(const int64_t* /*slots*/, int /*n*/) { return false; }
  virtual bool drop_by_head(const int64_t* /*slots*/, int /*n*/) { return false; }
  // Adds keys and values of `slots`, weighted [kv_heads, n], to those of the slots `into`, which are weighted
  // by 1 minus these weights. False: slots out of range, or on both sides.
  virtual bool merge(const int64_t* /*into*/, const int64_t* /*slots*/, const float* /*weights*/, int /*n*/) {
    return false;
  }
  // Of the committed slots from `from` on [kv_heads, slots - from, head_dim].
  virtual void keys(int /*from*/, float* /*out*/) const {}
  // Moves full pages to files of a folder, and drops those in files from memory. 0, or an error.
  virtual int offload(const int32_t* /*pages*/, int n_pages, const char* /*folder*/) { return n_pages ? 14 : 0; }
  virtual void positions(int64_t* out) const = 0;
  virtual void tokens(int64_t* out) const = 0;
  // Two states with the same one (but null) begin with the same page.
  virtual const void* lead() const { return nullptr; }
  virtual void pages(int64_t* /*held*/, int64_t* /*shared*/) const {}  // added to both
  // The pages of the committed slots, if the state is in pages.
  virtual std::vector<int64_t> page_ids() const { return {}; }
  virtual size_t bytes() const { return 0; }
  // Memory for pending rows 0 .. rows - 1 of a new tree.
  virtual void reserve(int /*rows*/) {}
  virtual size_t save_bytes() const = 0;
  virtual uint8_t* save(uint8_t* out) const = 0;  // the end of what it wrote
  // Restores a saved state; null if it does not fit, else the end of the data read. Nothing is pending then.
  virtual const uint8_t* load(const uint8_t* from, const uint8_t* end) = 0;
  // For a state whose slots are the tokens 0 .. slots() - 1: the data that `append` adds to another one with
  // the tokens below `from`.
  virtual bool contiguous() const { return true; }
  virtual size_t rest_bytes(int from) const = 0;
  virtual uint8_t* save_rest(int from, uint8_t* out) const = 0;
  virtual const uint8_t* append(const uint8_t* from, const uint8_t* end, int tokens) = 0;

 protected:
  BlockState() = default;
  BlockState(const BlockState&) = delete;
  // Pending rows rows.first .. rows.count - 1 are about to be written; those before are kept.
  virtual void reserve_rows(const PendingRows& rows) = 0;
  // These pending rows, ascending, are committed. Slots are counted by the caller.
  virtual void keep_rows(const KeptRow* rows, int n) = 0;
  // The pending rows are forgotten.
  virtual void forget_rows() {}
  void forget() { start_ = slots_, rows_ = 0, done_ = -1, names_.reset(), forget_rows(); }

  int slots_ = 0;

 private:
  int64_t number(int row) const { return names_ ? names_->numbers[row] : row; }

  int start_ = 0, rows_ = 0;
  int64_t done_ = -1;  // the last number that was committed
  int64_t base_ = 0;   // position of pending row 0, if there are no names
  std::shared_ptr<const RowNames> names_;
};

// The caches of one model in one format.
struct CachePool {
  std::shared_ptr<PagePool> pages;
  std::vector<std::unique_ptr<BlockState>> empty;  // of each block, null: it keeps nothing
  int kv;
  uint64_t shape;  // state_shape() of the model
};

// A number that is equal for models with interchangeable caches.
uint64_t state_shape(const ed_model& model);

class Cache {
 public:
  Cache(std::shared_ptr<const CachePool> pool, int capacity);
  int length() const { return length_; }
  int capacity() const { return capacity_; }
  int blocks() const { return (int)states_.size(); }
  const CachePool& pool() const { return *pool_; }
  const std::shared_ptr<const CachePool>& shared_pool() const { return pool_; }
  BlockState* state(int block) const { return states_[block].get(); }  // null: the block keeps none

  std::unique_ptr<Cache> fork(int length) const;
  void adopt(const Cache& other, int length);
  // Before a call writes rows of these blocks, of which some keep a state. A tree belongs to all blocks: rows
  // from 0 on start another tree if rows of this one are committed; then all blocks drop the rest of this
  // one.
  void begin(const int32_t* blocks, int n_blocks, const PendingRows& rows, const std::shared_ptr<const RowNames>& names);
  bool committing() const { return tree_done_ >= 0; }  // rows of the pending tree are committed
  int commit(const int64_t* rows, int n);
  int attach(int n);
  void rollback();
  int truncate(int length);
  int drop(int block, const int64_t* slots, int n);
  int drop_by_head(int block, const int64_t* slots, int n);
  int merge(int block, const int64_t* into, const int64_t* slots, const float* weights, int n);
  int offload(int block, const int32_t* pages, int n, const char* folder);
  int reserve(int rows);
  void pages(int64_t* held, int64_t* shared) const;
  std::vector<int64_t> page_ids() const;
  size_t bytes() const;
  size_t save_bytes() const;
  void save(uint8_t* out) const;
  int load(const uint8_t* data, size_t size);
  // The data that another cache with the first `from` tokens appends to have all; 0 bytes: slots do not match tokens.
  size_t rest_bytes(int from) const;
  void save_rest(int from, uint8_t* out) const;
  int append(const uint8_t* data, size_t size);

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
