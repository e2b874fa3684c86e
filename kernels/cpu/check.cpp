// Checks of calls; the numbers are those of ERRORS in __init__.py.
#include <algorithm>

#include "engine.h"
#include "kv.h"

namespace edgedec {

namespace {

constexpr int MAX_ROWS = 1 << 20;
constexpr int MAX_TREE = 1 << 13;  // a row's path is kept, so a tree may cost its size squared

bool all_tokens(const ed_sequence& s, int vocab) {
  return std::all_of(s.tokens + s.first, s.tokens + s.first + s.rows, [&](int64_t t) { return t >= 0 && t < vocab; });
}

// Whether a list of one kv head after another is ascending in each, from 0 to below `most`.
bool lists_fit(const int32_t* ends, const int32_t* all, int kv_heads, int most) {
  for (int head = 0, i = 0; ends && head < kv_heads; head++) {
    if (ends[head] < i) return false;
    for (const int first = i; i < ends[head]; i++)
      if (all[i] < 0 || all[i] >= most || (i > first && all[i] <= all[i - 1])) return false;
  }
  return true;
}

// Whether the runs that begin at the slots of a list lie in a page and before the next slot of their head.
bool runs_fit(const ed_view& v, int kv_heads, int slots) {
  for (int head = 0, i = 0; v.runs && head < kv_heads; head++)
    for (; i < v.slot_ends[head]; i++) {
      const int64_t slot = v.slots[i], end = slot + v.runs[i];
      if (v.runs[i] < 1 || end > slots || slot % PAGE_SLOTS + v.runs[i] > PAGE_SLOTS) return false;
      if (i + 1 < v.slot_ends[head] && v.slots[i + 1] < end) return false;
    }
  return true;
}

bool view_fits(const ed_view& v, const ed_block& block, int slots) {
  if (!block.attention || block.attention->slopes || v.group < 0 || !v.sinks || !v.recent || !v.pages) return false;
  const int kv_heads = block.attention->kv_heads;
  for (int head = 0; head < kv_heads; head++)
    if (v.sinks[head] < 0 || v.recent[head] < 0 || v.pages[head] < -1) return false;
  return lists_fit(v.chosen_ends, v.chosen, kv_heads, slots / PAGE_SLOTS) &&
         lists_fit(v.slot_ends, v.slots, kv_heads, slots) && (!v.runs || (v.slot_ends && !v.striped)) &&
         runs_fit(v, kv_heads, slots);
}

}  // namespace

int Engine::check(const ed_sequence* sequences, int n) const {
  if (n < 0) return 1;
  int64_t rows = 0;
  for (int i = 0; i < n; i++) {
    const ed_sequence& s = sequences[i];
    if (s.rows < 0 || s.first < 0 || (rows += s.rows) > MAX_ROWS) return 1;
    for (int j = 0; s.cache && j < i; j++)
      if (sequences[j].cache == s.cache) return 11;
    if (s.rows)
      if (int wrong = check_sequence(s)) return wrong;
  }
  return 0;
}

int Engine::check_sequence(const ed_sequence& s) const {
  if (s.logits_from > s.rows || s.top < 0 || s.n_hidden < 0) return 1;
  if (s.sampler && (!s.drawn || s.readout || s.logits_from < 0 || s.logits_from == s.rows)) return 18;
  if (!s.tokens && !s.input) return 5;
  const bool embeds = !s.input || (paired_ && !s.embeddings) || lookups();
  if (embeds && !s.tokens) return 5;
  if (embeds && !all_tokens(s, model_.vocab)) return 2;
  for (int i = 0; i < s.n_blocks; i++)
    if (s.blocks[i] < 0 || s.blocks[i] >= model_.n_blocks || (i && s.blocks[i] <= s.blocks[i - 1])) return 4;
  for (int i = 0; i < model_.n_blocks && s.n_blocks >= 0; i++) {  // all of the blocks whose sum is normed or that feed, or none
    const auto runs = [&](int block) { return std::binary_search(s.blocks, s.blocks + s.n_blocks, block); };
    if (((blocks_[i].branch && joined(i)) || blocks_[i].feeds) && runs(i) != runs(i + 1)) return 4;
  }
  if (s.input && s.n_blocks > 0 && early(s.blocks[0])) return 4;  // the state before the block before it is gone
  for (int i = 0; i < s.n_hidden; i++) {
    const int block = s.hidden_blocks[i];
    if (block < -1 || block >= model_.n_blocks) return 4;
    // Others are still added to what it read, or what it made is for the next one alone.
    if (block >= 0 && (blocks_[block].branch || blocks_[block].feeds)) return 4;
    if (block >= 0 && s.n_blocks >= 0 && !std::binary_search(s.blocks, s.blocks + s.n_blocks, block)) return 4;
  }
  if (!s.n_blocks) return 0;
  if (int wrong = check_tree(s)) return wrong;
  return check_cache(s);
}

int Engine::check_tree(const ed_sequence& s) const {
  const int64_t count = (int64_t)s.first + s.rows;
  if (count > MAX_ROWS) return 1;
  if (!s.positions) return 3;
  for (int64_t i = s.first; i < count; i++)
    for (const ed_rope& rope : ropes_)
      if (s.positions[i] < 0 || s.positions[i] >= rope.positions) return 3;
  for (int64_t i = s.first; s.types && i < count; i++)
    if (s.types[i] < 0 || s.types[i] >= model_.n_types) return 20;
  const bool placed = model_.positions && !s.input;
  for (int64_t i = s.first; placed && i < count; i++)
    if (s.positions[i] < 0 || s.positions[i] >= model_.n_positions) return 3;
  bool tree = false;
  for (int64_t i = 0; i < count; i++) {
    if (s.parents && (s.parents[i] < -1 || s.parents[i] >= i)) return 7;
    if (s.groups && s.groups[i] < -1) return 12;
    if (s.numbers && s.numbers[i] <= (i ? s.numbers[i - 1] : -1)) return 10;
    tree |= (s.parents && s.parents[i] != i - 1) || (s.groups && s.groups[i] >= 0);
  }
  return tree && count > MAX_TREE ? 1 : 0;
}

// Whether block `owner` holds the rows of a call, or will when a block after it runs.
bool Engine::reads(const ed_sequence& s, int owner, PendingRows rows) const {
  if (!s.cache) return false;
  if (s.n_blocks < 0 || std::binary_search(s.blocks, s.blocks + s.n_blocks, owner)) return true;
  rows.first = rows.count;
  return s.cache->cache.state(owner)->accepts(rows);
}

int Engine::check_cache(const ed_sequence& s) const {
  if (s.cache && s.cache->cache.pool().shape != shape_) return 8;
  const PendingRows rows{s.first, s.first + s.rows, s.positions, s.parents, s.numbers};
  for (int i = 0; i < blocks_of(s); i++) {
    const int block = block_of(s, i);
    if (owner_of(block) >= 0 && !reads(s, owner_of(block), rows)) return 19;
    if (!block_kind(blocks_[block].kind)->make_state) {
      if (s.views && s.views[i]) return 16;
      continue;
    }
    if (!s.cache) return 8;
    const BlockState& state = *s.cache->cache.state(block);
    if (s.views && s.views[i] && !view_fits(*s.views[i], blocks_[block], state.slots())) return 16;
    if (!state.accepts(rows) || (s.first && s.cache->cache.committing())) return 9;
    const int64_t last = rows.numbers ? rows.numbers[rows.count - 1] : rows.count - 1;
    if (last >= s.cache->cache.capacity() - s.cache->cache.length()) return 6;
  }
  return 0;
}

}  // namespace edgedec
