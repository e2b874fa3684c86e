#include "attention_views.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "attention_copies.h"
#include "attention_state.h"
#include "engine.h"
#include "kv.h"

namespace edgedec {

namespace {

constexpr int PIECE_QUERIES = 128;
constexpr size_t MAX_PARTS = 16u << 20;  // floats

int pages_for(int slots) { return slots / PAGE_SLOTS + (slots % PAGE_SLOTS != 0); }

// A list of one kv head.
struct Listed {
  const int32_t *from, *to;
  Listed(const int32_t* ends, const int32_t* all, int head)
      : from(ends ? all + (head ? ends[head - 1] : 0) : nullptr), to(ends ? all + ends[head] : nullptr) {}
  const int32_t* begin() const { return from; }
  const int32_t* end() const { return to; }
};

}  // namespace

void ViewedAttention::run(const BlockCall& call, const std::vector<Attention>& whole) {
  call_ = &call, whole_ = &whole;
  if (!list()) return;
  ThreadPool& pool = engine_.pool();
  engine_.need_scratch(attention_scratch(whole[0].dim, std::max(PIECE_QUERIES, group())) + 4 * (size_t)group() * CHUNK);
  make_bounds();
  pool.parallel_for(n_sights_, engine_.grain(n_sights_), [&](int begin, int end, int) {
    for (int i = begin; i < end; i++) select(sights_[i]);
  });
  cut();
  begin_sums();
  sum([&](const Piece& p) { return pages_of(p); }, false);
  find_stripes();
  copy_slots();
  sum([&](const Piece& p) { return copies_of(p); }, true);
  finish();
}

// One sight for each group of rows and kv head of the sequences that have a view.
bool ViewedAttention::list() {
  n_sights_ = 0;
  for (int i = 0; i < (int)call_->sequences.size(); i++) {
    const SequenceRows& s = call_->sequences[i];
    if (!s.view) continue;
    const int step = s.view->group ? s.view->group : s.rows;
    for (int row = 0; row < s.rows; row += step)
      for (int head = 0; head < (*whole_)[i].kv_heads; head++) {
        if (n_sights_ == (int)sights_.size()) sights_.emplace_back();
        Sight& made = sights_[n_sights_++];
        made.sequence = i, made.head = head, made.row0 = row, made.row1 = std::min(s.rows, row + step);
      }
  }
  return n_sights_ > 0;
}

// The bounds of full pages that have none yet.
void ViewedAttention::make_bounds() {
  struct Missing {
    AttentionState* state;
    int page;
    uint8_t* made;
  };
  struct All : std::vector<Missing> {
    bool filled = false;
    ~All() {  // without memory for all bounds, none are made
      for (Missing& m : *this)
        if (m.made) filled ? m.state->set_bounds(m.page, m.made) : m.state->release_bounds(m.made);
    }
  } missing;
  for (int i = 0; i < (int)call_->sequences.size(); i++) {
    const SequenceRows& s = call_->sequences[i];
    const int kv_heads = (*whole_)[i].kv_heads;
    if (!s.view || std::none_of(s.view->pages, s.view->pages + kv_heads, [](int n) { return n > 0; })) continue;
    auto& state = *static_cast<AttentionState*>(s.state);
    const uint16_t* const* table = state.bounds_table();
    for (int page = 0; page < state.full_pages(); page++)
      if (!table[page]) missing.push_back({&state, page, nullptr});
  }
  const Attention& a = (*whole_)[0];
  auto fill = [&](Missing& m, int thread) {
    const uint8_t* rows = m.state->page_table()[m.page];
    for (int head = 0; head < a.kv_heads; head++)
      engine_.kernels().bounds(rows + head * a.head_stride, a.row_bytes, a.dim, a.format, PAGE_SLOTS,
                               (uint16_t*)m.made + head * m.state->head_bounds(), (float*)engine_.scratch(thread));
  };
  const int n = (int)missing.size();
  for (Missing& m : missing) m.made = m.state->take_bounds();
  engine_.pool().parallel_for(n, engine_.grain(n), [&](int begin, int end, int thread) {
    for (int i = begin; i < end; i++) fill(missing[i], thread);
  });
  missing.filled = true;
}

// ---- which slots -----------------------------------------------------------------------------------

void ViewedAttention::select(Sight& s) {
  const Attention& a = whole(s);
  const ed_view& v = view(s);
  const int full = a.length / PAGE_SLOTS, all = pages_for(a.length);
  int first = a.rank(s.row0);
  for (int row = s.row0; row < s.row1; row++) first = std::min(first, a.rank(row));
  const int before = first - v.recent[s.head];
  s.seen.assign(all, 0);
  std::fill_n(s.seen.begin(), std::min(all, pages_for(v.sinks[s.head])), 1);
  std::fill(s.seen.begin() + std::min(full, std::max(before, 0) / PAGE_SLOTS), s.seen.end(), 1);
  for (int32_t page : Listed(v.chosen_ends, v.chosen, s.head)) s.seen[page] = 1;
  if (v.pages[s.head] < 0) std::fill(s.seen.begin(), s.seen.end(), 1);
  s.left.clear();
  for (int page = 0; page < all; page++)
    if (!s.seen[page]) s.left.push_back(page);
  if (v.pages[s.head] > 0) select_pages(s, v.pages[s.head]);
  make_table(s);
  list_slots(s);
}

// Selects, from the remaining pages, the `count` with the highest bounds of the sight's scores.
void ViewedAttention::select_pages(Sight& s, int count) {
  const Attention& a = whole(s);
  auto& state = *static_cast<AttentionState*>(call_->sequences[s.sequence].state);
  const int n = (int)s.left.size(), width = kv_round(a.dim, 16), queries = (s.row1 - s.row0) * a.group();
  if (count < n) {
    s.queries.assign((size_t)queries * 2 * width, 0.0f);
    for (int i = 0; i < queries; i++) {
      const float* q = a.q + (s.row0 + i / a.group()) * a.q_stride + (s.head * a.group() + i % a.group()) * a.dim;
      float* to = s.queries.data() + (size_t)i * 2 * width;
      for (int d = 0; d < a.dim; d++) to[d] = std::max(q[d], 0.0f), to[width + d] = std::min(q[d], 0.0f);
    }
    const uint16_t* const* table = state.bounds_table();
    std::vector<const uint16_t*> pages(n);
    for (int i = 0; i < n; i++) pages[i] = table[s.left[i]];
    s.bounds.resize(n);
    engine_.kernels().page_scores(s.queries.data(), queries, pages.data(), (int64_t)(s.head * state.head_bounds()), a.dim,
                                  n, s.bounds.data());
    for (float& bound : s.bounds)
      if (!(bound == bound)) bound = -INFINITY;
    std::vector<int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + count, order.end(), [&](int32_t x, int32_t y) {
      return s.bounds[x] != s.bounds[y] ? s.bounds[x] > s.bounds[y] : x < y;
    });
    for (int i = 0; i < count; i++) s.seen[s.left[order[i]]] = 1;
  } else {
    for (int32_t page : s.left) s.seen[page] = 1;
  }
  s.left.erase(std::remove_if(s.left.begin(), s.left.end(), [&](int32_t page) { return s.seen[page]; }), s.left.end());
}

// Makes the table of the visible pages, then of those of pending rows.
void ViewedAttention::make_table(Sight& s) {
  const Attention& a = whole(s);
  const int pending = call_->sequences[s.sequence].pending.count, all = (int)s.seen.size();
  s.pages.clear(), s.table.clear(), s.positions.clear();
  for (int page = 0; page < all; page++)
    if (s.seen[page]) s.pages.push_back(page), s.table.push_back(a.pages[page]);
  s.length = (int)s.pages.size() * PAGE_SLOTS - (all * PAGE_SLOTS - a.length);
  for (int page = all; page * PAGE_SLOTS < a.length + pending; page++) s.table.push_back(a.pages[page]);
  if (!a.slot_positions) return;
  for (int32_t page : s.pages) {
    const int64_t* from = a.slot_positions + page * PAGE_SLOTS;
    s.positions.insert(s.positions.end(), from, from + std::min(PAGE_SLOTS, a.length - page * PAGE_SLOTS));
  }
  s.positions.insert(s.positions.end(), a.slot_positions + a.length, a.slot_positions + a.length + pending);
}

void ViewedAttention::list_slots(Sight& s) {
  const ed_view& v = view(s);
  s.slots.clear(), s.near.clear(), s.runs.clear(), s.bias.clear(), s.kept = nullptr;
  for (const int32_t& slot : Listed(v.slot_ends, v.slots, s.head))
    if (!s.seen[slot / PAGE_SLOTS]) {
      s.slots.push_back(slot);
      if (v.runs) s.runs.push_back(v.runs[&slot - v.slots]);
    }
  if (v.striped) s.near.assign(s.left.size() * PAGE_SLOTS, 0);
}

// ---- sums of what is seen --------------------------------------------------------------------------

void ViewedAttention::cut() {
  pieces_.clear();
  size_t total = 0;
  const int rows = std::max(1, PIECE_QUERIES / group());
  for (int i = 0; i < n_sights_; i++) {
    Sight& s = sights_[i];
    s.piece = (int)pieces_.size();
    for (int row = s.row0; row < s.row1; row += rows) {
      pieces_.push_back({i, row, std::min(s.row1, row + rows), total});
      total += queries(pieces_.back()) * query();
    }
  }
  totals_.resize(total);
  none_.assign(std::max<size_t>(none_.size(), rows), 0);
}

// The view of a piece on the pages that its sight sees.
Attention ViewedAttention::pages_of(const Piece& p) const {
  const Sight& s = sights_[p.sight];
  Attention a = whole(s);
  a.q += p.row0 * a.q_stride, a.out += p.row0 * a.out_stride, a.rows = p.row1 - p.row0;
  if (a.begin) a.begin += p.row0, a.end += p.row0;
  else a.first += p.row0;
  a.pages = s.table.data(), a.length = s.length;
  if (a.slot_positions) a.slot_positions = s.positions.data(), a.row_positions += p.row0;
  return a;
}

// Its view on the copies of single slots: all of them, and no pending row.
Attention ViewedAttention::copies_of(const Piece& p) const {
  const Sight& s = sights_[p.sight];
  Attention a = pages_of(p);
  a.begin = a.end = a.path = none_.data(), a.first = 0;
  a.pages = s.kept ? s.kept->pages() : s.copies.data(), a.length = (int)s.slots.size();
  a.head_stride = 0, a.values = PAGE_SLOTS * a.row_bytes;
  if (a.slot_positions) a.slot_positions = s.copied_positions.data();
  if (!s.runs.empty()) a.bias = s.kept ? s.kept->bias() : s.bias.data();
  return a;
}

int ViewedAttention::chunks(const Piece& p, bool copies) const {
  const Sight& s = sights_[p.sight];
  const int slots = copies ? (int)s.slots.size() : s.length + call_->sequences[s.sequence].pending.count;
  return (slots + CHUNK - 1) / CHUNK;
}

void ViewedAttention::begin_sums() {
  for (const Piece& p : pieces_) clear_sums(pages_of(p), sights_[p.sight].head, (int)queries(p), totals_.data() + p.total);
}

// Adds to the pieces' sums their chunks, in order; where there are few pieces, chunks are attended to apart.
template <class ViewOf>
void ViewedAttention::sum(ViewOf view_of, bool copies) {
  struct Chunk {
    int piece, chunk;
    size_t part;
  };
  const Kernels& k = engine_.kernels();
  ThreadPool& pool = engine_.pool();
  const int n = (int)pieces_.size(), dim = (*whole_)[0].dim;
  std::vector<Chunk> apart;
  size_t size = 0;
  for (int i = 0; i < n && n < 4 * pool.size(); i++)
    for (int c = 0; c < chunks(pieces_[i], copies); c++)
      apart.push_back({i, c, size}), size += queries(pieces_[i]) * query();
  if (pool.size() == 1 || apart.empty() || size > MAX_PARTS) {
    const size_t most = (size_t)std::max(PIECE_QUERIES, group()) * query();
    if (parts_.size() < most * pool.size()) parts_.resize(most * pool.size());
    return pool.parallel_for(n, engine_.grain(n), [&](int begin, int end, int thread) {
      for (int i = begin; i < end; i++) {
        const Piece& p = pieces_[i];
        const Attention a = view_of(p);
        float* part = parts_.data() + most * thread;
        for (int c = 0; c < chunks(p, copies); c++) {
          if (!a.sees(0, a.rows, c)) continue;
          k.attend(a, sights_[p.sight].head, 0, a.rows, c, part, engine_.scratch(thread));
          k.merge(totals_.data() + p.total, part, (int)queries(p), dim);
        }
      }
    });
  }
  if (parts_.size() < size) parts_.resize(size);
  const int items = (int)apart.size();
  pool.parallel_for(items, engine_.grain(items), [&](int begin, int end, int thread) {
    for (int i = begin; i < end; i++) {
      const Piece& p = pieces_[apart[i].piece];
      const Attention a = view_of(p);
      k.attend(a, sights_[p.sight].head, 0, a.rows, apart[i].chunk, parts_.data() + apart[i].part, engine_.scratch(thread));
    }
  });
  for (const Chunk& c : apart) {
    const Piece& p = pieces_[c.piece];
    k.merge(totals_.data() + p.total, parts_.data() + c.part, (int)queries(p), dim);
  }
}

// ---- stripes ---------------------------------------------------------------------------------------

// Adds to the single slots those whose score by the mean query is near the mean anchor.
void ViewedAttention::find_stripes() {
  struct Chunk {
    int sight, chunk;
  };
  std::vector<Chunk> items;
  for (int i = 0; i < n_sights_; i++) {
    Sight& s = sights_[i];
    if (!view(s).striped || s.left.empty()) continue;
    prepare_stripes(s);
    for (int c = 0; c * CHUNK < (int)s.near.size(); c++) items.push_back({i, c});
  }
  const int n = (int)items.size();
  engine_.pool().parallel_for(n, engine_.grain(n), [&](int begin, int end, int thread) {
    auto* scores = (float*)engine_.scratch(thread);
    auto* scratch = (uint8_t*)(scores + group() * CHUNK);
    for (int i = begin; i < end; i++) mark_stripes(sights_[items[i].sight], items[i].chunk, scores, scratch);
  });
  for (int i = 0; i < n_sights_; i++)
    for (size_t slot = 0; slot < sights_[i].near.size(); slot++)
      if (sights_[i].near[slot]) sights_[i].slots.push_back(sights_[i].left[slot / PAGE_SLOTS] * PAGE_SLOTS + slot % PAGE_SLOTS);
}

// Of a sight's query heads the mean query and the mean of the highest scores so far.
void ViewedAttention::prepare_stripes(Sight& s) {
  const Attention& a = whole(s);
  const int rows = s.row1 - s.row0, from = s.head * a.group();
  s.mean.assign((size_t)a.heads * a.dim, 0.0f), s.anchors.assign(a.group(), 0.0f), s.left_table.clear();
  const float* total = totals_.data() + pieces_[s.piece].total;  // its pieces lie side by side
  for (int row = s.row0; row < s.row1; row++)
    for (int j = 0; j < a.group(); j++, total += query()) {
      const float* q = a.q + row * a.q_stride + (from + j) * a.dim;
      for (int d = 0; d < a.dim; d++) s.mean[(from + j) * a.dim + d] += q[d];
      s.anchors[j] += total[0];
    }
  for (float& x : s.mean) x /= (float)rows;
  for (float& x : s.anchors) x /= (float)rows;
  for (int32_t page : s.left) s.left_table.push_back(a.pages[page]);
}

void ViewedAttention::mark_stripes(Sight& s, int chunk, float* scores, uint8_t* scratch) {
  Attention a = whole(s);
  a.q = s.mean.data(), a.rows = 1, a.first = 0, a.begin = a.end = a.path = none_.data();
  a.pages = s.left_table.data(), a.length = (int)s.near.size();
  a.window = 0, a.slot_positions = nullptr;
  engine_.kernels().scores(a, s.head, chunk, scores, scratch);
  const int n = std::min(CHUNK, a.length - chunk * CHUNK);
  for (int j = 0; j < group(); j++) {
    const float least = s.anchors[j] - view(s).theta;
    for (int i = 0; i < n; i++) s.near[chunk * CHUNK + i] |= scores[j * CHUNK + i] >= least;
  }
}

// ---- slots one by one ------------------------------------------------------------------------------

void ViewedAttention::copy_slots() {
  struct Kept : std::vector<SlotCopies*> {
    bool made = false;
    ~Kept() {  // without memory for all of them, none is kept
      for (SlotCopies* copies : *this)
        if (!made) copies->truncate(0);
    }
  } kept;
  std::vector<Copy> items;
  keep_copies(items, kept);
  own_copies(items);
  const int n = (int)items.size();
  engine_.pool().parallel_for(n, engine_.grain(n), [&](int begin, int end, int thread) {
    for (int i = begin; i < end; i++) {
      const Copy& c = items[i];
      const Sight& s = sights_[c.sight];
      for (int j = c.i; j < c.stop; j++)
        copy_slot(s, j, c.to + (j - c.i) * whole(s).row_bytes, (float*)engine_.scratch(thread));
    }
  });
  kept.made = true;
  for (int i = 0; i < n_sights_; i++) {
    sights_[i].copied_positions.clear();
    if (const int64_t* positions = whole(sights_[i]).slot_positions)
      for (int32_t slot : sights_[i].slots) sights_[i].copied_positions.push_back(positions[slot]);
  }
}

// Of each sequence and head the longest list that does not depend on the rows becomes what its state keeps; rows that see
// the first ones of these use them too.
void ViewedAttention::keep_copies(std::vector<Copy>& items, std::vector<SlotCopies*>& set) {
  auto state = [&](const Sight& s) { return static_cast<AttentionState*>(call_->sequences[s.sequence].state); };
  std::vector<int> lists;
  for (int i = 0; i < n_sights_; i++)
    if (!sights_[i].slots.empty() && !view(sights_[i]).striped) lists.push_back(i);
  std::stable_sort(lists.begin(), lists.end(), [&](int x, int y) { return sights_[x].slots.size() > sights_[y].slots.size(); });
  set.reserve(lists.size());
  for (int i : lists) {
    Sight& s = sights_[i];
    SlotCopies& kept = state(s)->copies(s.head);
    if (std::find(set.begin(), set.end(), &kept) != set.end()) {
      if (kept.begins(s.slots, s.runs)) s.kept = &kept;
      continue;
    }
    set.push_back(&kept);
    const int known = kept.set(s.slots, s.runs), n = (int)s.slots.size();
    for (int at = known, stop; at < n; at = stop) {
      stop = std::min(n, (at / PAGE_SLOTS + 1) * PAGE_SLOTS);
      items.push_back({i, at, stop, kept.key(at)});
    }
    s.kept = &kept;
  }
}

// Copies for this call alone.
void ViewedAttention::own_copies(std::vector<Copy>& items) {
  const size_t bytes = 2 * PAGE_SLOTS * (size_t)(*whole_)[0].row_bytes;
  size_t pages = 0;
  for (int i = 0; i < n_sights_; i++)
    if (!sights_[i].kept) pages += pages_for((int)sights_[i].slots.size());
  copies_.resize(std::max(copies_.size(), pages * bytes));
  uint8_t* next = copies_.data();
  for (int i = 0; i < n_sights_; i++) {
    Sight& s = sights_[i];
    s.copies.clear();
    const int n = s.kept ? 0 : (int)s.slots.size();
    for (int at = 0; at < n; at += PAGE_SLOTS, next += bytes) {
      s.copies.push_back(next);
      items.push_back({i, at, std::min(n, at + PAGE_SLOTS), next});
    }
    if (s.kept || s.runs.empty()) continue;
    for (int32_t run : s.runs) s.bias.push_back(std::log((float)run));
    s.bias.resize((s.bias.size() + CHUNK - 1) / CHUNK * CHUNK, 0.0f);
  }
}

// Slot i of those that are seen one by one: its key, and its value or the mean of those that it stands for.
void ViewedAttention::copy_slot(const Sight& s, int i, uint8_t* to, float* scratch) const {
  const Attention& a = whole(s);
  const int slot = s.slots[i], run = s.runs.empty() ? 1 : s.runs[i];
  const uint8_t* row = a.pages[slot / PAGE_SLOTS] + s.head * a.head_stride + slot % PAGE_SLOTS * a.row_bytes;
  uint8_t* value = to + PAGE_SLOTS * a.row_bytes;
  std::memcpy(to, row, a.row_bytes);
  row += a.values;
  if (run == 1) return (void)std::memcpy(value, row, a.row_bytes);
  const Kernels& k = engine_.kernels();
  float *sum = scratch, *one = scratch + kv_round(a.dim, 16);
  k.load_kv(row, a.dim, a.format, sum);
  for (int j = 1; j < run; j++) {
    k.load_kv(row + j * a.row_bytes, a.dim, a.format, one);
    for (int d = 0; d < a.dim; d++) sum[d] += one[d];
  }
  for (int d = 0; d < a.dim; d++) sum[d] /= (float)run;
  k.store_kv(sum, a.dim, a.format, value);
}

// ---- results ---------------------------------------------------------------------------------------

void ViewedAttention::finish() {
  const int n = (int)pieces_.size();
  engine_.pool().parallel_for(n, engine_.grain(n), [&](int begin, int end, int) {
    for (int i = begin; i < end; i++) {
      const Piece& p = pieces_[i];
      engine_.kernels().finish(pages_of(p), sights_[p.sight].head, 0, p.row1 - p.row0, totals_.data() + p.total);
    }
  });
  std::vector<int> wanted;
  for (int i = 0; i < (int)call_->sequences.size(); i++)
    if (call_->sequences[i].view && call_->sequences[i].attention_sums) wanted.push_back(i);
  const int heads = (*whole_)[0].kv_heads, tasks = (int)wanted.size() * heads;
  sums_.resize(engine_.pool().size());
  engine_.pool().parallel_for(tasks, 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; i++) add_attention_sums(wanted[i / heads], i % heads, thread);
  });
}

// The attention sums of one kv head of a sequence, piece by piece.
void ViewedAttention::add_attention_sums(int sequence, int head, int thread) {
  const SequenceRows& rows = call_->sequences[sequence];
  const int committed = (*whole_)[sequence].length;
  float* out = rows.attention_sums + (size_t)head * (committed + rows.pending.count);
  std::vector<float>& sums = sums_[thread];
  for (const Piece& p : pieces_) {
    const Sight& s = sights_[p.sight];
    if (s.sequence != sequence || s.head != head) continue;
    auto add = [&](const Attention& a, int slots, auto slot_of) {
      sums.assign(slots, 0.0f);
      engine_.kernels().attention_sums(a, head, 0, a.rows, totals_.data() + p.total, sums.data(), engine_.scratch(thread));
      for (int i = 0; i < slots; i++) out[slot_of(i)] += sums[i];
    };
    add(pages_of(p), s.length + rows.pending.count, [&](int i) {
      return i < s.length ? s.pages[i / PAGE_SLOTS] * PAGE_SLOTS + i % PAGE_SLOTS : committed + i - s.length;
    });
    if (!s.slots.empty()) add(copies_of(p), (int)s.slots.size(), [&](int i) { return s.slots[i]; });
  }
}

}  // namespace edgedec
