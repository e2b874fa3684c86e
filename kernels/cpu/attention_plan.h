// The work of one block's attention, cut into items for the threads.
#pragma once
#include <cstdint>
#include <vector>

#include "blocks.h"
#include "kernels.h"

namespace edgedec {

// Rows row0 to row1 of a sequence (counted from its first), one kv head, chunks chunk0 to chunk1.
struct Item {
  int32_t sequence, kv_head, row0, row1, chunk0, chunk1;
  int64_t part;  // where its first partial sum stands, if chunks are summed apart
};

// `rows` rows from `row` on, of several sequences, begin with the same `chunks` chunks, in the same pages.
// Their partial sums [kv_heads, chunks, rows] stand at `part`.
struct Common {
  int32_t row, rows, chunks;
  int64_t part;
  size_t at(int head, int chunk, int r) const { return ((size_t)head * chunks + chunk) * rows + r; }
};

// Positions of all slots that a sequence sees, where they are not ranks.
struct SlotPositions {
  std::vector<int64_t> all;
  void fill(const class AttentionState& state, const SequenceRows& rows);
};

// Made once for all blocks of a call whose attention has the same shape.
class AttentionPlan {
 public:
  void make(const BlockCall& call, const std::vector<Attention>& views, int threads);

  std::vector<Item> items, sums;  // what is attended; and, if by chunks, what is added up after that
  std::vector<Item> together;     // before that: the chunks that several sequences share
  std::vector<Common> commons;
  std::vector<int> common_of;  // of each sequence; -1: none
  std::vector<int> rows_of;    // the first row of each sequence
  std::vector<int> tasks;      // items tasks[i] .. tasks[i + 1] - 1 are done by one thread
  size_t parts = 0;            // floats of all partial sums
  bool by_chunk = false;
  int grain = 1;

  size_t total_floats() const { return (size_t)item_rows() * group_ * query(); }
  size_t scratch_bytes() const;

 private:
  bool same(const BlockCall& call, const std::vector<Attention>& views);
  void find_commons(const BlockCall& call, const std::vector<Attention>& views);
  void add_common(int begin, int end, Common common);
  void cut(const BlockCall& call, const std::vector<Attention>& views, int threads);
  void split_by_chunks();
  int item_rows() const;
  size_t query() const { return (size_t)dim_ + 2; }

  int64_t active_ = -1;
  int heads_ = 0, kv_heads_ = 0, dim_ = 0, group_ = 1;
  std::vector<int> key_, next_key_;  // of each sequence: committed slots, chunks in common with the one before, sums wanted
};

}  // namespace edgedec
