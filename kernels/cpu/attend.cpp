// Attention of a call: keys and values into the caches, then rows by heads over chunks of keys.
#include <algorithm>
#include <cmath>

#include "engine.h"
#include "kv.h"

namespace edgedec {

namespace {

constexpr int ITEM_QUERIES = 128;        // queries of one item, all heads of its rows
constexpr size_t MAX_PARTS = 16u << 20;  // floats: beyond this, chunks are not summed apart

bool same_shared(const ed_sequence& a, const ed_sequence& b) {
  return a.shared && b.shared && a.shared_cache == b.shared_cache && a.kv == b.kv;
}

// Sums of no key at all.
void empty(float* total, size_t size, size_t query) {
  std::fill_n(total, size, 0.0f);
  for (size_t i = 0; i < size; i += query) total[i] = -INFINITY;
}

}  // namespace

// Which sequence each row is of; and for rows of a tree, what they see behind the committed tokens.
void Engine::prepare_paths(const ed_call& call) {
  sequence_of_.assign(call.rows, 0);
  path_at_.clear(), start_at_.clear(), path_.clear(), path_start_.clear();
  for (int i = 0; i < call.n_sequences; i++) {
    const ed_sequence& s = call.sequences[i];
    std::fill_n(sequence_of_.begin() + s.row, s.rows, i);
    start_at_.push_back(path_start_.size()), path_at_.push_back(path_.size());
    if (!s.parents) continue;
    const size_t begin = path_.size();
    path_start_.push_back(0);
    for (int r = s.first; r < s.first + s.rows; r++) {
      const size_t from = path_.size();
      for (int at = r; at >= 0; at = s.parents[at]) path_.push_back(at);
      std::reverse(path_.begin() + from, path_.end());
      path_start_.push_back((int32_t)(path_.size() - begin));
    }
  }
}

// Neighbours whose first slots are the same attend to the whole chunks of these together, rows of all by chunk: keys
// and values are brought in once for all of them. Returns the floats of these parts.
size_t Engine::prepare_common(const ed_call& call) {
  commons_.clear(), common_of_.assign(call.n_sequences, -1), together_.clear();
  if (windowed_) return 0;  // what a row sees of a chunk is then its own affair
  const int item_rows = std::max(1, ITEM_QUERIES / group_);
  const size_t query = m_.head_dim + 2;
  size_t parts = 0;
  for (int i = 0, next; i < call.n_sequences; i = next) {
    const ed_sequence& s = call.sequences[i];
    Common common{s.row, s.rows, s.shared, (int64_t)parts};
    for (next = i + 1; next < call.n_sequences && same_shared(s, call.sequences[next]); next++) {
      common.rows += call.sequences[next].rows;
      common.chunks = std::min(common.chunks, call.sequences[next].shared);
    }
    common.chunks /= CHUNK;
    const size_t size = (size_t)m_.kv_heads * common.chunks * common.rows * group_ * query;
    if (next - i < 2 || !size || parts + size > MAX_PARTS) continue;
    std::fill(common_of_.begin() + i, common_of_.begin() + next, (int)commons_.size());
    for (int h = 0; h < m_.kv_heads; h++)
      for (int c = 0; c < common.chunks; c++)
        for (int row = 0; row < common.rows; row += item_rows) {
          const int64_t part = common.part + (int64_t)(common.at(h, c, row) * group_ * query);
          together_.push_back({i, h, row, std::min(common.rows, row + item_rows), c, c + 1, part});
        }
    parts += size;
    commons_.push_back(common);
  }
  return parts;
}

// The work of a layer's attention, in pieces.
void Engine::prepare_items(const ed_call& call) {
  items_.clear(), sums_.clear();
  const size_t common = prepare_common(call);
  const int item_rows = std::max(1, ITEM_QUERIES / group_);
  const size_t query = m_.head_dim + 2, queries = (size_t)item_rows * group_;
  int most_chunks = 0;
  size_t parts = common;
  bool mass = false;
  for (int i = 0; i < call.n_sequences; i++) {
    const ed_sequence& s = call.sequences[i];
    const int chunks = (s.length + s.first + s.rows + CHUNK - 1) / CHUNK;
    const int chunk0 = common_of_[i] < 0 ? 0 : commons_[common_of_[i]].chunks;
    most_chunks = std::max(most_chunks, chunks - chunk0);
    mass |= s.mass != nullptr;
    for (int h = 0; h < m_.kv_heads; h++)
      for (int row = 0; row < s.rows; row += item_rows) {
        const int end = std::min(s.rows, row + item_rows);
        items_.push_back({i, h, row, end, chunk0, chunks, (int64_t)parts});
        parts += (size_t)(chunks - chunk0) * (end - row) * group_ * query;
      }
  }
  const bool few = (int)items_.size() < 4 * team_.size() && most_chunks > 1;
  by_chunk_ = team_.size() > 1 && few && parts <= MAX_PARTS && !mass;
  if (by_chunk_) split_by_chunks();
  parts_.need(by_chunk_ ? parts : common);
  // Items of one head add to the same slots of a mass, so one thread does them, in order.
  item_grain_ = !mass ? grain((int)items_.size()) : (int)items_.size() / (call.n_sequences == 1 ? m_.kv_heads : 1);
  totals_.need(2 * queries * query * team_.size());
  attend_scratch_ = attention_scratch(m_.head_dim, (int)queries);
}

// Too few items for the threads: their chunks are summed apart, and added up in order behind that.
void Engine::split_by_chunks() {
  std::swap(sums_, items_);
  for (const Item& sum : sums_)
    for (int c = sum.chunk0; c < sum.chunk1; c++) {
      Item item = sum;
      item.part += (int64_t)(c - sum.chunk0) * (sum.row1 - sum.row0) * group_ * (m_.head_dim + 2);
      item.chunk0 = c, item.chunk1 = c + 1;
      items_.push_back(item);
    }
}

// What layer `layer` of a sequence's attention works on.
Attention Engine::view(const ed_call& call, int sequence, int layer) const {
  const ed_sequence& s = call.sequences[sequence];
  Attention a{};
  a.heads = m_.heads, a.kv_heads = m_.kv_heads, a.dim = m_.head_dim;
  a.window = layers_[layer].window, a.sinks = m_.sinks;
  a.format = s.kv, a.rows = s.rows, a.length = s.length, a.first = s.first;
  a.scale = m_.attn_scale, a.softcap = m_.attn_softcap;
  a.row_bytes = (int64_t)kv_row_bytes(m_.head_dim, s.kv);
  a.head_stride = a.row_bytes * s.allocated;
  a.keys = s.cache + (size_t)layer * 2 * m_.kv_heads * a.head_stride;
  a.values = a.keys + (size_t)m_.kv_heads * a.head_stride;
  if (s.shared) {
    a.shared = s.shared, a.shared_stride = a.row_bytes * s.shared_allocated;
    a.shared_keys = s.shared_cache + (size_t)layer * 2 * m_.kv_heads * a.shared_stride;
    a.shared_values = a.shared_keys + (size_t)m_.kv_heads * a.shared_stride;
  }
  a.q_stride = q_dim_ + 2 * kv_dim_;
  a.q = qkv_.p + (size_t)s.row * a.q_stride;
  a.out_stride = q_dim_;
  a.out = mixed_.p + (size_t)s.row * q_dim_;
  if (s.parents) {
    a.path_start = path_start_.data() + start_at_[sequence];
    a.path = path_.data() + path_at_[sequence];
  }
  return a;
}

// The same for all rows that attend to a common cache, as if they came behind it.
Attention Engine::view_of_all(const ed_call& call, int sequence, int layer) const {
  const Common& common = commons_[common_of_[sequence]];
  Attention a = view(call, sequence, layer);
  a.rows = common.rows, a.length = a.shared, a.first = 0;
  a.path_start = a.path = nullptr;
  return a;
}

void Engine::attention(const ed_call& call, int layer) {
  const ed_layer& l = layers_[layer];
  Matrix qkv = matrix(l.qkv), o = matrix(l.o);
  const int width = q_dim_ + 2 * kv_dim_;
  normed(call.hidden, call.rows, l.attn_norm, qkv);
  Product p{};
  p.a = rows_for(qkv, x_.p), p.bias = l.qkv_bias, p.rows = call.rows, p.out = qkv_.p, p.stride = width;
  multiply(qkv, p);
  if (m_.qk_norm == 2)
    team_.share(call.rows, 1, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        float* q = qkv_.p + (size_t)r * width;
        k_.norm(q, l.q_norm, q_dim_, m_.norm_eps, q);
        k_.norm(q + q_dim_, l.k_norm, kv_dim_, m_.norm_eps, q + q_dim_);
      }
    });
  const int turned = call.rows * m_.kv_heads;
  team_.share(turned, grain(turned), [&](int begin, int end, int) {
    for (int i = begin; i < end; i++) rotate(call, layer, i / m_.kv_heads, i % m_.kv_heads);
  });
  attend(call, layer);
  ready(mixed_.p, call.rows, o);
  residual(call, o, mixed_.p, l.o_bias, l.attn_post_norm);
}

// One kv head of a row and the query heads that share it: normed, turned, and put into the cache.
void Engine::rotate(const ed_call& call, int layer, int row, int kv_head) {
  const ed_layer& l = layers_[layer];
  const int d = m_.head_dim;
  float* q = qkv_.p + (size_t)row * (q_dim_ + 2 * kv_dim_) + (size_t)kv_head * group_ * d;
  float* k = qkv_.p + (size_t)row * (q_dim_ + 2 * kv_dim_) + q_dim_ + (size_t)kv_head * d;
  auto turn = [&](float* x, const float* weight) {
    if (m_.qk_norm == 1) k_.norm(x, weight, d, m_.norm_eps, x);
    if (l.rope < 0) return;
    const ed_rope& rope = ropes_[l.rope];
    size_t at = (size_t)call.positions[row] * rope.pairs;
    k_.rope(x, d, rope.cos + at, rope.sin + at, rope.pairs);
  };
  for (int h = 0; h < group_; h++) turn(q + (size_t)h * d, l.q_norm);
  turn(k, l.k_norm);
  Attention a = view(call, sequence_of_[row], layer);
  const ed_sequence& s = call.sequences[sequence_of_[row]];
  size_t at = kv_head * a.head_stride + (size_t)(s.length - s.shared + s.first + row - s.row) * a.row_bytes;
  k_.store_kv(k, d, s.kv, const_cast<uint8_t*>(a.keys) + at);
  k_.store_kv(k + kv_dim_, d, s.kv, const_cast<uint8_t*>(a.values) + at);
}

void Engine::attend(const ed_call& call, int layer) {
  if (!together_.empty())
    team_.share((int)together_.size(), grain((int)together_.size()), [&](int begin, int end, int thread) {
      for (int i = begin; i < end; i++) {
        const Item& item = together_[i];
        const Attention a = view_of_all(call, item.sequence, layer);
        k_.attend(a, item.kv_head, item.row0, item.row1, item.chunk0, parts_.p + item.part,
                  scratch_.p + thread * scratch_stride_);
      }
    });
  team_.share((int)items_.size(), item_grain_, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; i++) {
      const Item& item = items_[i];
      Attention a = view(call, item.sequence, layer);
      uint8_t* scratch = scratch_.p + thread * scratch_stride_;
      if (by_chunk_)
        k_.attend(a, item.kv_head, item.row0, item.row1, item.chunk0, parts_.p + item.part, scratch);
      else
        attend_whole(call, a, item, layer, thread);
    }
  });
  if (!by_chunk_) return;
  team_.share((int)sums_.size(), 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; i++) add_up(call, layer, sums_[i], thread);
  });
}

// An item's sum so far: nothing, or the chunks that it attended to together with others.
void Engine::begin_sum(const ed_call& call, const Item& item, float* total) const {
  const int queries = (item.row1 - item.row0) * group_;
  const size_t query = m_.head_dim + 2;
  empty(total, queries * query, query);
  if (common_of_[item.sequence] < 0) return;
  const Common& common = commons_[common_of_[item.sequence]];
  const int row = call.sequences[item.sequence].row - common.row + item.row0;
  for (int c = 0; c < common.chunks; c++)
    k_.merge(total, parts_.p + common.part + common.at(item.kv_head, c, row) * group_ * query, queries, m_.head_dim);
}

// All chunks of an item, one after another.
void Engine::attend_whole(const ed_call& call, const Attention& a, const Item& item, int layer, int thread) {
  const int queries = (item.row1 - item.row0) * group_;
  const size_t query = m_.head_dim + 2;
  const size_t most = (size_t)std::max(1, ITEM_QUERIES / group_) * group_ * query;
  float *total = totals_.p + 2 * most * thread, *part = total + most;
  uint8_t* scratch = scratch_.p + thread * scratch_stride_;
  begin_sum(call, item, total);
  for (int c = item.chunk0; c < item.chunk1; c++) {
    if (!a.sees(item.row0, item.row1, c)) continue;
    k_.attend(a, item.kv_head, item.row0, item.row1, c, part, scratch);
    k_.merge(total, part, queries, m_.head_dim);
  }
  k_.finish(a, item.kv_head, item.row0, item.row1, total);
  const ed_sequence& s = call.sequences[item.sequence];
  if (!s.mass) return;
  float* mass = s.mass + ((size_t)layer * m_.kv_heads + item.kv_head) * (s.length + s.first + s.rows);
  k_.mass(a, item.kv_head, item.row0, item.row1, total, mass, scratch);
}

// The chunks of an item that were summed apart, added up in their order.
void Engine::add_up(const ed_call& call, int layer, const Item& item, int thread) {
  const int queries = (item.row1 - item.row0) * group_;
  const size_t query = m_.head_dim + 2, size = queries * query;
  const size_t most = (size_t)std::max(1, ITEM_QUERIES / group_) * group_ * query;
  float* total = totals_.p + 2 * most * thread;
  begin_sum(call, item, total);
  for (int c = item.chunk0; c < item.chunk1; c++)
    k_.merge(total, parts_.p + item.part + (c - item.chunk0) * size, queries, m_.head_dim);
  k_.finish(view(call, item.sequence, layer), item.kv_head, item.row0, item.row1, total);
}

}  // namespace edgedec
