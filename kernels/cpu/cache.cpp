#include "cache.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "blocks.h"
#include "kv.h"
#include "pages.h"

namespace edgedec {

std::shared_ptr<const RowNames> RowNames::of(const PendingRows& rows) {
  bool plain = true;
  for (int i = 0; plain && i < rows.count; i++)
    plain = rows.positions[i] == rows.positions[0] + i && (!rows.numbers || rows.numbers[i] == i);
  if (plain) return nullptr;
  auto names = std::make_shared<RowNames>();
  names->positions.assign(rows.positions, rows.positions + rows.count);
  names->numbers.resize(rows.count);
  for (int i = 0; i < rows.count; i++) names->numbers[i] = rows.numbers ? rows.numbers[i] : i;
  return names;
}

// ---- the state of one block ------------------------------------------------------------------------

bool BlockState::accepts(const PendingRows& rows) const {
  if (rows.first == 0) return true;
  if (rows.first > rows_ || start_ != slots_) return false;
  for (int i = 0; (names_ || rows.numbers) && i < rows.first; i++)
    if (number(i) != (rows.numbers ? rows.numbers[i] : i)) return false;
  return true;
}

void BlockState::begin(const PendingRows& rows, const std::shared_ptr<const RowNames>& names) {
  if (rows.first == 0) forget();
  reserve_rows(rows);
  rows_ = rows.count, names_ = names;
  base_ = rows.count ? rows.positions[0] : 0;
}

int BlockState::row_of(int64_t number) const {
  if (!names_) return number >= 0 && number < rows_ ? (int)number : -1;
  const auto& all = names_->numbers;
  const auto at = std::lower_bound(all.begin(), all.end(), number);
  return at != all.end() && *at == number ? (int)(at - all.begin()) : -1;
}

void BlockState::commit(const int64_t* numbers, int n, int token, int step) {
  KeptRow few[16];
  std::vector<KeptRow> many;
  if (n > 16) many.resize(n);
  KeptRow* kept = n > 16 ? many.data() : few;
  int count = 0;
  for (int i = 0; i < n; i++) {
    const int64_t number = numbers ? numbers[i] : i;
    const int row = number > done_ ? row_of(number) : -1;
    if (row >= 0) kept[count++] = {row, token + i * step, position(row)};
  }
  if (!count) return;
  keep_rows(kept, count);
  slots_ += count;
  done_ = number(kept[count - 1].row);
}

void BlockState::rollback() { forget(); }

// ---- all of them -----------------------------------------------------------------------------------

Cache::Cache(std::shared_ptr<const CachePool> pool, int capacity) : pool_(std::move(pool)), capacity_(capacity) {
  states_.resize(pool_->empty.size());
  for (size_t i = 0; i < states_.size(); i++)
    if (pool_->empty[i]) states_[i] = pool_->empty[i]->fork(0);
}

// The most tokens <= length that all blocks can be truncated to.
int Cache::checkpoint(int length) const {
  length = std::max(0, std::min(length, length_));
  for (int before = -1; before != length;) {
    before = length;
    for (const auto& state : states_)
      if (state) length = std::min(length, state->checkpoint(length));
  }
  return length;
}

std::unique_ptr<Cache> Cache::fork(int length) const {
  auto made = std::make_unique<Cache>(pool_, capacity_);
  made->adopt(*this, length);
  return made;
}

void Cache::adopt(const Cache& other, int length) {
  length = other.checkpoint(length);
  std::vector<std::unique_ptr<BlockState>> states(states_.size());
  for (size_t i = 0; i < states.size(); i++)
    if (other.states_[i]) states[i] = other.states_[i]->fork(length);
  states_ = std::move(states), length_ = length;
  forget_tree();
}

void Cache::begin(const int32_t* blocks, int n_blocks, const PendingRows& rows,
                  const std::shared_ptr<const RowNames>& names) {
  auto state = [&](int i) { return states_[blocks ? blocks[i] : i].get(); };
  bool keeps = false;
  for (int i = 0; i < n_blocks; i++) keeps = keeps || state(i);
  if (!keeps) return;
  if (rows.first == 0 && tree_done_ >= 0) rollback();
  for (int i = 0; i < n_blocks; i++)
    if (state(i)) state(i)->begin(rows, names);
  if (rows.count) tree_size_ = std::max(tree_size_, 1 + (rows.numbers ? rows.numbers[rows.count - 1] : rows.count - 1));
}

int Cache::commit(const int64_t* rows, int n) {
  if (n <= 0) return n ? 1 : 0;
  for (int i = 1; rows && i < n; i++)
    if (rows[i] <= rows[i - 1]) return 10;
  const int64_t first = rows ? rows[0] : 0, last = rows ? rows[n - 1] : n - 1;
  if (first <= tree_done_ || last >= tree_size_) return 9;
  for (const auto& state : states_)
    if (state) state->commit(rows, n, length_);
  length_ += n, tree_done_ = last;
  return 0;
}

// The first n pending rows become further slots of the last committed token.
int Cache::attach(int n) {
  if (n <= 0 || n > tree_size_ || tree_done_ >= 0 || !length_) return 9;
  for (const auto& state : states_) {
    if (state && !state->extensible()) return 4;
    if (state && state->slots() + n > length_ + MOST_ATTACHED) return 6;
  }
  for (const auto& state : states_)
    if (state) state->commit(nullptr, n, length_ - 1, 0);
  rollback();
  return 0;
}

void Cache::rollback() {
  for (const auto& state : states_)
    if (state) state->rollback();
  forget_tree();
}

int Cache::truncate(int length) {
  length_ = checkpoint(length);
  for (const auto& state : states_)
    if (state) state->truncate(length_);
  forget_tree();
  return length_;
}

int Cache::drop(int block, const int64_t* slots, int n) {
  if (block < 0 || block >= blocks() || !states_[block]) return 4;
  return states_[block]->drop(slots, n) ? 0 : 14;
}

int Cache::drop_by_head(int block, const int64_t* slots, int n) {
  if (block < 0 || block >= blocks() || !states_[block]) return 4;
  return n >= 0 && states_[block]->drop_by_head(slots, n) ? 0 : 14;
}

int Cache::merge(int block, const int64_t* into, const int64_t* slots, const float* weights, int n) {
  if (block < 0 || block >= blocks() || !states_[block]) return 4;
  return states_[block]->merge(into, slots, weights, n) ? 0 : 14;
}

int Cache::reserve(int rows) {
  for (const auto& state : states_) {
    if (!state) continue;
    if (rows < 0 || rows > capacity_ - std::min(state->slots(), length_)) return 6;
    state->reserve(rows);
  }
  return 0;
}

void Cache::pages(int64_t* held, int64_t* shared) const {
  *held = *shared = 0;
  for (const auto& state : states_)
    if (state) state->pages(held, shared);
}

std::vector<int64_t> Cache::page_ids() const {
  for (const auto& state : states_)
    if (state) {
      std::vector<int64_t> ids = state->page_ids();
      if (!ids.empty()) return ids;
    }
  return {};
}

int Cache::offload(int block, const int32_t* pages, int n, const char* folder) {
  if (block < 0 || block >= blocks() || !states_[block]) return 4;
  return states_[block]->offload(pages, n, folder);
}

size_t Cache::bytes() const {
  size_t bytes = 0;
  for (const auto& state : states_)
    if (state) bytes += state->bytes();
  return bytes;
}

// ---- saving ----------------------------------------------------------------------------------------

namespace {

struct SavedHeader {
  char magic[4];
  int32_t version, kv, blocks;
  uint64_t shape;
  int64_t length;
};

}  // namespace

size_t Cache::save_bytes() const {
  size_t bytes = sizeof(SavedHeader);
  for (const auto& state : states_)
    if (state) bytes += state->save_bytes();
  return bytes;
}

void Cache::save(uint8_t* out) const {
  const SavedHeader header{{'e', 'd', 'k', 'v'}, 1, pool_->kv, blocks(), pool_->shape, length_};
  std::memcpy(out, &header, sizeof header);
  out += sizeof header;
  for (const auto& state : states_)
    if (state) out = state->save(out);
}

int Cache::load(const uint8_t* data, size_t size) {
  SavedHeader header;
  if (size < sizeof header) return 15;
  std::memcpy(&header, data, sizeof header);
  if (std::memcmp(header.magic, "edkv", 4) || header.version != 1 || header.kv != pool_->kv ||
      header.blocks != blocks() || header.shape != pool_->shape || header.length < 0 || header.length > capacity_)
    return 15;
  Cache made(pool_, capacity_);
  const uint8_t *from = data + sizeof header, *end = data + size;
  for (const auto& state : made.states_) {
    if (state && !(from = state->load(from, end))) return 15;
    if (!state) continue;
    std::vector<int64_t> tokens(state->slots());
    state->tokens(tokens.data());
    if (tokens.size() > (size_t)header.length + MOST_ATTACHED) return 15;
    if (!tokens.empty() && tokens.back() >= header.length) return 15;
  }
  if (from != end) return 15;
  states_ = std::move(made.states_), length_ = (int)header.length;
  forget_tree();
  return 0;
}

// ---- the tokens from one on ------------------------------------------------------------------------

namespace {

struct RestHeader {
  SavedHeader cache;
  int64_t from;
};

}  // namespace

size_t Cache::rest_bytes(int from) const {
  size_t bytes = sizeof(RestHeader);
  if (from < 0 || from > length_) return 0;
  for (const auto& state : states_) {
    if (state && (!state->contiguous() || state->slots() != length_)) return 0;
    if (state) bytes += state->rest_bytes(from);
  }
  return bytes;
}

void Cache::save_rest(int from, uint8_t* out) const {
  const RestHeader header{{{'e', 'd', 'k', 'r'}, 1, pool_->kv, blocks(), pool_->shape, length_}, from};
  std::memcpy(out, &header, sizeof header);
  out += sizeof header;
  for (const auto& state : states_)
    if (state) out = state->save_rest(from, out);
}

// If the data does not fit, the cache is restored, provided that recurrent blocks have a checkpoint there.
int Cache::append(const uint8_t* data, size_t size) {
  RestHeader header;
  if (size < sizeof header) return 15;
  std::memcpy(&header, data, sizeof header);
  const SavedHeader& saved = header.cache;
  if (std::memcmp(saved.magic, "edkr", 4) || saved.version != 1 || saved.kv != pool_->kv || saved.blocks != blocks() ||
      saved.shape != pool_->shape || header.from != length_ || saved.length < length_ || saved.length > capacity_ ||
      !rest_bytes(length_))
    return 15;
  const uint8_t *from = data + sizeof header, *end = data + size;
  rollback();
  for (const auto& state : states_) {
    if (state && from) from = state->append(from, end, (int)(saved.length - length_));
    if (state && from && state->slots() != saved.length) from = nullptr;
  }
  if (from != end) return truncate(length_), 15;
  length_ = (int)saved.length;
  return 0;
}

uint64_t state_shape(const ed_model& model) {
  uint64_t hash = 14695981039346656037ull;
  auto add = [&](int64_t value) { hash = (hash ^ (uint64_t)value) * 1099511628211ull; };
  for (int i = 0; i < model.n_blocks; i++) {
    const ed_block& b = model.blocks[i];
    add(b.kind);
    if (b.attention) add(b.attention->kv_heads), add(b.attention->head_dim);
    if (b.ssm)
      for (int n : {b.ssm->heads, b.ssm->head_dim, b.ssm->state_size, b.ssm->groups, b.ssm->conv_size}) add(n);
    if (b.s6)
      for (int n : {b.s6->inner, b.s6->state_size, b.s6->conv_size}) add(n);
    if (b.rwkv7)
      for (int n : {b.rwkv7->heads, b.rwkv7->head_dim, b.rwkv7->key_dim}) add(n);
    if (b.rwkv7 || b.channel_mix) add(model.hidden);
    if (b.conv) add(b.conv->channels), add(b.conv->conv_size);
    if (b.delta)
      for (int n : {b.delta->heads, b.delta->head_dim, b.delta->key_dim, b.delta->groups, b.delta->conv_size}) add(n);
  }
  return hash;
}

}  // namespace edgedec

// ---- the C interface ---------------------------------------------------------------------------

namespace {

// `work`, or `otherwise` if memory is short.
template <class T, class Do>
T guarded(T otherwise, Do work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return otherwise;
  }
}

}  // namespace

int ed_cache_page_slots(void) { return edgedec::PAGE_SLOTS; }

uint64_t ed_kv_row_bytes(int dim, int kv) { return edgedec::kv_row_bytes(dim, kv); }

ed_cache_pool* ed_cache_pool_new(const ed_model* model, int kv) {
  return guarded<ed_cache_pool*>(nullptr, [&]() -> ed_cache_pool* {
    auto made = std::make_shared<edgedec::CachePool>();
    made->pages = std::make_shared<edgedec::PagePool>();
    made->kv = kv, made->shape = edgedec::state_shape(*model);
    if (!edgedec::kv_row_bytes(1, kv)) return nullptr;
    for (int i = 0; i < model->n_blocks; i++) {
      const edgedec::BlockKind* kind = edgedec::block_kind(model->blocks[i].kind);
      if (!kind) return nullptr;
      made->empty.emplace_back();
      if (kind->make_state) made->empty.back() = kind->make_state(*model, model->blocks[i], kv, made->pages);
    }
    return new ed_cache_pool{std::move(made)};
  });
}

void ed_cache_pool_free(ed_cache_pool* pool) { delete pool; }

int64_t ed_cache_pool_pages(const ed_cache_pool* pool) { return pool->pool->pages->live(); }

void ed_cache_pool_trim(ed_cache_pool* pool) { pool->pool->pages->trim(); }

ed_cache* ed_cache_new(ed_cache_pool* pool, int capacity) {
  return guarded<ed_cache*>(nullptr, [&] { return new ed_cache{{pool->pool, capacity}}; });
}

void ed_cache_free(ed_cache* cache) { delete cache; }

int ed_cache_length(const ed_cache* cache) { return cache->cache.length(); }

ed_cache* ed_cache_fork(const ed_cache* cache, int length, int capacity) {
  return guarded<ed_cache*>(nullptr, [&] {
    auto made = std::make_unique<ed_cache>(ed_cache{{cache->cache.shared_pool(), capacity}});
    made->cache.adopt(cache->cache, length);
    return made.release();
  });
}

int ed_cache_adopt(ed_cache* cache, const ed_cache* other, int length) {
  if (cache->cache.pool().shape != other->cache.pool().shape || cache->cache.pool().kv != other->cache.pool().kv)
    return 8;
  if (std::min(length, other->cache.length()) > cache->cache.capacity()) return 6;
  return guarded(-1, [&] { return cache->cache.adopt(other->cache, length), 0; });
}

int ed_cache_commit(ed_cache* cache, const int64_t* rows, int n) {
  return guarded(-1, [&] { return cache->cache.commit(rows, n); });
}

int ed_cache_attach(ed_cache* cache, int n) {
  return guarded(-1, [&] { return cache->cache.attach(n); });
}

void ed_cache_rollback(ed_cache* cache) { cache->cache.rollback(); }

int ed_cache_truncate(ed_cache* cache, int length) { return cache->cache.truncate(length); }

int ed_cache_drop(ed_cache* cache, int block, const int64_t* slots, int n) {
  return guarded(-1, [&] { return cache->cache.drop(block, slots, n); });
}

int ed_cache_drop_by_head(ed_cache* cache, int block, const int64_t* slots, int n) {
  return guarded(-1, [&] { return cache->cache.drop_by_head(block, slots, n); });
}

int ed_cache_merge(ed_cache* cache, int block, const int64_t* into, const int64_t* slots, const float* weights, int n) {
  return guarded(-1, [&] { return cache->cache.merge(block, into, slots, weights, n); });
}

static const edgedec::BlockState* state_of(const ed_cache* cache, int block) {
  return block >= 0 && block < cache->cache.blocks() ? cache->cache.state(block) : nullptr;
}

int ed_cache_slots(const ed_cache* cache, int block) {
  const edgedec::BlockState* state = state_of(cache, block);
  return state ? state->slots() : 0;
}

void ed_cache_positions(const ed_cache* cache, int block, int64_t* out) {
  if (const edgedec::BlockState* state = state_of(cache, block)) state->positions(out);
}

void ed_cache_keys(const ed_cache* cache, int block, int from, float* out) {
  const edgedec::BlockState* state = state_of(cache, block);
  if (state && from >= 0) state->keys(from, out);
}

int ed_cache_offload(ed_cache* cache, int block, const int32_t* pages, int n, const char* folder) {
  return guarded(-1, [&] { return cache->cache.offload(block, pages, n, folder); });
}

void ed_cache_tokens(const ed_cache* cache, int block, int64_t* out) {
  if (const edgedec::BlockState* state = state_of(cache, block)) state->tokens(out);
}

int ed_cache_reserve(ed_cache* cache, int rows) {
  return guarded(-1, [&] { return cache->cache.reserve(rows); });
}

void ed_cache_pages(const ed_cache* cache, int64_t* held, int64_t* shared) { cache->cache.pages(held, shared); }

int ed_cache_page_ids(const ed_cache* cache, int64_t* out) {
  const std::vector<int64_t> ids = cache->cache.page_ids();
  if (out) std::copy(ids.begin(), ids.end(), out);
  return (int)ids.size();
}

uint64_t ed_cache_bytes(const ed_cache* cache) { return cache->cache.bytes(); }

uint64_t ed_cache_save_bytes(const ed_cache* cache) { return cache->cache.save_bytes(); }

void ed_cache_save(const ed_cache* cache, uint8_t* out) { cache->cache.save(out); }

int ed_cache_load(ed_cache* cache, const uint8_t* data, uint64_t size) {
  return guarded(-1, [&] { return cache->cache.load(data, size); });
}

uint64_t ed_cache_rest_bytes(const ed_cache* cache, int from) { return cache->cache.rest_bytes(from); }

void ed_cache_save_rest(const ed_cache* cache, int from, uint8_t* out) { cache->cache.save_rest(from, out); }

int ed_cache_append(ed_cache* cache, const uint8_t* data, uint64_t size) {
  const int code = guarded(-1, [&] { return cache->cache.append(data, size); });
  if (code < 0) cache->cache.truncate(cache->cache.length());  // some blocks have appended it
  return code;
}
