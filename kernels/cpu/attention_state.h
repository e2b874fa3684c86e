// Keys and values of one attention block and one text, in pages [k and v, or k][kv_heads][PAGE_SLOTS][row bytes]. A
// page shared with another state is copied before a write.
#pragma once
#include <memory>
#include <vector>

#include "attention_copies.h"
#include "cache.h"
#include "kv.h"
#include "pages.h"

namespace edgedec {

class AttentionState : public BlockState {
 public:
  // parts: 2, a key and a value of each head; 1: a key that is the value too.
  AttentionState(int kv_heads, int head_dim, int parts, int format, std::shared_ptr<PagePool> pool);
  ~AttentionState() override;

  int format() const { return format_; }
  size_t row_bytes() const { return row_bytes_; }
  uint8_t* const* page_table() const { return pages_.data(); }
  int n_pages() const { return (int)pages_.size(); }
  // Bounds of the keys of full pages, computed at first use: [kv_heads][2][width] of each page. Forks share
  // them. `bounds` of a page: null until `set_bounds`, which takes what `take_bounds` gave.
  int full_pages() const { return slots_ / PAGE_SLOTS; }
  const uint16_t* const* bounds_table();  // of full_pages() pages
  uint8_t* take_bounds() const { return pool_->take(bounds_bytes()); }
  void release_bounds(uint8_t* made) const { pool_->release(made); }
  void set_bounds(int page, uint8_t* made) { bounds_[page] = made; }
  size_t head_bounds() const { return 2 * (size_t)kv_round(head_dim_, 16); }  // of a head, in numbers
  // Copies of single slots of a kv head, kept until these slots change; forks begin without.
  SlotCopies& copies(int head);
  bool identity() const { return tokens_.empty(); }  // slot i is of token i, at position i
  // Of a pre-router: the experts of pending rows, in their order; to be written for rows first .. first + rows - 1.
  const std::vector<int32_t>& experts() const { return experts_; }
  int32_t* experts(int first, int rows) { return experts_.resize(first + rows), experts_.data() + first; }
  int64_t slot_position(int slot) const { return identity() ? slot : positions_[slot]; }
  int64_t slot_token(int slot) const { return identity() ? slot : tokens_[slot]; }

  void truncate(int length) override;
  std::unique_ptr<BlockState> fork(int length) const override;
  bool drop(const int64_t* slots, int n) override;
  bool drop_by_head(const int64_t* slots, int n) override;
  bool merge(const int64_t* into, const int64_t* slots, const float* weights, int n) override;
  void keys(int from, float* out) const override;
  int offload(const int32_t* pages, int n, const char* folder) override;
  void positions(int64_t* out) const override;
  void tokens(int64_t* out) const override;
  bool extensible() const override { return true; }
  const void* lead() const override { return pages_.empty() ? nullptr : pages_[0]; }
  void pages(int64_t* held, int64_t* shared) const override;
  std::vector<int64_t> page_ids() const override;
  size_t bytes() const override;
  void reserve(int rows) override { need_slots(slots_, slots_ + rows); }
  size_t save_bytes() const override;
  uint8_t* save(uint8_t* out) const override;
  const uint8_t* load(const uint8_t* from, const uint8_t* end) override;
  bool contiguous() const override { return identity(); }
  size_t rest_bytes(int from) const override { return runs_ * row_bytes_ * (slots_ - from); }
  uint8_t* save_rest(int from, uint8_t* out) const override;
  const uint8_t* append(const uint8_t* from, const uint8_t* end, int tokens) override;

 protected:
  void reserve_rows(const PendingRows& rows) override { need_slots(start() + rows.first, start() + rows.count); }
  void keep_rows(const KeptRow* rows, int n) override;

 private:
  size_t page_bytes() const;
  size_t bounds_bytes() const { return kv_heads_ * head_bounds() * sizeof(uint16_t); }
  void drop_bounds(int from, int to);  // of pages that are about to change
  void drop_copies(int from);          // of the slots from there on
  int slots_of(int length) const;  // slots of the tokens below `length`
  void need_slots(int from, int to);
  std::vector<uint8_t*> own_targets(int first, int slots);
  void copy(const uint8_t* page, int from, int to);
  void copy_head(const uint8_t* page, int head, int from, int to);
  void own(int page, int used);
  uint8_t* row(int run, int slot) const;
  void move(int from, int to);
  void name(int slot, int64_t token, int64_t position);
  void shrink();
  template <class Do>
  void each_run(int from, int slots, Do work) const;

  const int kv_heads_, runs_, head_dim_, format_;  // runs: of rows in a page, keys first
  const size_t row_bytes_;
  const std::shared_ptr<PagePool> pool_;
  std::vector<uint8_t*> pages_, bounds_;
  std::vector<SlotCopies> copies_;  // of each head; empty: none yet
  std::vector<int64_t> tokens_, positions_;  // of each slot; empty: identity
  std::vector<int32_t> experts_;
};

}  // namespace edgedec
