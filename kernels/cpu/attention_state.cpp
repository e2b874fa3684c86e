#include "attention_state.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "dispatch.h"
#include "kernels.h"
#include "kv.h"

namespace edgedec {

AttentionState::AttentionState(int kv_heads, int head_dim, int parts, int format, std::shared_ptr<PagePool> pool)
    : kv_heads_(kv_heads),
      runs_(parts * kv_heads),
      head_dim_(head_dim),
      format_(format),
      row_bytes_(kv_row_bytes(head_dim, format)),
      pool_(std::move(pool)) {}

AttentionState::~AttentionState() {
  drop_bounds(0, (int)bounds_.size());
  for (uint8_t* page : pages_) pool_->release(page);
}

size_t AttentionState::page_bytes() const { return (size_t)runs_ * PAGE_SLOTS * row_bytes_; }

int AttentionState::slots_of(int length) const {
  if (identity()) return std::min(slots_, length);
  return (int)(std::lower_bound(tokens_.begin(), tokens_.begin() + slots_, length) - tokens_.begin());
}

// Makes slots from .. to - 1 writable, and keeps the slots before them.
void AttentionState::need_slots(int from, int to) {
  for (int page = from / PAGE_SLOTS; page * PAGE_SLOTS < to; page++) {
    if (page < (int)pages_.size()) own(page, std::max(from, slots_) - page * PAGE_SLOTS);
    else pages_.reserve(page + 1), pages_.push_back(pool_->take(page_bytes()));
  }
}

// Makes a page this state's own; of a copy the first `used` rows are made.
void AttentionState::own(int page, int used) {
  uint8_t* old = pages_[page];
  if (PagePool::holders(old) == 1) return;
  uint8_t* made = pool_->take(page_bytes());
  const size_t bytes = std::min(std::max(used, 0), PAGE_SLOTS) * row_bytes_;
  for (int run = 0; bytes && run < runs_; run++)
    std::memcpy(made + run * PAGE_SLOTS * row_bytes_, old + run * PAGE_SLOTS * row_bytes_, bytes);
  pages_[page] = made;
  pool_->release(old);
}

// Makes the pages of slots first .. slots - 1 this state's own, for rows that are still to be moved there: of
// a shared page, only the rows before `first` are copied. Returns the pages as they were; those that were
// replaced are still held.
std::vector<uint8_t*> AttentionState::own_targets(int first, int slots) {
  std::vector<uint8_t*> before = pages_;
  const int begin = first / PAGE_SLOTS, end = (slots + PAGE_SLOTS - 1) / PAGE_SLOTS;
  try {
    for (int page = begin; page < end; page++)
      if (PagePool::holders(before[page]) > 1) pages_[page] = pool_->take(page_bytes());
  } catch (const std::bad_alloc&) {
    for (int page = begin; page < end; page++)
      if (pages_[page] != before[page]) pool_->release(pages_[page]);
    pages_ = before;
    throw;
  }
  for (int slot = begin * PAGE_SLOTS; begin < end && pages_[begin] != before[begin] && slot < first; slot++)
    copy(before[begin], slot, slot);
  return before;
}

void AttentionState::move(int from, int to) {
  if (from == to) return;
  own(to / PAGE_SLOTS, PAGE_SLOTS);
  copy(pages_[from / PAGE_SLOTS], from, to);
}

// The row of slot `from`, in `page`, becomes that of slot `to`.
void AttentionState::copy(const uint8_t* page, int from, int to) {
  const uint8_t* source = page + from % PAGE_SLOTS * row_bytes_;
  uint8_t* target = pages_[to / PAGE_SLOTS] + to % PAGE_SLOTS * row_bytes_;
  for (int run = 0; run < runs_; run++)
    std::memcpy(target + run * PAGE_SLOTS * row_bytes_, source + run * PAGE_SLOTS * row_bytes_, row_bytes_);
}

// Slot `slot`, the next one, is of this token.
void AttentionState::name(int slot, int64_t token, int64_t position) {
  if (identity()) {
    if (token == slot && position == slot) return;
    tokens_.resize(slot), positions_.resize(slot);
    std::iota(tokens_.begin(), tokens_.end(), 0), std::iota(positions_.begin(), positions_.end(), 0);
  }
  tokens_.resize(slot), positions_.resize(slot);
  tokens_.push_back(token), positions_.push_back(position);
}

void AttentionState::keep_rows(const KeptRow* rows, int n) {
  for (int i = 0; i < n; i++) {
    move(start() + rows[i].row, slots_ + i);
    name(slots_ + i, rows[i].token, rows[i].position);
  }
}

const uint16_t* const* AttentionState::bounds_table() {
  bounds_.resize(full_pages(), nullptr);
  return reinterpret_cast<const uint16_t* const*>(bounds_.data());
}

void AttentionState::drop_bounds(int from, int to) {
  for (int page = from; page < std::min(to, (int)bounds_.size()); page++) {
    if (bounds_[page]) pool_->release(bounds_[page]);
    bounds_[page] = nullptr;
  }
}

SlotCopies& AttentionState::copies(int head) {
  while ((int)copies_.size() < kv_heads_) copies_.emplace_back(pool_, row_bytes_);
  return copies_[head];
}

void AttentionState::drop_copies(int from) {
  for (SlotCopies& of_head : copies_) of_head.truncate(from);
}

// After slots were dropped: releases pages, and tables that are the identity.
void AttentionState::shrink() {
  drop_copies(slots_);
  drop_bounds(full_pages(), (int)bounds_.size());
  bounds_.resize(std::min<size_t>(full_pages(), bounds_.size()));
  const size_t pages = (slots_ + PAGE_SLOTS - 1) / PAGE_SLOTS;
  for (size_t i = pages; i < pages_.size(); i++) pool_->release(pages_[i]);
  pages_.resize(std::min(pages, pages_.size()));
  if (identity()) return;
  tokens_.resize(slots_), positions_.resize(slots_);
  for (int i = 0; i < slots_; i++)
    if (tokens_[i] != i || positions_[i] != i) return;
  tokens_.clear(), positions_.clear();
}

void AttentionState::truncate(int length) {
  slots_ = slots_of(length);
  forget();
  shrink();
}

std::unique_ptr<BlockState> AttentionState::fork(int length) const {
  auto made = std::make_unique<AttentionState>(kv_heads_, head_dim_, runs_ / kv_heads_, format_, pool_);
  const int slots = slots_of(length), pages = (slots + PAGE_SLOTS - 1) / PAGE_SLOTS;
  made->pages_.assign(pages_.begin(), pages_.begin() + pages);
  for (uint8_t* page : made->pages_) PagePool::hold(page);
  made->slots_ = slots;
  made->bounds_.assign(bounds_.begin(), bounds_.begin() + std::min<size_t>(slots / PAGE_SLOTS, bounds_.size()));
  for (uint8_t* bounds : made->bounds_)
    if (bounds) PagePool::hold(bounds);
  if (!identity()) {
    made->tokens_.assign(tokens_.begin(), tokens_.begin() + slots);
    made->positions_.assign(positions_.begin(), positions_.begin() + slots);
    made->shrink();
  }
  made->forget();
  return made;
}

bool AttentionState::drop(const int64_t* slots, int n) {
  for (int i = 0; i < n; i++)
    if (slots[i] < 0 || slots[i] >= slots_ || (i && slots[i] <= slots[i - 1])) return false;
  if (!n) return true;
  std::vector<int64_t> tokens(slots_), positions(slots_);
  this->tokens(tokens.data()), this->positions(positions.data());
  const int old = slots_, first = (int)slots[0];
  int to = first;
  const std::vector<uint8_t*> pages = own_targets(first, old - n);  // or nothing changes
  drop_bounds(first / PAGE_SLOTS, (int)bounds_.size()), drop_copies(first);
  for (int from = to, next = 0; from < old; from++) {
    if (next < n && slots[next] == from) {
      next++;
      continue;
    }
    copy(pages[from / PAGE_SLOTS], from, to);
    tokens[to] = tokens[from], positions[to] = positions[from];
    to++;
  }
  for (size_t i = 0; i < pages.size(); i++)
    if (pages[i] != pages_[i]) pool_->release(pages[i]);
  tokens.resize(to), positions.resize(to);
  tokens_ = std::move(tokens), positions_ = std::move(positions);
  slots_ = to;
  forget();
  shrink();
  return true;
}

// The same of one kv head.
void AttentionState::copy_head(const uint8_t* page, int head, int from, int to) {
  const uint8_t* source = page + from % PAGE_SLOTS * row_bytes_;
  uint8_t* target = pages_[to / PAGE_SLOTS] + to % PAGE_SLOTS * row_bytes_;
  if (source == target) return;
  for (size_t run = head; run < (size_t)runs_; run += kv_heads_)
    std::memcpy(target + run * PAGE_SLOTS * row_bytes_, source + run * PAGE_SLOTS * row_bytes_, row_bytes_);
}

bool AttentionState::drop_by_head(const int64_t* slots, int n) {
  for (int i = 0; i < kv_heads_ * n; i++)
    if (slots[i] < 0 || slots[i] >= slots_ || (i % n && slots[i] <= slots[i - 1])) return false;
  if (!n) return true;
  const int old = slots_;
  int first = old;
  for (int head = 0; head < kv_heads_; head++) first = std::min(first, (int)slots[head * n]);
  std::vector<int> latest(old - n, 0);  // of each slot that stays: the last one that a head has there
  const std::vector<uint8_t*> pages = own_targets(first, old - n);  // or nothing changes
  drop_bounds(first / PAGE_SLOTS, (int)bounds_.size()), drop_copies(first);
  for (int head = 0; head < kv_heads_; head++)
    for (int from = 0, to = 0, next = 0; from < old; from++) {
      if (next < n && slots[head * n + next] == from) {
        next++;
        continue;
      }
      if (to >= first) copy_head(pages[from / PAGE_SLOTS], head, from, to);
      latest[to] = std::max(latest[to], from);
      to++;
    }
  for (size_t i = 0; i < pages.size(); i++)
    if (pages[i] != pages_[i]) pool_->release(pages[i]);
  std::vector<int64_t> tokens, positions;
  for (int slot : latest) tokens.push_back(slot_token(slot)), positions.push_back(slot_position(slot));
  tokens_ = std::move(tokens), positions_ = std::move(positions);
  slots_ = old - n;
  forget();
  shrink();
  return true;
}

// The row of a slot: of run h the key of head h, of run kv_heads + h its value.
uint8_t* AttentionState::row(int run, int slot) const {
  return pages_[slot / PAGE_SLOTS] + run * PAGE_SLOTS * row_bytes_ + slot % PAGE_SLOTS * row_bytes_;
}

bool AttentionState::merge(const int64_t* into, const int64_t* slots, const float* weights, int n) {
  std::vector<int64_t> targets(into, into + n);
  std::sort(targets.begin(), targets.end());
  for (int i = 0; i < n; i++) {
    if (into[i] < 0 || into[i] >= slots_ || slots[i] < 0 || slots[i] >= slots_) return false;
    if (std::binary_search(targets.begin(), targets.end(), slots[i])) return false;
  }
  for (int64_t target : targets) own((int)target / PAGE_SLOTS, PAGE_SLOTS);  // or nothing changes
  for (int64_t target : targets) drop_bounds((int)target / PAGE_SLOTS, (int)target / PAGE_SLOTS + 1);
  if (n) drop_copies((int)targets[0]);
  forget();
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return into[a] < into[b]; });
  const Kernels& k = *choose(nullptr);
  std::vector<float> sum(head_dim_), one(head_dim_);
  for (int run = 0; run < runs_; run++) {
    const float* weight = weights + (size_t)(run % kv_heads_) * n;
    for (int i = 0, next; i < n; i = next) {
      uint8_t* target = row(run, (int)into[order[i]]);
      float kept = 1.0f;
      for (next = i; next < n && into[order[next]] == into[order[i]]; next++) kept -= weight[order[next]];
      k.load_kv(target, head_dim_, format_, sum.data());
      for (float& x : sum) x *= kept;
      for (int j = i; j < next; j++) {
        k.load_kv(row(run, (int)slots[order[j]]), head_dim_, format_, one.data());
        for (int d = 0; d < head_dim_; d++) sum[d] += weight[order[j]] * one[d];
      }
      k.store_kv(sum.data(), head_dim_, format_, target);
    }
  }
  return true;
}

void AttentionState::keys(int from, float* out) const {
  const Kernels& k = *choose(nullptr);
  for (int head = 0; head < kv_heads_; head++)
    for (int slot = from; slot < slots_; slot++, out += head_dim_) k.load_kv(row(head, slot), head_dim_, format_, out);
}

// Shared pages stay in memory: a copy in a file would only take more room.
int AttentionState::offload(const int32_t* pages, int n, const char* folder) {
  for (int i = 0; i < n; i++)
    if (pages[i] < 0 || pages[i] >= full_pages()) return 14;
  for (int i = 0; i < n; i++) {
    uint8_t*& page = pages_[pages[i]];
    if (!PagePool::on_disk(page)) {
      if (PagePool::holders(page) > 1) continue;
      uint8_t* made = pool_->take_on_disk(page_bytes(), folder);
      if (!made) return 17;
      std::memcpy(made, page, page_bytes());
      pool_->release(page);
      page = made;
    }
    PagePool::rest(page);
  }
  return 0;
}

size_t AttentionState::bytes() const {
  const size_t here = std::count_if(pages_.begin(), pages_.end(), [](const uint8_t* p) { return !PagePool::on_disk(p); });
  const size_t bounds = bounds_.size() - std::count(bounds_.begin(), bounds_.end(), nullptr);
  size_t copied = 0;
  for (const SlotCopies& of_head : copies_) copied += of_head.bytes();
  return here * page_bytes() + bounds * bounds_bytes() + copied;
}

void AttentionState::positions(int64_t* out) const {
  for (int i = 0; i < slots_; i++) out[i] = slot_position(i);
}

void AttentionState::tokens(int64_t* out) const {
  for (int i = 0; i < slots_; i++) out[i] = slot_token(i);
}

void AttentionState::pages(int64_t* held, int64_t* shared) const {
  *held += (int64_t)pages_.size();
  for (const uint8_t* page : pages_) *shared += PagePool::holders(page) > 1;
}

std::vector<int64_t> AttentionState::page_ids() const {
  std::vector<int64_t> ids;
  for (int slot = 0; slot < slots_; slot += PAGE_SLOTS) ids.push_back((int64_t)(intptr_t)pages_[slot / PAGE_SLOTS]);
  return ids;
}

// ---- saving: slots, whether they are named, tokens, positions, then rows [k and v][kv_heads][slots] ---------

// work(bytes of rows that lie side by side, where) for slots `from` .. `slots` - 1, in the order of a saved state.
template <class Do>
void AttentionState::each_run(int from, int slots, Do work) const {
  for (int run = 0; run < runs_; run++)
    for (int slot = from, n; slot < slots; slot += n) {
      n = std::min(PAGE_SLOTS - slot % PAGE_SLOTS, slots - slot);
      work(n * row_bytes_, row(run, slot));
    }
}

size_t AttentionState::save_bytes() const {
  return 16 + (identity() ? 0 : 16 * (size_t)slots_) + (size_t)runs_ * row_bytes_ * slots_;
}

uint8_t* AttentionState::save(uint8_t* out) const {
  const int64_t header[2] = {slots_, !identity()};
  auto put = [&](const void* from, size_t bytes) {
    if (bytes) std::memcpy(out, from, bytes);
    out += bytes;
  };
  put(header, sizeof header);
  put(tokens_.data(), 8 * tokens_.size());
  put(positions_.data(), 8 * positions_.size());
  each_run(0, slots_, [&](size_t bytes, const uint8_t* rows) { put(rows, bytes); });
  return out;
}

uint8_t* AttentionState::save_rest(int from, uint8_t* out) const {
  each_run(from, slots_, [&](size_t bytes, const uint8_t* rows) { std::memcpy(out, rows, bytes), out += bytes; });
  return out;
}

const uint8_t* AttentionState::append(const uint8_t* from, const uint8_t* end, int tokens) {
  if ((size_t)(end - from) < (size_t)runs_ * row_bytes_ * tokens) return nullptr;
  forget();
  need_slots(slots_, slots_ + tokens);
  each_run(slots_, slots_ + tokens, [&](size_t bytes, uint8_t* rows) { std::memcpy(rows, from, bytes), from += bytes; });
  slots_ += tokens;
  forget();
  shrink();
  return from;
}

const uint8_t* AttentionState::load(const uint8_t* from, const uint8_t* end) {
  int64_t header[2];
  if (end - from < (int64_t)sizeof header) return nullptr;
  std::memcpy(header, from, sizeof header);
  from += sizeof header;
  const int64_t slots = header[0], named = header[1], each = runs_ * (int64_t)row_bytes_ + (named ? 16 : 0);
  if (slots < 0 || named < 0 || named > 1 || slots > (end - from) / each) return nullptr;
  std::vector<int64_t> tokens(named ? slots : 0), positions(tokens.size());
  auto get = [&](void* to, size_t bytes) {
    if (bytes) std::memcpy(to, from, bytes);
    from += bytes;
  };
  get(tokens.data(), 8 * tokens.size());
  get(positions.data(), 8 * positions.size());
  for (size_t i = 0; i < tokens.size(); i++)
    if (tokens[i] < 0 || (i && tokens[i] < tokens[i - 1])) return nullptr;
  truncate(0);
  need_slots(0, (int)slots);
  each_run(0, (int)slots, [&](size_t bytes, uint8_t* rows) { get(rows, bytes); });
  tokens_ = std::move(tokens), positions_ = std::move(positions);
  slots_ = (int)slots;
  forget();
  shrink();
  return from;
}

}  // namespace edgedec
