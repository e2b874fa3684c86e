// Attention of rows that see some of a block's committed slots (edgedec/runtime/view.py), by kv head.
//
// The visible whole pages form a page table of their own, whose last, partial page is the block's own:
// pending rows stay in place. The usual kernels run on ranks among the visible slots. Single slots are first
// copied to contiguous memory (attention_copies.h); one that stands for a run of slots has their mean value, and
// the logarithm of their number added to its score: the weight of all of them. Partial sums of the pages, then of
// these copies, are merged in order: a row's result depends on the slots it sees, not on other rows of its call.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "blocks.h"
#include "kernels.h"

namespace edgedec {

// Sums [queries, dim + 2] of a kv head's queries before any key: of none, or of the score of no token.
inline void clear_sums(const Attention& a, int kv_head, int queries, float* total) {
  const int group = a.group(), query = a.dim + 2;
  std::fill_n(total, (size_t)queries * query, 0.0f);
  for (int i = 0; i < queries; i++, total += query) {
    total[0] = a.sink_logit ? a.sink_logit[kv_head * group + i % group] : -INFINITY;
    total[1] = a.sink_logit ? 1.0f : 0.0f;
  }
}

class AttentionState;
class Engine;
class SlotCopies;

class ViewedAttention {
 public:
  explicit ViewedAttention(Engine& engine) : engine_(engine) {}
  // Attends for the sequences of a call that have a view. whole: the arguments of each without a view;
  // keys and values are written already.
  void run(const BlockCall& call, const std::vector<Attention>& whole);

 private:
  // What rows row0 to row1 of a sequence (counted from its first) see of a kv head.
  struct Sight {
    int sequence, head, row0, row1;
    std::vector<char> seen;          // of each committed page
    std::vector<int32_t> pages;      // those that are seen, ascending
    std::vector<uint8_t*> table;     // where they lie, and after them the pages of pending rows
    int length;                      // committed slots in them
    std::vector<int64_t> positions;  // of these, and of the pending rows; where positions are wanted
    std::vector<int32_t> left;       // full pages that are not seen
    std::vector<int32_t> slots;      // of the others: those that are seen one by one, ascending
    const SlotCopies* kept;          // copies of them that the block's state keeps; null: they are in `copies`
    std::vector<uint8_t*> copies;    // pages of copies of them
    std::vector<int64_t> copied_positions;
    std::vector<int32_t> runs;       // of each of `slots`: how many it stands for; empty: itself
    std::vector<float> bias;         // their logarithms, whole chunks of them
    std::vector<float> queries, bounds, mean, anchors;
    std::vector<uint8_t*> left_table;
    std::vector<char> near;  // of each slot of the pages left
    int piece;               // its first
  };
  // Some rows of a sight, and where their sums stand.
  struct Piece {
    int sight, row0, row1;
    size_t total;
  };

  const ed_view& view(const Sight& s) const { return *call_->sequences[s.sequence].view; }
  const Attention& whole(const Sight& s) const { return (*whole_)[s.sequence]; }
  size_t query() const { return (size_t)(*whole_)[0].dim + 2; }
  int group() const { return (*whole_)[0].group(); }
  size_t queries(const Piece& p) const { return (size_t)(p.row1 - p.row0) * group(); }

  bool list();
  void make_bounds();
  void select(Sight& s);
  void select_pages(Sight& s, int count);
  void make_table(Sight& s);
  void list_slots(Sight& s);
  void cut();
  Attention pages_of(const Piece& p) const;
  Attention copies_of(const Piece& p) const;
  void begin_sums();
  template <class ViewOf>
  void sum(ViewOf view_of, bool copies);
  int chunks(const Piece& p, bool copies) const;
  void find_stripes();
  void prepare_stripes(Sight& s);
  void mark_stripes(Sight& s, int chunk, float* scores, uint8_t* scratch);
  // Slots i .. stop - 1 of a sight's, to be copied to where the first key is.
  struct Copy {
    int sight, i, stop;
    uint8_t* to;
  };
  void copy_slots();
  void keep_copies(std::vector<Copy>& items, std::vector<SlotCopies*>& set);
  void own_copies(std::vector<Copy>& items);
  void copy_slot(const Sight& s, int i, uint8_t* to, float* scratch) const;
  void finish();
  void add_attention_sums(int sequence, int head, int thread);

  Engine& engine_;
  const BlockCall* call_ = nullptr;
  const std::vector<Attention>* whole_ = nullptr;
  std::vector<Sight> sights_;
  int n_sights_ = 0;
  std::vector<Piece> pieces_;
  std::vector<float> totals_, parts_;
  std::vector<uint8_t> copies_;
  std::vector<int32_t> none_;  // zeros: rows that see no pending ones
  std::vector<std::vector<float>> sums_;  // of each thread
};

}  // namespace edgedec
