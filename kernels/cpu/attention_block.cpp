// Attention: q, k and v of all rows, keys and values into the pages, then rows by heads over chunks of keys.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention_plan.h"
#include "attention_state.h"
#include "attention_views.h"
#include "differential.h"
#include "engine.h"
#include "kv.h"
#include "latent.h"
#include "pre_router.h"
#include "relative.h"

namespace edgedec {

namespace {

// Whether a query may have a lane of its own: in an encoder, where nothing is added to scores and all rows see all others.
bool attends_in_lanes(const ed_model& model, const ed_block& block) {
  const ed_attention& m = *block.attention;
  return model.texts && m.head_dim % 16 == 0 && !m.window && !m.softcap && !m.distance && !m.slopes && !m.relative;
}

// Whether all its products are of integers: as those of its matrices, which then have one scale a row.
bool attends_in_int8(const ed_model& model, const ed_block& block) {
  return attends_in_lanes(model, block) && !block.latent && matrix(block.attention->qkv).row_scales();
}

// Heads of so few values have no int4 cache: half of such a row would be scales, and four bits are too few for its keys.
constexpr int NARROW_HEAD = 16;

struct AttentionScratch {
  Buffer<float> qkv, attn_out, parts, totals, pair, kept, bent, distance;
  AttentionPlan plan;
  std::vector<Attention> views;      // of each sequence
  std::unique_ptr<ViewedAttention> viewed;
  std::vector<size_t> kept_at;  // by sequence
  std::vector<SlotPositions> slot_positions;  // of each sequence, where positions are not ranks
  std::vector<int64_t> row_at;                // positions of the call's rows, where there are slopes
};

constexpr size_t MAX_KEPT = 8u << 20;  // floats of weights that are kept for attention sums, in one call

class AttentionBlock : public Block {
 public:
  AttentionBlock(Engine& engine, const ed_block& block)
      : engine_(engine),
        block_(block),
        m_(*block.attention),
        latent_(block.latent ? std::make_unique<LatentProducts>(engine, block) : nullptr),
        router_(block.pre_router ? std::make_unique<PreRouter>(engine, block) : nullptr),
        pairs_(m_.differential > 0 ? std::make_unique<HeadPairs>(engine, m_) : nullptr),
        relative_(m_.relative ? std::make_unique<RelativeScores>(engine, m_) : nullptr),
        curvature_(block.power_law ? block.power_law->curvature : nullptr),
        s_(engine.shared<AttentionScratch>()),
        k_(engine.kernels()),
        qkv_(matrix(m_.qkv)),
        o_(matrix(m_.o)),
        d_(m_.head_dim),
        group_(m_.heads / m_.kv_heads),
        q_dim_(m_.heads * d_),
        kv_dim_(m_.kv_heads * d_),
        shared_(block.kind == SHARED_ATTENTION),
        width_(q_dim_ + (shared_ ? 0 : latent_ ? 1 : 2) * kv_dim_ + m_.gate),
        ones_(m_.v_norm ? d_ : 0, 1.0f) {}

  std::vector<Matrix> matrices() const override {
    std::vector<Matrix> all = latent_ ? latent_->matrices() : std::vector<Matrix>{qkv_};
    all.push_back(o_);
    if (router_)
      for (const Matrix& w : router_->matrices()) all.push_back(w);
    return all;
  }

  void reserve(int rows) override {
    s_.qkv.need((size_t)rows * width_);
    s_.attn_out.need((size_t)rows * q_dim_);
    if (paired()) s_.pair.need((size_t)rows * qkv_.k);
    if (latent_) latent_->reserve(rows);
    if (router_) router_->reserve(rows);
    if (pairs_) pairs_->reserve(rows);
    if (curvature_) s_.bent.need((size_t)rows * q_dim_);
  }

  void run(const BlockCall& call) override {
    if (latent_) latent_->project(call, s_.qkv.p, width_);
    else project(call);
    if (m_.distance) spread_distances(call);
    if (relative_) relative_->compute(call, s_.qkv.p, s_.qkv.p + q_dim_, width_);
    plan(call);
    store(call);
    attend(call);
    if (!s_.viewed) s_.viewed = std::make_unique<ViewedAttention>(engine_);
    s_.viewed->run(call, s_.views);
    if (router_) return router_->choose(call, s_.attn_out.p);
    const float* y = latent_  ? latent_->values(s_.attn_out.p, call.rows)
                     : pairs_ ? pairs_->subtract(s_.attn_out.p, call.rows)
                              : s_.attn_out.p;
    if (m_.gate) gate(call.rows);
    engine_.norm_wide(m_.inner_norm, s_.attn_out.p, call.rows, q_dim_);
    const QuantizedActivations a = engine_.quantize(y, call.rows, o_);
    engine_.residual(call, block_, o_, a, y, m_.o_bias);
  }

 private:
  bool paired() const { return m_.embedding_norm.kind != NO_NORM || m_.with_embedding; }
  QuantizedActivations pair(const BlockCall& call);
  void project(const BlockCall& call);
  void plan(const BlockCall& call);
  void keep_weights(const BlockCall& call);
  void spread_distances(const BlockCall& call);
  void place_rows(const BlockCall& call);
  // Of the largest text, in whole chunks.
  int64_t reach() const { return reach_; }
  Attention view(const SequenceRows& s, SlotPositions& positions, size_t sequence);
  void store(const BlockCall& call);
  void norm_heads(float* q, float* k, int kv_head) const;
  void norm_part(float* x, const float* weight, const float* bias, int n) const;
  void rope_heads(float* q, float* k, int64_t position) const;
  void bend_heads(float* q, int row, int kv_head) const;
  void store_row(const Attention& a, int kv_head, int slot, const float* k) const;
  void attend(const BlockCall& call);
  void gate(int rows);
  void attend_together();
  void attend_whole(const BlockCall& call, const Item& item, int thread);
  void add_up(const BlockCall& call, const Item& item, int thread);
  void finish(const BlockCall& call, const Item& item, const float* sum, int thread);
  void begin_sum(const Item& item, float* total) const;
  float* total(int thread) const { return s_.totals.p + 2 * s_.plan.total_floats() * thread; }
  size_t query() const { return (size_t)d_ + 2; }

  Engine& engine_;
  const ed_block block_;
  const ed_attention m_;
  const std::unique_ptr<LatentProducts> latent_;  // or null
  const std::unique_ptr<PreRouter> router_;       // or null
  const std::unique_ptr<HeadPairs> pairs_;        // or null
  const std::unique_ptr<RelativeScores> relative_;  // or null
  const float* const curvature_;  // [heads, dim, dim], or null
  AttentionScratch& s_;
  const Kernels& k_;
  const Matrix qkv_, o_;
  const int d_, group_, q_dim_, kv_dim_;
  const bool shared_;  // keys and values are those of another block
  const int width_;
  const std::vector<float> ones_;
  int64_t reach_ = 0;
};

// The normed embedding and the normed state of each row, side by side, or both as one normed row, the state first, made
// ready for qkv.
QuantizedActivations AttentionBlock::pair(const BlockCall& call) {
  const size_t hidden = engine_.hidden();
  engine_.pool().parallel_for(call.rows, 1, [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      float* to = s_.pair.p + 2 * r * hidden;
      if (m_.with_embedding) {
        std::memcpy(to, call.input + r * hidden, 4 * hidden);
        std::memcpy(to + hidden, call.embeddings + r * hidden, 4 * hidden);
        continue;
      }
      engine_.norm_row(m_.embedding_norm, call.embeddings + r * hidden, to);
      engine_.norm_row(block_.norm, call.input + r * hidden, to + hidden);
    }
  });
  if (m_.with_embedding) engine_.norm_wide(block_.norm, s_.pair.p, call.rows, 2 * (int)hidden);
  return engine_.quantize(s_.pair.p, call.rows, qkv_);
}

void AttentionBlock::project(const BlockCall& call) {
  Product p{};
  p.w = qkv_, p.a = router_ ? router_->enter(call, qkv_) : paired() ? pair(call) : engine_.norm(block_.norm, call.input, call.rows, qkv_);
  const int width = pairs_ ? qkv_.n : width_;
  p.bias = m_.qkv_bias, p.rows = call.rows, p.out = pairs_ ? pairs_->projected() : s_.qkv.p, p.stride = width;
  engine_.multiply(p);
  if (!router_) engine_.adapt(call, 0, paired() ? s_.pair.p : engine_.normed(), qkv_.k, p.out, width);
  if (pairs_) pairs_->widen(call.rows, s_.qkv.p, width_);
  if (m_.qk_norm != 2 && !m_.clip) return;
  engine_.pool().parallel_for(call.rows, 1, [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      float* q = s_.qkv.p + (size_t)r * width_;
      if (m_.clip)
        for (int i = 0; i < width_; i++) q[i] = q[i] > m_.clip ? m_.clip : q[i] < -m_.clip ? -m_.clip : q[i];
      if (m_.qk_norm != 2) continue;
      norm_part(q, m_.q_norm, m_.q_norm_bias, q_dim_);
      norm_part(q + q_dim_, m_.k_norm, m_.k_norm_bias, kv_dim_);
    }
  });
}

// What every sequence attends to, and the work cut into items.
void AttentionBlock::plan(const BlockCall& call) {
  s_.views.clear();
  if (s_.slot_positions.size() < call.sequences.size()) s_.slot_positions.resize(call.sequences.size());
  if (m_.slopes) place_rows(call);
  for (size_t i = 0; i < call.sequences.size(); i++) s_.views.push_back(view(call.sequences[i], s_.slot_positions[i], i));
  keep_weights(call);
  s_.plan.make(call, s_.views, engine_.pool().size());
  s_.parts.need(s_.plan.parts);
  s_.totals.need(2 * s_.plan.total_floats() * engine_.pool().size());
  engine_.need_scratch(s_.plan.scratch_bytes());
}

// Assigns memory for the weights of sequences whose attention sums are requested, while there is room. Sums
// without memory compute their scores a second time, with the same bytes as result.
void AttentionBlock::keep_weights(const BlockCall& call) {
  std::vector<size_t>& at = s_.kept_at;
  at.assign(call.sequences.size(), 0);
  size_t size = 0;
  for (size_t i = 0; i < at.size(); i++) {
    const SequenceRows& s = call.sequences[i];
    Attention& a = s_.views[i];
    a.kept_chunks = (a.length + s.pending.count + CHUNK - 1) / CHUNK;
    const size_t need = (size_t)s.rows * m_.heads * a.kept_chunks * KEPT_WEIGHTS;
    at[i] = size + 1;
    if (!s.attention_sums || s.view || size + need > MAX_KEPT) at[i] = 0;
    else size += need;
  }
  s_.kept.need(size);
  for (size_t i = 0; i < at.size(); i++)
    if (at[i]) s_.views[i].kept = s_.kept.p + at[i] - 1;
}

// What is added to scores by distance, for every distance of the call's texts: of each head -reach .. reach, and beyond
// that as far as the last vector of a chunk.
void AttentionBlock::spread_distances(const BlockCall& call) {
  reach_ = 0;
  for (const SequenceRows& s : call.sequences) reach_ = std::max(reach_, (int64_t)(s.rows + CHUNK - 1) / CHUNK * CHUNK);
  const int64_t stride = 2 * reach_ + CHUNK, most = m_.distances;
  s_.distance.need((size_t)m_.heads * stride);
  for (int h = 0; h < m_.heads; h++)
    for (int64_t i = 0; i < stride; i++) {
      const int64_t apart = std::clamp(i - reach_, -most, most);
      s_.distance.p[h * stride + i] = m_.distance[(apart + most) * m_.heads + h];
    }
}

void AttentionBlock::place_rows(const BlockCall& call) {
  s_.row_at.clear();
  for (const SequenceRows& s : call.sequences)
    s_.row_at.insert(s_.row_at.end(), s.pending.positions + s.pending.first, s.pending.positions + s.pending.first + s.rows);
}

Attention AttentionBlock::view(const SequenceRows& s, SlotPositions& positions, size_t sequence) {
  const AttentionState& state = *static_cast<const AttentionState*>(s.state);
  Attention a{};
  a.heads = m_.heads, a.kv_heads = m_.kv_heads, a.dim = d_;
  a.window = m_.window, a.sinks = m_.sinks, a.format = state.format();
  a.rows = s.rows, a.length = state.start(), a.first = s.pending.first;
  a.scale = m_.scale, a.softcap = m_.softcap, a.sink_logit = m_.sink_logit;
  a.row_bytes = (int64_t)state.row_bytes();
  a.head_stride = a.row_bytes * PAGE_SLOTS, a.values = latent_ ? 0 : a.head_stride * m_.kv_heads;
  a.pages = state.page_table();
  a.q = s_.qkv.p + (size_t)s.row * width_, a.q_stride = width_;
  a.out = s_.attn_out.p + (size_t)s.row * q_dim_, a.out_stride = q_dim_;
  const Tree& tree = *s.tree;
  if (!tree.chain) a.begin = tree.begin.data(), a.end = tree.end.data(), a.path = tree.path.data();
  if (tree.text) a.text = s.rows;
  if (m_.distance && tree.text) a.distance = s_.distance.p + reach(), a.distance_stride = 2 * reach() + CHUNK;
  if (relative_ && tree.text) a.relative = relative_->of(sequence), a.relative_stride = RelativeScores::stride(s.rows);
  a.lanes = a.text && !s.attention_sums && attends_in_lanes(engine_.model(), block_);
  const bool ranked = state.identity() && tree.base == state.start();
  if (m_.slopes) a.slopes = m_.slopes, a.row_at = s_.row_at.data() + s.row;
  if (m_.slopes && !ranked) positions.fill(state, s), a.slot_at = positions.all.data();
  if (m_.window && (s.view || !ranked)) {
    positions.fill(state, s);
    a.slot_positions = positions.all.data();
    a.row_positions = s.pending.positions + s.pending.first;
  }
  return a;
}

// Heads of all rows normed, turned by their positions, and keys and values put into their slots.
void AttentionBlock::store(const BlockCall& call) {
  const int tasks = call.rows * m_.kv_heads;
  engine_.pool().parallel_for(tasks, engine_.grain(tasks), [&](int begin, int end, int) {
    size_t sequence = 0;
    for (int i = begin; i < end; i++) {
      const int row = i / m_.kv_heads, head = i % m_.kv_heads;
      while (row >= call.sequences[sequence].row + call.sequences[sequence].rows) sequence++;
      const SequenceRows& s = call.sequences[sequence];
      const int at = s.pending.first + row - s.row;
      float* q = s_.qkv.p + (size_t)row * width_ + (size_t)head * group_ * d_;
      float* k = s_.qkv.p + (size_t)row * width_ + q_dim_ + (size_t)head * d_;
      const bool by_head = m_.qk_norm == 1 || m_.qk_norm == 3;
      if (shared_) k = nullptr;
      if (k && m_.k_is_v) std::copy_n(k, d_, k + kv_dim_);
      if (k && m_.v_norm) norm_part(k + kv_dim_, ones_.data(), nullptr, d_);
      if (by_head && !m_.qk_norm_last) norm_heads(q, k, head);
      if (m_.rope >= 0) rope_heads(q, k, s.pending.positions[at]);
      if (by_head && m_.qk_norm_last) norm_heads(q, k, head);
      if (curvature_) bend_heads(q, row, head);
      if (k) store_row(s_.views[sequence], head, s_.views[sequence].length + at, k);
      if (s.queries)
        std::copy_n(q, group_ * d_, s.queries + (size_t)(row - s.row) * q_dim_ + (size_t)head * group_ * d_);
    }
  });
}

// The query heads of one kv head, and its key (null: there is none).
void AttentionBlock::norm_heads(float* q, float* k, int kv_head) const {
  const bool own = m_.qk_norm == 3;
  const auto at = [](const float* all, size_t head, size_t dim) { return all ? all + head * dim : nullptr; };
  for (int h = 0; h < group_; h++) {
    const size_t head = own ? (size_t)kv_head * group_ + h : 0;
    norm_part(q + (size_t)h * d_, at(m_.q_norm, head, d_), at(m_.q_norm_bias, head, d_), d_);
  }
  if (!k) return;
  const size_t head = own ? kv_head : 0;
  norm_part(k, at(m_.k_norm, head, d_), at(m_.k_norm_bias, head, d_), d_);
}

// n values of a query or key in place.
void AttentionBlock::norm_part(float* x, const float* weight, const float* bias, int n) const {
  const float eps = engine_.model().norm_eps;
  if (bias) k_.layer_norm(x, weight, bias, n, eps, x);
  else k_.norm(x, weight, n, eps, x);
}

void AttentionBlock::rope_heads(float* q, float* k, int64_t position) const {
  const ed_rope& rope = engine_.rope(m_.rope);
  const float *cos = rope.cos + (size_t)position * rope.pairs, *sin = rope.sin + (size_t)position * rope.pairs;
  const int dim = pairs_ ? d_ / 2 : d_;
  for (int h = 0; h < group_; h++) k_.rope(q + (size_t)h * d_ + (pairs_ ? h % 2 * dim : 0), dim, cos, sin, rope.pairs);
  for (int at = 0; k && at < d_; at += dim) k_.rope(k + at, dim, cos, sin, rope.pairs);
}

// Query heads times their matrices: each value a sum in the order of the head's values, product by product.
void AttentionBlock::bend_heads(float* q, int row, int kv_head) const {
  const size_t from = (size_t)kv_head * group_;
  for (size_t h = 0; h < (size_t)group_; h++) {
    const float *x = q + h * d_, *w = curvature_ + (from + h) * d_ * d_;
    float* y = s_.bent.p + (size_t)row * q_dim_ + (from + h) * d_;
    std::fill_n(y, d_, 0.0f);
    for (int i = 0; i < d_; i++, w += d_)
      for (int j = 0; j < d_; j++) y[j] += x[i] * w[j];
  }
  std::copy_n(s_.bent.p + (size_t)row * q_dim_ + from * d_, group_ * d_, q);
}

// A key, and the value that lies kv_dim_ floats after it, if it is not the key.
void AttentionBlock::store_row(const Attention& a, int kv_head, int slot, const float* k) const {
  uint8_t* to = a.pages[slot / PAGE_SLOTS] + kv_head * a.head_stride + slot % PAGE_SLOTS * a.row_bytes;
  k_.store_kv(k, d_, a.format, to);
  if (a.values) k_.store_kv(k + kv_dim_, d_, a.format, to + a.values);
}

void AttentionBlock::attend(const BlockCall& call) {
  const AttentionPlan& plan = s_.plan;
  if (!plan.together.empty()) attend_together();
  if (!plan.by_chunk)
    return engine_.pool().parallel_for((int)plan.tasks.size() - 1, plan.grain, [&](int begin, int end, int thread) {
      for (int i = plan.tasks[begin]; i < plan.tasks[end]; i++) attend_whole(call, plan.items[i], thread);
    });
  const int n = (int)plan.items.size();
  engine_.pool().parallel_for(n, plan.grain, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; i++) {
      const Item& item = plan.items[i];
      k_.attend(s_.views[item.sequence], item.kv_head, item.row0, item.row1, item.chunk0, s_.parts.p + item.part,
                engine_.scratch(thread));
    }
  });
  engine_.pool().parallel_for((int)plan.sums.size(), 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; i++) add_up(call, plan.sums[i], thread);
  });
}

// The output of each row, a head or a channel at a time, times the sigmoid of its gate.
void AttentionBlock::gate(int rows) {
  const int each = q_dim_ / m_.gate;
  engine_.pool().parallel_for(rows, engine_.grain(rows), [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      float *y = s_.attn_out.p + (size_t)r * q_dim_, *g = s_.qkv.p + (size_t)r * width_ + q_dim_ + 2 * kv_dim_;
      k_.sigmoid(g, m_.gate, g);
      for (int i = 0; i < m_.gate; i++)
        for (int j = 0; j < each; j++) y[i * each + j] *= g[i];
    }
  });
}

// The chunks that lie in the same pages for several sequences, rows of all of them at once.
void AttentionBlock::attend_together() {
  const AttentionPlan& plan = s_.plan;
  const int n = (int)plan.together.size();
  engine_.pool().parallel_for(n, engine_.grain(n), [&](int begin, int end, int thread) {
    for (int i = begin; i < end; i++) {
      const Item& item = plan.together[i];
      const Common& common = plan.commons[plan.common_of[item.sequence]];
      Attention a = s_.views[item.sequence];
      // Treats all those rows as if they came after the common chunks.
      a.kept = nullptr;
      a.rows = common.rows, a.length = common.chunks * CHUNK, a.first = 0, a.begin = a.end = a.path = nullptr;
      k_.attend(a, item.kv_head, item.row0, item.row1, item.chunk0, s_.parts.p + item.part, engine_.scratch(thread));
    }
  });
}

// An item's sum so far: nothing, or the chunks that it attended to together with others.
void AttentionBlock::begin_sum(const Item& item, float* total) const {
  const int queries = (item.row1 - item.row0) * group_;
  clear_sums(s_.views[item.sequence], item.kv_head, queries, total);
  const int at = s_.plan.common_of[item.sequence];
  if (at < 0) return;
  const Common& common = s_.plan.commons[at];
  const int row = s_.plan.rows_of[item.sequence] - common.row + item.row0;
  for (int c = 0; c < common.chunks; c++)
    k_.merge(total, s_.parts.p + common.part + common.at(item.kv_head, c, row) * group_ * query(), queries, d_);
}

// All chunks of an item, one after another.
void AttentionBlock::attend_whole(const BlockCall& call, const Item& item, int thread) {
  const Attention& a = s_.views[item.sequence];
  float *sum = total(thread), *part = sum + s_.plan.total_floats();
  uint8_t* scratch = engine_.scratch(thread);
  begin_sum(item, sum);
  for (int c = item.chunk0; c < item.chunk1; c++) {
    if (!a.sees(item.row0, item.row1, c)) continue;
    k_.attend(a, item.kv_head, item.row0, item.row1, c, part, scratch);
    k_.merge(sum, part, (item.row1 - item.row0) * group_, d_);
  }
  finish(call, item, sum, thread);
}

// The output of an item, and what it adds to attention sums.
void AttentionBlock::finish(const BlockCall& call, const Item& item, const float* sum, int thread) {
  Attention a = s_.views[item.sequence];
  k_.finish(a, item.kv_head, item.row0, item.row1, sum);
  const SequenceRows& s = call.sequences[item.sequence];
  if (!s.attention_sums) return;
  if (s_.plan.common_of[item.sequence] >= 0) a.kept = nullptr;
  float* sums = s.attention_sums + (size_t)item.kv_head * (a.length + s.pending.count);
  k_.attention_sums(a, item.kv_head, item.row0, item.row1, sum, sums, engine_.scratch(thread));
}

// The chunks of an item that were summed apart, added up in their order.
void AttentionBlock::add_up(const BlockCall& call, const Item& item, int thread) {
  const int queries = (item.row1 - item.row0) * group_;
  float* sum = total(thread);
  begin_sum(item, sum);
  for (int c = item.chunk0; c < item.chunk1; c++)
    k_.merge(sum, s_.parts.p + item.part + (c - item.chunk0) * queries * query(), queries, d_);
  finish(call, item, sum, thread);
}

bool makes_pairs(const ed_attention& m) {
  const bool alone = !m.qk_norm && !m.gate && !m.k_is_v && !m.v_norm && m.inner_norm.kind == NO_NORM && !m.clip;
  return alone && m.lambdas && m.pair_norm && m.head_dim % 2 == 0 && m.heads / m.kv_heads % 2 == 0;
}

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const int gate = block.attention->gate;
  if (gate && gate != block.attention->heads && gate != block.attention->heads * block.attention->head_dim) return nullptr;
  if (gate && block.attention->k_is_v) return nullptr;
  if (block.attention->differential > 0 && !makes_pairs(*block.attention)) return nullptr;
  if (block.attention->relative && !RelativeScores::possible(*block.attention)) return nullptr;
  return std::make_unique<AttentionBlock>(engine, block);
}

std::unique_ptr<BlockState> make_state(const ed_model& model, const ed_block& block, int kv,
                                       const std::shared_ptr<PagePool>& pages) {
  const ed_attention& a = *block.attention;
  const bool narrow = kv == INT4 && a.head_dim <= NARROW_HEAD;
  const int format = narrow || attends_in_int8(model, block) ? INT8 : kv;
  return std::make_unique<AttentionState>(a.kv_heads, a.head_dim, block.latent ? 1 : 2, format, pages);
}

}  // namespace

const BlockKind ATTENTION_BLOCK = {ATTENTION, make, make_state};
const BlockKind SHARED_ATTENTION_BLOCK = {SHARED_ATTENTION, make, nullptr};

}  // namespace edgedec
