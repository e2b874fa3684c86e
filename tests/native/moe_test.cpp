// Mixtures of experts: near a loop in double precision, and bit for bit the same alone and among other rows, on any
// instruction set and number of threads.
//
//     moe_test [models]
#include <algorithm>
#include <cstdlib>

#include "block_case.h"

namespace {

constexpr float EPS = 1e-5f;
int tied = 0;

// One block of a model.
struct Moe {
  Arrays arrays;
  Weight router, gate_up, down, shared_gate_up, shared_down, shared_gate;
  Floats bias, norm, post_norm, up_bias, down_bias, logit_bias, score_norm;
  ed_moe m{};
  ed_block block{};
  const int hidden;
  bool quantized = false;

  Moe(Random& r, int hidden) : hidden(hidden) {
    m.experts = r.from(1, 20), m.top_k = r.from(1, std::min(m.experts, 6)), m.inner = 8 * r.from(1, 9);
    if (r.chance(40)) grouped(r);
    if (r.chance(30)) m.plain = 1, m.inner = 16 * r.from(1, 5);
    m.activation = r.below(5), m.router = r.below(5), m.jitter = 0.01f * r.from(0, 40), m.normalize = r.below(2), m.scale = r.chance(50) ? 1.0f : 2.5f;
    m.shared_inner = r.chance(50) ? 0 : r.from(1, 50);
    auto format = [&] { return r.from(1, 4); };
    if (m.groups > 1) m.router = 2;
    if (m.router == 4) m.top_k = m.experts, m.normalize = 0, score_norm = r.floats(m.experts, 1, 0.5f), m.score_norm = score_norm.data();
    if (m.plain && m.activation == 4) m.activation = 5;  // no gate to clamp: squared ReLUs
    router = random_weight(r, arrays, F32, m.experts, hidden);
    gate_up = random_weight(r, arrays, format(), m.experts * rows_of(m.inner), hidden);
    down = random_weight(r, arrays, format(), m.experts * hidden, m.inner);
    if (m.shared_inner) {
      shared_gate_up = random_weight(r, arrays, format(), rows_of(m.shared_inner), hidden);
      shared_down = random_weight(r, arrays, format(), hidden, m.shared_inner);
      if (r.chance(50)) shared_gate = random_weight(r, arrays, F32, 1, hidden);
    }
    for (const Weight* w : {&gate_up, &down, &shared_gate_up, &shared_down}) quantized |= w->tensor.format >= INT8;
    m.router_weight = router.tensor, m.gate_up = gate_up.tensor, m.down = down.tensor;
    m.shared_gate_up = shared_gate_up.tensor, m.shared_down = shared_down.tensor, m.shared_gate = shared_gate.tensor;
    if (m.router < 3 && r.chance(50)) bias = r.floats(m.experts, 0, 0.5f), m.router_bias = bias.data();
    if (r.chance(40)) {
      up_bias = r.floats((size_t)m.experts * rows_of(m.inner), 0, 8), m.gate_up_bias = up_bias.data();
      down_bias = r.floats((size_t)m.experts * hidden, 0, 1), m.down_bias = down_bias.data();
      logit_bias = r.floats(m.experts, 0, 1), m.router_logit_bias = logit_bias.data();
    }
    norm = r.floats(hidden, 1, 0.3f), block.norm = {1, 0, norm.data(), nullptr};
    if (r.chance(30)) post_norm = r.floats(hidden, 1, 0.3f), block.post_norm = {1, 0, post_norm.data(), nullptr};
    block.kind = 3, block.moe = &m;
  }

  // Of the first matrix of an MLP.
  int rows_of(int inner) const { return m.plain ? inner : 2 * inner; }

  void grouped(Random& r) {
    const int size = r.from(2, 5);
    m.groups = r.from(2, 5), m.top_groups = r.from(1, m.groups), m.experts = m.groups * size;
    m.top_k = r.from(1, std::min(m.top_groups * size, 6));
  }

  // Scores, below all others for experts of all groups but the best; empty if two groups are too close to tell.
  Doubles in_best_groups(const Doubles& scores) const {
    const int size = m.experts / m.groups;
    std::vector<std::pair<double, int>> sums;
    for (int g = 0; g < m.groups; g++) {
      Doubles group(scores.begin() + g * size, scores.begin() + (g + 1) * size);
      std::sort(group.rbegin(), group.rend());
      sums.push_back({group[0] + group[1], g});
    }
    std::sort(sums.rbegin(), sums.rend());
    if (m.top_groups < m.groups && sums[m.top_groups - 1].first - sums[m.top_groups].first < 1e-5) return {};
    Doubles kept(m.experts, -1e9);
    for (int j = 0; j < m.top_groups; j++)
      for (int e = sums[j].second * size; e < (sums[j].second + 1) * size; e++) kept[e] = scores[e];
    return kept;
  }

  Doubles mlp(const Doubles& x, const Weight& up, int up_row, const Weight& down, int down_row, int inner) const {
    const bool biased = !up_bias.empty() && &up == &gate_up;
    Doubles both = up.times(x, up_row, rows_of(inner));
    for (int i = 0; biased && i < rows_of(inner); i++) both[i] += up_bias[up_row + i];
    Doubles act(inner);
    for (int i = 0; i < inner; i++) act[i] = m.plain ? activation(both[i], m.activation)
                                             : m.activation == 4 ? clamped(both[i], both[inner + i])
                                                                 : activation(both[i], m.activation) * both[inner + i];
    Doubles y = down.times(act, down_row, hidden);
    for (int i = 0; biased && i < hidden; i++) y[i] += down_bias[down_row + i];
    return y;
  }

  static double clamped(double gate, double up) {
    gate = std::min(gate, 7.0), up = std::max(-7.0, std::min(up, 7.0));
    return gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
  }

  // The experts of a row with their weights; empty if two of them are too close to tell.
  std::vector<std::pair<int, double>> route(const Doubles& x) const {
    Doubles logits = router.times(x);
    for (size_t e = 0; e < logit_bias.size(); e++) logits[e] += logit_bias[e];
    if (m.router == 4) return rectified(logits);
    Doubles scores(m.experts), ranked = logits;
    double total = 0;
    for (int e = 0; e < m.experts; e++) total += scores[e] = std::exp(logits[e]);
    for (int e = 0; e < m.experts; e++) scores[e] = m.router == 2 ? 1 / (1 + std::exp(-logits[e])) : scores[e] / total;
    if (m.router == 2) ranked = scores;
    for (int e = 0; e < m.experts && m.router_bias; e++) ranked[e] = scores[e] + bias[e];
    if (m.groups > 1 && (ranked = in_best_groups(ranked)).empty()) return {};
    std::vector<int> order(m.experts);
    for (int e = 0; e < m.experts; e++) order[e] = e;
    std::sort(order.begin(), order.end(), [&](int a, int b) { return ranked[a] > ranked[b]; });
    if (m.top_k < m.experts && ranked[order[m.top_k - 1]] - ranked[order[m.top_k]] < 1e-5) return {};
    std::vector<std::pair<int, double>> chosen;
    double sum = 0, sum_of_chosen = 0;
    for (int j = 0; j < m.top_k; j++) sum_of_chosen += std::exp(logits[order[j]]);
    for (int j = 0; j < m.top_k; j++) {
      const int e = order[j];
      const double share = m.router == 3 ? near_share(logits, order, j) : scores[e];
      if (share < 0) return {};
      chosen.push_back({e, m.router == 1 ? std::exp(logits[e]) / sum_of_chosen : share});
      sum += chosen.back().second;
    }
    for (auto& [e, weight] : chosen) weight = (m.normalize ? weight / sum : weight) * m.scale;
    return chosen;
  }

  // All experts, those that no row passes with weight 0.
  std::vector<std::pair<int, double>> rectified(Doubles logits) const {
    for (double& s : logits) s = std::max(s, 0.0);
    const Doubles weights = rms(logits, score_norm.data(), EPS, 0, logits.size());
    std::vector<std::pair<int, double>> all;
    for (int e = 0; e < m.experts; e++) all.push_back({e, weights[e] * m.scale});
    return all;
  }

  // SparseMixer's weight of the j-th expert; below 0 if what is near it is too close to tell.
  double near_share(const Doubles& logits, const std::vector<int>& order, int j) const {
    const double best = logits[order[j]];
    double sum = 0;
    for (int i = j; i < m.experts; i++) {
      const double s = logits[order[i]], left = 2 * (double)m.jitter * std::max(std::fabs(s), best) - (best - s);
      if (i > j && std::fabs(left) < 1e-4) return -1;
      if (i == j || left >= 0) sum += std::exp(s - best);
    }
    return 1 / sum;
  }

  // What a row becomes; empty as for route().
  Doubles expected(const float* row) const {
    const Doubles in(row, row + hidden), x = rms(in, norm.data(), EPS, 0, in.size());
    Doubles sum(hidden);
    const auto chosen = route(x);
    if (chosen.empty()) return {};
    auto add = [&](const Doubles& y, double weight) {
      for (int i = 0; i < hidden; i++) sum[i] += weight * y[i];
    };
    for (const auto& [e, weight] : chosen) add(mlp(x, gate_up, e * rows_of(m.inner), down, e * hidden, m.inner), weight);
    if (m.shared_inner)
      add(mlp(x, shared_gate_up, 0, shared_down, 0, m.shared_inner),
          shared_gate.values ? 1 / (1 + std::exp(-shared_gate.times(x)[0])) : 1.0);
    if (!post_norm.empty()) sum = rms(sum, post_norm.data(), EPS, 0, sum.size());
    for (int i = 0; i < hidden; i++) sum[i] += in[i];
    return sum;
  }
};

// Rows through one block.
Floats run(ed_engine* engine, int block, int hidden, const Floats& x) {
  const int rows = (int)x.size() / hidden;
  Floats y(x.size());
  std::vector<int64_t> positions(rows);
  float* out = y.data();
  ed_sequence s{};
  s.rows = rows, s.n_blocks = 1, s.blocks = &block, s.logits_from = -1, s.input = x.data(), s.positions = positions.data();
  s.n_hidden = 1, s.hidden_blocks = &block, s.hidden = &out;
  check(ed_run(engine, &s, 1) == 0, "a call of " + std::to_string(rows) + " rows");
  return y;
}

void check_block(Random& r, const Moe& moe, int block, const Engines& engines) {
  const int hidden = moe.hidden, rows = r.one_of({1, 2, 5, 17, 70});
  const Floats x = r.floats((size_t)rows * hidden, 0, 2);
  Floats alone;
  for (int i = 0; i < rows; i++) {
    const Floats y = run(engines.all[0], block, hidden, Floats(&x[(size_t)i * hidden], &x[(size_t)i * hidden] + hidden));
    alone.insert(alone.end(), y.begin(), y.end());
    const Doubles want = moe.expected(&x[(size_t)i * hidden]);
    if (want.empty()) tied++;
    else near(y.data(), want, moe.quantized ? 0.05 : 2e-5, "a row");
  }
  for (ed_engine* engine : engines.all)
    check(same(alone, run(engine, block, hidden, x)),
          std::to_string(rows) + " rows are not those alone on " + ed_engine_isa(engine));
}

// Blocks of one model have their working memory in common.
void check_model(Random& r) {
  const int hidden = 16 * r.from(1, 5);
  std::deque<Moe> moes;
  std::vector<ed_block> blocks;
  for (int n = r.from(1, 3); n > 0; n--) moes.emplace_back(r, hidden), blocks.push_back(moes.back().block);
  ed_model model{};
  model.hidden = hidden, model.n_blocks = (int)blocks.size(), model.norm_eps = EPS, model.embed_scale = 1;
  model.blocks = blocks.data();
  const Engines engines(model);
  for (size_t i = 0; i < moes.size(); i++) check_block(r, moes[i], (int)i, engines);
}

}  // namespace

int main(int argc, char** argv) {
  const int models = argc > 1 ? std::atoi(argv[1]) : 100;
  for (seed = 1; seed <= (unsigned)models; seed++) {
    Random r(seed);
    check_model(r);
  }
  std::printf("%d models, %d matrices with zero points, %d rows too close to tell, failures: %d\n", models, with_zeros, tied,
              failures);
  return failures || !with_zeros;
}
