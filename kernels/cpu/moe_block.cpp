// The mixture-of-experts block: a router sends each row to a few of many MLPs, gated or plain.
//
// Rows are grouped by expert, so that the weights of an expert are read once for all its rows, and those of
// unused experts are not read. A row that goes through an expert is a pair; pairs are ordered by expert, then
// row. A row's experts are added up in the order in which it ranks them, by RELU in that of their numbers, the shared
// expert last.
//
// Experts that a mapped file holds and memory does not begin to be read when they are chosen, all at once: page faults
// would read them one piece after another. Measured and left: reading each expert ahead at its first use alone (no gain
// where memory is short), the file mapped as sequential (no clear gain) or random (a page a fault, 6 times as long).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention_state.h"
#include "mapped_file.h"
#include "stacked.h"

namespace edgedec {

namespace {

constexpr int ROWS_AT_ONCE = 4;  // of an expert, in one task between the products

enum Router { SOFTMAX = 0, SOFTMAX_TOPK = 1, SIGMOID = 2, SPARSEMIXER = 3, RELU = 4 };  // and GIVEN
constexpr int NONE = -1;  // in the place of an expert that a row does not pass

void copy_row(const QuantizedActivations& from, size_t row, const QuantizedActivations& to, size_t at,
              const Matrix& w) {
  if (w.quantized()) std::memcpy(to.record(at, 0), from.record(row, 0), from.record(0, from.steps) - from.records);
  else std::memcpy(const_cast<float*>(to.x) + at * w.k, from.x + row * w.k, w.k * sizeof(float));
}

// Whether rows prepared for one matrix fit the other.
bool same_activations(const Matrix& a, const Matrix& b) {
  if (!a.quantized() || !b.quantized()) return a.quantized() == b.quantized();
  return a.format == b.format && a.step() == b.step() && a.kpad() == b.kpad() && !a.zeros == !b.zeros &&
         a.offsets == b.offsets && (!a.zeros || a.block == b.block);
}

// Rows that go through one MLP; a plain one has no gate above its up.
struct Part {
  Matrix gate_up, down;
  QuantizedActivations in, hidden;  // of its first row; `hidden` is filled on the way
  const float *up_bias, *down_bias;  // or null
  int rows, inner, plain;
  float *gate_up_out, *act, *out;   // [rows, 2 inner] if the activation is apart, [rows, inner], [rows, hidden]

  bool fused() const { return plain || inner % LANES == 0; }
};

// Of the weights of a matrix, without scales and zero points.
size_t data_bytes(const Matrix& w) {
  return w.quantized() ? w.group_bytes() / LANES * w.n : (size_t)w.n * w.k * (w.format == F32 ? 4 : 2);
}

// Begins to read a matrix that is not in memory, as the page in its middle is not: those at its ends may be there with
// its neighbours'. What one page fault reads is left to it.
void read_ahead(const Matrix& w) {
  const size_t bytes = data_bytes(w);
  if (bytes < READ_AT_ONCE || in_memory(w.data + bytes / 2)) return;
  edgedec::read_ahead(w.data, bytes);
  if (!w.quantized()) return;
  edgedec::read_ahead(w.scales, (size_t)w.n * w.scale_count() * 2);
  if (w.zeros) edgedec::read_ahead(w.zeros, (w.layout == ROWS ? w.n : w.groups()) * w.zero_bytes());
}

// Some groups, or some rows, of a part.
struct Item {
  int part, begin, end;
};

struct MoeScratch {
  Buffer<float> logits, scores, weights, shared_weights;  // [rows, experts]; of a thread; [rows, top_k]; [rows]
  Buffer<float> gate_up, act, out, sum, routed;
  Activations in[ED_LEVELS], shared_in, hidden[ED_LEVELS], shared_hidden;
  Buffer<int> experts, pairs;        // of row r's j-th expert at r * top_k + j: which one it is or NONE, its pair or NONE
  Buffer<int> rows;                  // of each pair
  Buffer<int> first, next;           // [experts + 1]: the first pair of each; the next to be numbered
  std::vector<Part> parts;
  std::vector<Item> items;
};

class MoeBlock : public Block {
 public:
  MoeBlock(Engine& engine, const ed_block& block)
      : engine_(engine),
        block_(block),
        m_(*block.moe),
        s_(engine.shared<MoeScratch>()),
        router_(matrix(m_.router_weight)),
        shared_gate_up_(matrix(m_.shared_gate_up)),
        shared_down_(matrix(m_.shared_down)),
        shared_gate_(matrix(m_.shared_gate)),
        levels_{{matrix(m_.gate_up), matrix(m_.down)}} {
    for (int l = 1; l < ED_LEVELS && m_.more_up[l - 1].format; l++)
      levels_.push_back({matrix(m_.more_up[l - 1]), matrix(m_.more_down[l - 1])});
    std::vector<int> count(levels_.size());
    for (int e = 0; e < m_.experts; e++) places_.push_back(count[level_of(e)]++);
    chosen_.resize(m_.experts);
  }

  std::vector<Matrix> matrices() const override {
    std::vector<Matrix> all;
    if (router_.format) all.push_back(router_);
    for (const Level& l : levels_) {
      all.push_back(l.gate_up.slice(0, up_rows()));
      all.push_back(l.down.slice(0, engine_.hidden()));
    }
    if (m_.shared_inner) all.insert(all.end(), {shared_gate_up_, shared_down_});
    if (shared_gate_.format) all.push_back(shared_gate_);
    return all;
  }

  void reserve(int rows) override {
    const size_t chosen = (size_t)rows * m_.top_k, all = chosen + (m_.shared_inner ? rows : 0);
    const size_t act = chosen * m_.inner + (size_t)rows * m_.shared_inner;
    const bool apart = !m_.plain && (m_.inner % LANES || m_.shared_inner % LANES);
    s_.logits.need((size_t)rows * m_.experts), s_.scores.need(3 * (size_t)m_.experts * engine_.pool().size());
    s_.weights.need(chosen), s_.shared_weights.need(rows), s_.sum.need((size_t)rows * engine_.hidden());
    s_.gate_up.need(apart ? 2 * act : 0), s_.act.need(act), s_.out.need(all * engine_.hidden());
    for (size_t l = 0; l < levels_.size(); l++)
      s_.in[l].need(chosen, levels_[l].gate_up), s_.hidden[l].need(chosen, levels_[l].down);
    if (m_.shared_inner) s_.shared_in.need(rows, shared_gate_up_), s_.shared_hidden.need(rows, shared_down_);
    s_.experts.need(chosen), s_.pairs.need(chosen), s_.rows.need(chosen);
    s_.first.need(m_.experts + 1), s_.next.need(m_.experts + 1);
    if (m_.router_norm) s_.routed.need((size_t)rows * engine_.hidden());
  }

  void run(const BlockCall& call) override {
    const QuantizedActivations x = engine_.norm(block_.norm, call.input, call.rows, levels_[0].gate_up);
    route(call);
    group(call.rows);
    for (int e = 0; e < m_.experts; e++) chosen_[e] = s_.first.p[e + 1] > s_.first.p[e];
    read_chosen();
    s_.parts.clear();
    add_experts(x, call.rows);
    if (m_.shared_inner) add_shared(x, call.rows);
    multiply([](const Part& p) { return p.gate_up.groups() / (p.fused() && !p.plain ? 2 : 1); }, &MoeBlock::up);
    activate();
    multiply([](const Part& p) { return p.down.groups(); }, &MoeBlock::down);
    combine(call.rows);
    for (int r = 0; m_.sum_bias && r < call.rows; r++)
      engine_.kernels().add(m_.sum_bias, engine_.hidden(), s_.sum.p + (size_t)r * engine_.hidden());
    engine_.add_residual(call, block_, s_.sum.p);
  }

  size_t read_given(const BlockCall& call, size_t most) override {
    std::fill(chosen_.begin(), chosen_.end(), false);
    for (const SequenceRows& s : call.sequences) {
      const auto* state = static_cast<const AttentionState*>(s.owner ? s.owner : s.state);  // of the block that chose
      for (int r = 0; r < s.rows; r++) chosen_[state->experts()[s.pending.first + r]] = true;
    }
    size_t bytes = 0;
    for (int e = 0; e < m_.experts; e++)
      if (chosen_[e]) bytes += data_bytes(expert(e).gate_up) + data_bytes(expert(e).down);
    if (bytes <= most) read_chosen();
    return bytes;
  }

 private:
  // The tensors of experts of one format.
  struct Level {
    Matrix gate_up, down;
  };

  // The matrices of one expert.
  Level expert(int e) const {
    const Level& l = levels_[level_of(e)];
    const int64_t at = places_[e], width = engine_.hidden();
    return {l.gate_up.slice(at * up_rows(), up_rows()), l.down.slice(at * width, (int)width)};
  }

  // In the order in which they are multiplied.
  void read_chosen() const {
    for (int e = 0; e < m_.experts; e++)
      if (chosen_[e]) read_ahead(expert(e).gate_up);
    for (int e = 0; e < m_.experts; e++)
      if (chosen_[e]) read_ahead(expert(e).down);
  }

  int level_of(int e) const { return m_.levels ? m_.levels[e] : 0; }

  // Of one expert's first matrix.
  int up_rows() const { return m_.plain ? m_.inner : 2 * m_.inner; }

  // ---- which rows go through which experts ----

  // What the router reads, once `route` has begun.
  const float* read_ = nullptr;

  // The same: the state, or the one before, normed for the experts, by a norm of its own, or as it is.
  const float* routed(const BlockCall& call) {
    const size_t width = engine_.hidden();
    const float* state = m_.early ? call.before : call.input;
    if (!m_.router_norm) return m_.early ? state : engine_.normed();
    engine_.pool().parallel_for(call.rows, engine_.grain(call.rows), [&](int begin, int end, int) {
      for (size_t r = begin; r < (size_t)end; r++)
        engine_.kernels().norm(state + r * width, m_.router_norm, (int)width, engine_.model().norm_eps,
                               s_.routed.p + r * width);
    });
    return s_.routed.p;
  }

  // The experts that the block before has chosen.
  void take(const BlockCall& call) {
    for (const SequenceRows& s : call.sequences) {
      const int32_t* given = static_cast<const AttentionState*>(s.owner)->experts().data() + s.pending.first;
      std::copy_n(given, s.rows, s_.experts.p + s.row);
    }
    std::fill_n(s_.weights.p, call.rows, 1.0f);
    if (!m_.shared_inner) return;
    engine_.pool().parallel_for(call.rows, engine_.grain(call.rows), [&](int begin, int end, int thread) {
      for (int r = begin; r < end; r++) weigh_shared(r, engine_.scratch(thread));
    });
  }

  void route(const BlockCall& call) {
    if (m_.router == GIVEN) return take(call);
    const int rows = call.rows;
    Product p{};
    p.w = router_, p.a.x = read_ = routed(call), p.out = s_.logits.p, p.stride = m_.experts, p.rows = rows;
    p.bias = m_.router_logit_bias;
    engine_.multiply(p);
    engine_.pool().parallel_for(rows, engine_.grain(rows), [&](int begin, int end, int thread) {
      for (int r = begin; r < end; r++) {
        if (m_.router == RELU) rectify(r, s_.scores.p + 3 * (size_t)thread * m_.experts);
        else choose(r, s_.scores.p + 3 * (size_t)thread * m_.experts);
        if (m_.shared_inner) weigh_shared(r, engine_.scratch(thread));
      }
    });
  }

  // The experts of a row, the best first, and their weights; `scratch` [3, experts].
  void choose(int r, float* scratch) {
    const Kernels& k = engine_.kernels();
    const int n = m_.experts;
    const float *logits = s_.logits.p + (size_t)r * n, *ranked = logits;
    float *scores = scratch, *biased = scratch + n, *weights = s_.weights.p + (size_t)r * m_.top_k;
    int* experts = s_.experts.p + (size_t)r * m_.top_k;
    if (m_.router == SIGMOID) k.sigmoid(logits, n, scores), ranked = m_.early ? logits : scores;
    else if (m_.router != SPARSEMIXER) softmax(logits, n, scores);
    if (m_.router_bias) {
      for (int e = 0; e < n; e++) biased[e] = scores[e] + m_.router_bias[e];
      ranked = biased;
    }
    if (m_.groups > 1) {
      keep_best_groups(ranked, biased, scratch + 2 * n);
      ranked = biased;
    }
    rank(ranked, experts);
    if (m_.router == SPARSEMIXER) mix(logits, experts, scratch, weights);
    else
      for (int j = 0; j < m_.top_k; j++) weights[j] = (m_.router == SOFTMAX_TOPK ? logits : scores)[experts[j]];
    if (m_.router == SOFTMAX_TOPK) softmax(weights, m_.top_k, weights);
    const bool out = leaves_out(r, weights);
    if (out) experts[m_.top_k - 1] = NONE, weights[m_.top_k - 1] = 0;
    const float total = m_.normalize || (out && m_.router == SOFTMAX_TOPK) ? sum(weights, m_.top_k) : 1.0f;
    for (int j = 0; j < m_.top_k; j++) weights[j] = weights[j] / total * m_.scale;
    for (int j = 0; m_.expert_scale && j < m_.top_k - out; j++) weights[j] *= m_.expert_scale[experts[j]];
  }

  // Whether a row leaves out its last expert, by the weights of its experts before they are normalized.
  bool leaves_out(int r, const float* weights) const {
    if (!(weights[m_.top_k - 1] < m_.drop_below * weights[0])) return false;
    return !m_.protect_from || sizes(read_ + (size_t)r * engine_.hidden(), engine_.hidden()) < m_.protect_from;
  }

  // The sum of |x|, in an order that no instruction set changes.
  static float sizes(const float* x, int n) {
    float parts[LANES] = {};
    for (int i = 0; i < n; i++) parts[i % LANES] += std::fabs(x[i]);
    return sum(parts, LANES);
  }

  // All experts whose normed score is not zero; `scores` [experts].
  void rectify(int r, float* scores) {
    const int n = m_.experts;
    const float* logits = s_.logits.p + (size_t)r * n;
    float* weights = s_.weights.p + (size_t)r * n;
    for (int e = 0; e < n; e++) scores[e] = logits[e] < 0.0f ? 0.0f : logits[e];
    engine_.kernels().norm(scores, m_.score_norm, n, engine_.model().norm_eps, weights);
    for (int e = 0; e < n; e++) {
      weights[e] *= m_.scale;
      s_.experts.p[(size_t)r * n + e] = weights[e] != 0.0f ? e : NONE;
      if (m_.expert_scale) weights[e] *= m_.expert_scale[e];
    }
  }

  // Each chosen expert by softmax among those not chosen before it whose logits are near its own; `near` [experts].
  void mix(const float* logits, const int* chosen, float* near, float* weights) const {
    for (int j = 0; j < m_.top_k; j++) {
      const float best = logits[chosen[j]];
      int n = 0;
      for (int e = 0; e < m_.experts; e++) {
        const float limit = 2 * m_.jitter * std::max(std::fabs(logits[e]), best);
        if (std::find(chosen, chosen + j, e) == chosen + j && !(best - logits[e] > limit)) near[n++] = logits[e];
      }
      engine_.kernels().exp_shifted(near, n, best, near);
      weights[j] = 1.0f / sum(near, n);
    }
  }

  // kept = scores, with -inf for the experts of all groups but the top_groups whose two best have the largest sum; of
  // equals the smaller number. `sums` [groups]; kept may be scores.
  void keep_best_groups(const float* scores, float* kept, float* sums) const {
    const int size = m_.experts / m_.groups;
    for (int g = 0; g < m_.groups; g++) {
      const float* x = scores + (size_t)g * size;
      float first = std::max(x[0], x[1]), second = std::min(x[0], x[1]);
      for (int i = 2; i < size; i++) {
        if (x[i] > first) second = first, first = x[i];
        else second = std::max(second, x[i]);
      }
      sums[g] = first + second;
    }
    for (int g = 0; g < m_.groups; g++) {
      int before = 0;
      for (int o = 0; o < m_.groups; o++) before += sums[o] > sums[g] || (sums[o] == sums[g] && o < g);
      for (int e = g * size; e < (g + 1) * size; e++) kept[e] = before < m_.top_groups ? scores[e] : -INFINITY;
    }
  }

  // The top_k largest of the experts' scores in order; of equals the smaller number comes first.
  void rank(const float* scores, int* best) const {
    for (int e = 0, n = 0; e < m_.experts; e++) {
      if (n == m_.top_k && !(scores[e] > scores[best[n - 1]])) continue;
      int at = n < m_.top_k ? n++ : n - 1;
      for (; at && scores[e] > scores[best[at - 1]]; at--) best[at] = best[at - 1];
      best[at] = e;
    }
  }

  static float sum(const float* x, int n) {
    float total = 0.0f;
    for (int i = 0; i < n; i++) total += x[i];
    return total;
  }

  void softmax(const float* x, int n, float* y) const {
    const Kernels& k = engine_.kernels();
    k.exp_shifted(x, n, k.reduce_max(x, n), y);
    const float total = sum(y, n);
    for (int i = 0; i < n; i++) y[i] /= total;
  }

  void weigh_shared(int r, uint8_t* scratch) {
    float& weight = s_.shared_weights.p[r];
    weight = 1.0f;
    if (!shared_gate_.format) return;
    Product p{};
    p.w = shared_gate_, p.a.x = engine_.normed() + (size_t)r * engine_.hidden();
    p.out = &weight, p.stride = 1, p.rows = 1;
    engine_.kernels().product(p, 0, 1, scratch);
    engine_.kernels().sigmoid(&weight, 1, &weight);
  }

  // Numbers the pairs: by expert, then by row.
  void group(int rows) {
    const int chosen = rows * m_.top_k;
    int *experts = s_.experts.p, *first = s_.first.p, *next = s_.next.p;
    std::fill_n(first, m_.experts + 1, 0);
    for (int i = 0; i < chosen; i++)
      if (experts[i] != NONE) first[experts[i] + 1]++;
    for (int e = 0; e < m_.experts; e++) first[e + 1] += first[e];
    std::copy_n(first, m_.experts, next);
    for (int i = 0; i < chosen; i++) {
      s_.pairs.p[i] = experts[i] == NONE ? NONE : next[experts[i]]++;
      if (experts[i] != NONE) s_.rows.p[s_.pairs.p[i]] = i / m_.top_k;
    }
  }

  // ---- what the experts multiply ----

  void add_experts(const QuantizedActivations& x, int rows) {
    const bool one = rows == 1 && levels_.size() == 1;  // which needs no copy
    if (!one) gather(x);
    const int width = engine_.hidden();
    for (int e = 0; e < m_.experts; e++) {
      const size_t pair = s_.first.p[e];
      const int n = s_.first.p[e + 1] - s_.first.p[e];
      if (!n) continue;
      const int l = level_of(e);
      const Matrix &gate_up = levels_[l].gate_up, &down = levels_[l].down;
      Part p{};
      p.gate_up = expert(e).gate_up, p.down = expert(e).down;
      p.in = one ? x : from_row(s_.in[l].rows(gate_up), pair, gate_up);
      p.hidden = from_row(s_.hidden[l].rows(down), pair, down);
      p.rows = n, p.inner = m_.inner;
      if (m_.gate_up_bias) p.up_bias = m_.gate_up_bias + (size_t)e * up_rows();
      if (m_.down_bias) p.down_bias = m_.down_bias + (size_t)e * width;
      add_part(p, pair * m_.inner, pair);
    }
  }

  void add_shared(const QuantizedActivations& x, int rows) {
    const size_t pair = (size_t)rows * m_.top_k;
    Part p{};
    p.gate_up = shared_gate_up_, p.down = shared_down_, p.rows = rows, p.inner = m_.shared_inner;
    p.in = same_activations(levels_[0].gate_up, shared_gate_up_) ? x : ready(rows);
    p.hidden = s_.shared_hidden.rows(shared_down_);
    add_part(p, pair * m_.inner, pair);
  }

  void add_part(Part& p, size_t act, size_t pair) {
    p.plain = m_.plain;
    if (s_.gate_up.p) p.gate_up_out = s_.gate_up.p + 2 * act;  // none where gate and up are one product
    p.act = s_.act.p + act, p.out = s_.out.p + pair * engine_.hidden();
    if (!p.down.quantized()) p.hidden.x = p.act;
    s_.parts.push_back(p);
  }

  // The rows of all pairs, side by side, prepared for the weights of their experts' levels.
  void gather(const QuantizedActivations& x) {
    const int pairs = s_.first.p[m_.experts];
    engine_.pool().parallel_for(pairs, engine_.grain(pairs), [&](int begin, int end, int) {
      for (int i = begin; i < end; i++) {
        const int l = level_of((int)(std::upper_bound(s_.first.p, s_.first.p + m_.experts + 1, i) - s_.first.p) - 1);
        const Matrix& w = levels_[l].gate_up;
        const QuantizedActivations to = s_.in[l].rows(w);
        if (same_activations(levels_[0].gate_up, w)) copy_row(x, s_.rows.p[i], to, i, w);
        else prepare(s_.rows.p[i], w, to, i);
      }
    });
  }

  // Row r of what the norm made as row `at` for products with w.
  void prepare(int r, const Matrix& w, const QuantizedActivations& to, size_t at) {
    const float* x = engine_.normed() + (size_t)r * w.k;
    if (w.quantized()) engine_.kernels().quantize(x, w, to, at, 0, to.steps);
    else std::memcpy(const_cast<float*>(to.x) + at * w.k, x, w.k * sizeof(float));
  }

  // The normed rows, prepared for the shared expert's weights.
  QuantizedActivations ready(int rows) {
    const Matrix& w = shared_gate_up_;
    QuantizedActivations to = s_.shared_in.rows(w);
    if (!w.quantized()) {
      to.x = engine_.normed();
      return to;
    }
    engine_.pool().parallel_for(rows, engine_.grain(rows), [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) prepare(r, w, to, r);
    });
    return to;
  }

  // ---- products ----

  // work(item) for all parts, cut into pieces of `grain` out of size(part).
  template <class Size, class Work>
  void each(Size size, int grain, Work work) {
    s_.items.clear();
    for (int i = 0; i < (int)s_.parts.size(); i++)
      for (int at = 0, n = size(s_.parts[i]); at < n; at += grain) s_.items.push_back({i, at, std::min(n, at + grain)});
    engine_.pool().parallel_for((int)s_.items.size(), 1, [&](int begin, int end, int thread) {
      for (int i = begin; i < end; i++) work(s_.parts[s_.items[i].part], s_.items[i], thread);
    });
  }

  template <class Groups>
  void multiply(Groups groups, Product (MoeBlock::*product)(const Part&) const) {
    int all = 0;
    for (const Part& p : s_.parts) all += groups(p);
    const int grain = std::max(2, std::min(16, all / (8 * engine_.pool().size())) & ~1);
    each(groups, grain, [&](const Part& p, const Item& item, int thread) {
      engine_.kernels().product((this->*product)(p), item.begin, item.end, engine_.scratch(thread));
    });
  }

  Product up(const Part& part) const {
    Product p{};
    p.w = part.gate_up, p.a = part.in, p.rows = part.rows, p.activation = m_.activation, p.bias = part.up_bias;
    p.out = part.fused() ? part.act : part.gate_up_out, p.stride = part.fused() ? part.inner : 2 * part.inner;
    p.epilogue = part.plain ? ACTIVATE : part.fused() ? GLU : STORE;
    return p;
  }

  Product down(const Part& part) const {
    Product p{};
    p.w = part.down, p.a = part.hidden, p.rows = part.rows, p.out = part.out, p.stride = engine_.hidden();
    p.bias = part.down_bias;
    return p;
  }

  // The step between the products: separate activations, and preparation of rows for `down`.
  void activate() {
    const Kernels& k = engine_.kernels();
    const auto rows = [](const Part& p) { return p.fused() && !p.down.quantized() ? 0 : p.rows; };
    each(rows, ROWS_AT_ONCE, [&](const Part& p, const Item& item, int) {
      for (int r = item.begin; r < item.end; r++) {
        float* act = p.act + (size_t)r * p.inner;
        if (!p.fused()) {
          const float* gate = p.gate_up_out + (size_t)r * 2 * p.inner;
          k.glu(gate, gate + p.inner, p.inner, m_.activation, act);
        }
        if (p.down.quantized()) k.quantize(act, p.down, p.hidden, r, 0, p.hidden.steps);
      }
    });
  }

  // The weighted sum of a row's experts.
  void combine(int rows) {
    const Kernels& k = engine_.kernels();
    const size_t width = engine_.hidden(), shared = (size_t)rows * m_.top_k;
    engine_.pool().parallel_for(rows, engine_.grain(rows), [&](int begin, int end, int) {
      for (size_t r = begin; r < (size_t)end; r++) {
        float* y = s_.sum.p + r * width;
        std::fill_n(y, width, 0.0f);
        for (size_t i = r * m_.top_k; i < (r + 1) * m_.top_k; i++)
          if (s_.experts.p[i] != NONE) k.scale_add(s_.out.p + s_.pairs.p[i] * width, (int)width, s_.weights.p[i], y);
        if (m_.shared_inner) k.scale_add(s_.out.p + (shared + r) * width, (int)width, s_.shared_weights.p[r], y);
      }
    });
  }

  Engine& engine_;
  const ed_block block_;
  const ed_moe m_;
  MoeScratch& s_;
  const Matrix router_, shared_gate_up_, shared_down_, shared_gate_;
  std::vector<Level> levels_;
  std::vector<bool> chosen_;  // whether a row passes it
  std::vector<int> places_;  // of each expert among those of its level
};

// An expert must be whole groups of outputs.
std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_moe& m = *block.moe;
  const int up_rows = m.plain ? m.inner : 2 * m.inner;
  if (up_rows % LANES || engine.hidden() % LANES || m.top_k > m.experts) return nullptr;
  if (m.plain && (m.activation == CLAMPED_SWIGLU || m.activation == XIELU)) return nullptr;
  if (m.router != GIVEN && !m.router_weight.format) return nullptr;
  if (m.router == GIVEN && (block.values_of < 0 || m.drop_below > 0)) return nullptr;
  if (m.router == SPARSEMIXER && (m.router_bias || m.groups > 1)) return nullptr;
  if (m.router == RELU && (!m.score_norm || m.top_k != m.experts || m.router_bias || m.groups > 1)) return nullptr;
  const int size = m.experts / std::max(m.groups, 1);
  if (m.groups > 1 && (m.experts % m.groups || size < 2 || m.top_groups > m.groups || m.top_k > m.top_groups * size))
    return nullptr;
  return std::make_unique<MoeBlock>(engine, block);
}

}  // namespace

const BlockKind MOE_BLOCK = {MOE, make, nullptr};

}  // namespace edgedec
