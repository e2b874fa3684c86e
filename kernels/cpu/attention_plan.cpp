#include "attention_plan.h"

#include <algorithm>

#include "attention_state.h"
#include "kv.h"

namespace edgedec {

namespace {

constexpr int ITEM_QUERIES = 128;        // queries of one item, all heads of its rows
constexpr size_t MAX_PARTS = 16u << 20;  // floats: beyond this, chunks are not summed apart
constexpr int CHUNK_PAGES = CHUNK / PAGE_SLOTS;

// Whole chunks that lie in the same pages for two sequences.
int common_chunks(const Attention& a, const Attention& b) {
  if (a.window || b.window || a.format != b.format) return 0;  // with a window, each row sees another part of a chunk
  const int most = std::min(a.length, b.length) / CHUNK * CHUNK_PAGES;
  int same = 0;
  while (same < most && a.pages[same] == b.pages[same]) same++;
  return same / CHUNK_PAGES;
}

}  // namespace

void SlotPositions::fill(const AttentionState& state, const SequenceRows& s) {
  const int committed = state.start();
  all.resize(committed + s.pending.count);
  for (int i = 0; i < committed; i++) all[i] = state.slot_position(i);
  std::copy_n(s.pending.positions, s.pending.count, all.begin() + committed);
}

int AttentionPlan::item_rows() const { return std::max(1, ITEM_QUERIES / group_); }

size_t AttentionPlan::scratch_bytes() const { return attention_scratch(dim_, item_rows() * group_); }

// Whether the existing plan fits these views; if not, notes the views of the next plan.
bool AttentionPlan::same(const BlockCall& call, const std::vector<Attention>& views) {
  const Attention& a = views[0];
  bool same = active_ == call.active && heads_ == a.heads && kv_heads_ == a.kv_heads && dim_ == a.dim;
  std::vector<int>& key = next_key_;
  key.clear();
  for (size_t i = 0; i < views.size(); i++) {
    key.push_back(views[i].length);
    const bool plain = i && !call.sequences[i].view && !call.sequences[i - 1].view;
    key.push_back(plain ? common_chunks(views[i - 1], views[i]) : 0);
    key.push_back((call.sequences[i].attention_sums != nullptr) + 2 * (call.sequences[i].view != nullptr));
  }
  same = same && key == key_;
  active_ = call.active, heads_ = a.heads, kv_heads_ = a.kv_heads, dim_ = a.dim, group_ = a.group();
  key_.swap(key);
  return same;
}

void AttentionPlan::make(const BlockCall& call, const std::vector<Attention>& views, int threads) {
  if (same(call, views)) return;
  active_ = -1;  // until it is finished
  items.clear(), sums.clear(), tasks.clear(), rows_of.clear(), parts = 0;
  for (const SequenceRows& s : call.sequences) rows_of.push_back(s.row);
  find_commons(call, views);
  cut(call, views, threads);
  active_ = call.active;
}

// Adjacent sequences with the same first pages attend to the whole chunks of these together, so that keys and
// values are loaded once for all of their rows.
void AttentionPlan::find_commons(const BlockCall& call, const std::vector<Attention>& views) {
  const int n = (int)views.size();
  commons.clear(), together.clear(), common_of.assign(n, -1);
  for (int i = 0, next; i < n; i = next) {
    Common common{call.sequences[i].row, call.sequences[i].rows, views[i].length / CHUNK, 0};
    for (next = i + 1; next < n && key_[3 * next + 1]; next++) {
      common.rows += call.sequences[next].rows;
      common.chunks = std::min(common.chunks, key_[3 * next + 1]);
    }
    if (next - i > 1) add_common(i, next, common);
  }
}

void AttentionPlan::add_common(int begin, int end, Common common) {
  const size_t size = (size_t)kv_heads_ * common.chunks * common.rows * group_ * query();
  if (!size || parts + size > MAX_PARTS) return;
  common.part = (int64_t)parts;
  std::fill(common_of.begin() + begin, common_of.begin() + end, (int)commons.size());
  for (int h = 0; h < kv_heads_; h++)
    for (int c = 0; c < common.chunks; c++)
      for (int row = 0; row < common.rows; row += item_rows()) {
        const int64_t part = common.part + (int64_t)(common.at(h, c, row) * group_ * query());
        together.push_back({begin, h, row, std::min(common.rows, row + item_rows()), c, c + 1, part});
      }
  parts += size;
  commons.push_back(common);
}

void AttentionPlan::cut(const BlockCall& call, const std::vector<Attention>& views, int threads) {
  const size_t common = parts;
  int most_chunks = 0;
  bool sums_wanted = false;
  for (int i = 0; i < (int)views.size(); i++) {
    const SequenceRows& s = call.sequences[i];
    if (s.view) continue;  // attention_views.h
    const int chunks = (views[i].length + s.pending.count + CHUNK - 1) / CHUNK;
    const int chunk0 = common_of[i] < 0 ? 0 : commons[common_of[i]].chunks;
    most_chunks = std::max(most_chunks, chunks - chunk0);
    sums_wanted |= s.attention_sums && s.rows > item_rows();
    for (int h = 0; h < kv_heads_; h++)
      for (int row = 0; row < s.rows; row += item_rows()) {
        const int end = std::min(s.rows, row + item_rows());
        // Items of one head add to the same slots of attention sums, so one thread does them, in order.
        if (!row || !s.attention_sums) tasks.push_back((int)items.size());
        items.push_back({i, h, row, end, chunk0, chunks, (int64_t)parts});
        parts += (size_t)(chunks - chunk0) * (end - row) * group_ * query();
      }
  }
  tasks.push_back((int)items.size());
  const bool few = (int)items.size() < 4 * threads && most_chunks > 1;
  by_chunk = threads > 1 && few && parts <= MAX_PARTS && !sums_wanted;
  if (by_chunk) split_by_chunks();
  else parts = common;
  const int n = by_chunk ? (int)items.size() : (int)tasks.size() - 1;
  grain = std::max(1, n / (6 * threads));
}

// Too few items for the threads: their chunks are summed apart, and added up in order after that.
void AttentionPlan::split_by_chunks() {
  std::swap(sums, items);
  for (const Item& sum : sums)
    for (int c = sum.chunk0; c < sum.chunk1; c++) {
      Item item = sum;
      item.part += (int64_t)(c - sum.chunk0) * (sum.row1 - sum.row0) * group_ * query();
      item.chunk0 = c, item.chunk1 = c + 1;
      items.push_back(item);
    }
}

}  // namespace edgedec
