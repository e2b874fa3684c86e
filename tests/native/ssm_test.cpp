// State-space blocks: near a loop in double precision; and through random trees, commits in pieces, forks, checkpoints
// and saved states every row is bit for bit what it is at the end of a chain run one row at a time by plain C++.
//
//     ssm_test [models]
#include <algorithm>
#include <cstdlib>
#include <map>
#include <thread>

#include "block_case.h"

namespace {

constexpr int DISTINCT = 12;  // rows that texts are made of
constexpr int WORTH = 16, KEPT = 4;
constexpr size_t TEXTS = 4;
constexpr int ROOM = 1000;

struct Counts {
  int rows, replayed, pieces, forks, back, grown, together, adapted;
} counts{};

struct Ssm {
  Arrays arrays;
  Weight in, out;
  Floats conv, conv_bias, dt_bias, a, d, gate_norm, in_bias, out_bias, norm;
  ed_ssm m{};
  std::vector<ed_block> blocks;
  ed_model model{};
  bool quantized = false;
  Floats inputs;  // [DISTINCT, hidden]

  explicit Ssm(Random& r) {
    const int hidden = r.from(1, 40);
    m.groups = r.from(1, 3), m.heads = m.groups * r.from(1, 3), m.head_dim = r.one_of({1, 7, 16, 20, 64, 80});
    m.state_size = r.from(1, 40), m.conv_size = r.from(1, 5);
    const int inner = m.heads * m.head_dim, channels = inner + 2 * m.groups * m.state_size;
    m.norm_groups = r.chance(50) ? 1 : r.chance(50) ? m.heads : 0;
    m.dt_min = r.chance(50) ? 0 : 0.01f, m.dt_max = r.chance(50) ? 1e30f : 0.9f;
    in = random_weight(r, arrays, r.from(1, 4), inner + channels + m.heads, hidden);
    out = random_weight(r, arrays, r.from(1, 4), hidden, inner);
    quantized = in.tensor.format >= INT8 || out.tensor.format >= INT8;
    conv = r.floats((size_t)channels * m.conv_size, 0, 1), conv_bias = r.floats(channels, 0, 0.3f);
    dt_bias = r.floats(m.heads, -1, 2), a = r.floats(m.heads, -1, 0.9f), d = r.floats(m.heads, 1, 1);
    gate_norm = r.floats(inner, 1, 0.3f), norm = r.floats(hidden, 1, 0.3f);
    if (r.chance(50)) in_bias = r.floats(in.tensor.n, 0, 0.3f), out_bias = r.floats(hidden, 0, 0.3f);
    m.in_proj = in.tensor, m.out_proj = out.tensor;
    if (!in_bias.empty()) m.in_proj_bias = in_bias.data(), m.out_proj_bias = out_bias.data();
    m.conv = conv.data(), m.conv_bias = conv_bias.data(), m.dt_bias = dt_bias.data();
    m.a = a.data(), m.d = d.data(), m.gate_norm = gate_norm.data();
    ed_block block{};
    block.kind = 4, block.ssm = &m, block.norm = {1, 0, norm.data(), nullptr};
    blocks.assign(r.from(1, 2), block);
    model.hidden = hidden, model.n_blocks = (int)blocks.size(), model.norm_eps = 1e-5f, model.embed_scale = 1;
    model.blocks = blocks.data();
    inputs = r.floats((size_t)DISTINCT * hidden, 0, 2);
  }
};

// One block in double precision, row after row.
struct Loop {
  const Ssm& s;
  Weight in, out;
  std::vector<Doubles> past;
  Doubles state;

  explicit Loop(const Ssm& ssm) : s(ssm), in(ssm.in), out(ssm.out) {
    state.resize((size_t)s.m.heads * s.m.head_dim * s.m.state_size);
    past.resize(s.m.conv_size - 1, Doubles(channels()));
  }
  int inner() const { return s.m.heads * s.m.head_dim; }
  int channels() const { return inner() + 2 * s.m.groups * s.m.state_size; }

  Doubles mix(const Doubles& projected) {
    past.push_back(Doubles(projected.begin() + inner(), projected.begin() + inner() + channels()));
    Doubles mixed(channels());
    for (int i = 0; i < channels(); i++) {
      double sum = s.conv_bias[i];
      for (int t = 0; t < s.m.conv_size; t++)
        sum += past[past.size() - s.m.conv_size + t][i] * s.conv[i * s.m.conv_size + t];
      mixed[i] = activation(sum, 0);
    }
    return mixed;
  }

  Doubles step(const Doubles& x) {
    const ed_ssm& m = s.m;
    Doubles projected = in.times(rms(x, s.norm.data(), s.model.norm_eps, 0, x.size()));
    for (size_t i = 0; i < s.in_bias.size(); i++) projected[i] += s.in_bias[i];
    const Doubles mixed = mix(projected);
    Doubles y(inner());
    for (int h = 0; h < m.heads; h++) {
      const double raw = projected[inner() + channels() + h] + s.dt_bias[h];
      const double dt = std::min<double>(std::max<double>(std::log1p(std::exp(raw)), m.dt_min), m.dt_max);
      const double* b = &mixed[inner() + h / (m.heads / m.groups) * m.state_size];
      for (int p = h * m.head_dim; p < (h + 1) * m.head_dim; p++) {
        for (int n = 0; n < m.state_size; n++) {
          double& at = state[(size_t)p * m.state_size + n];
          at = std::exp(dt * s.a[h]) * at + dt * mixed[p] * b[n];
          y[p] += at * b[m.groups * m.state_size + n];
        }
        y[p] = (y[p] + s.d[h] * mixed[p]) * activation(projected[p], 0);
      }
    }
    const int width = inner() / std::max(m.norm_groups, 1);
    Doubles normed;
    if (!m.norm_groups) normed = y;
    for (int part = 0; part < m.norm_groups; part++)
      for (double v : rms(y, s.gate_norm.data(), s.model.norm_eps, part * width, width)) normed.push_back(v);
    Doubles result = out.times(normed);
    for (size_t i = 0; i < result.size(); i++) result[i] += x[i] + (s.out_bias.empty() ? 0 : s.out_bias[i]);
    return result;
  }
};

// A call of one text: rows by their numbers in Ssm::inputs.
struct Asked {
  ed_cache* cache;
  std::vector<int> ids;
  std::vector<int64_t> parents, numbers;
  int first = 0;
  const ed_adapter* adapter = nullptr;
};

// Runs all of them in one go; what each computed row becomes.
std::vector<std::vector<Floats>> run(const Ssm& s, ed_engine* engine, const std::vector<Asked>& asked) {
  const int hidden = s.model.hidden, last = s.model.n_blocks - 1;
  std::vector<Floats> in(asked.size()), out(asked.size());
  std::vector<float*> to(asked.size());
  std::vector<ed_sequence> sequences;
  const std::vector<int64_t> positions(ROOM);
  for (size_t i = 0; i < asked.size(); i++) {
    const Asked& a = asked[i];
    for (size_t j = a.first; j < a.ids.size(); j++)
      in[i].insert(in[i].end(), &s.inputs[(size_t)a.ids[j] * hidden], &s.inputs[(size_t)(a.ids[j] + 1) * hidden]);
    out[i].resize(in[i].size()), to[i] = out[i].data();
    ed_sequence q{};
    q.rows = (int)a.ids.size() - a.first, q.first = a.first, q.n_blocks = -1, q.logits_from = -1, q.cache = a.cache;
    q.input = in[i].data(), q.positions = positions.data(), q.parents = a.parents.empty() ? nullptr : a.parents.data();
    q.numbers = a.numbers.empty() ? nullptr : a.numbers.data();
    q.adapter = a.adapter, q.n_hidden = 1, q.hidden_blocks = &last, q.hidden = &to[i];
    sequences.push_back(q);
  }
  const int wrong = ed_run(engine, sequences.data(), (int)sequences.size());
  check(wrong == 0, "a call is refused: " + std::to_string(wrong));
  std::vector<std::vector<Floats>> rows(asked.size());
  for (size_t i = 0; i < asked.size(); i++)
    for (size_t at = 0; at < out[i].size(); at += hidden) rows[i].push_back({&out[i][at], &out[i][at] + hidden});
  return rows;
}

// The last row of a chain, one row at a time by plain C++ on one thread. What was run before is kept: every row's
// result, and a cache for every STRIDE rows.
class Chains {
 public:
  Chains(const Ssm& ssm, ed_engine* engine, ed_cache_pool* pool) : ssm_(ssm), engine_(engine), pool_(pool) {}
  ~Chains() {
    for (const auto& [path, cache] : caches_) ed_cache_free(cache);
  }

  const Floats& last(const std::vector<int>& path) {
    if (!known_.count(path)) run_chain(path);
    return known_[path];
  }

 private:
  static constexpr size_t STRIDE = 16;

  void run_chain(const std::vector<int>& path) {
    size_t n = path.size() / STRIDE * STRIDE;
    while (n && !caches_.count({path.begin(), path.begin() + n})) n -= STRIDE;
    ed_cache* cache = n ? ed_cache_fork(caches_[{path.begin(), path.begin() + n}], (int)n, ROOM) : ed_cache_new(pool_, ROOM);
    while (n++ < path.size()) {
      const std::vector<int> done(path.begin(), path.begin() + n);
      known_[done] = run(ssm_, engine_, {{cache, {path[n - 1]}, {}, {}}})[0][0];
      check(ed_cache_commit(cache, nullptr, 1) == 0, "commit of a row");
      if (n % STRIDE == 0 && !caches_.count(done)) caches_[done] = ed_cache_fork(cache, (int)n, ROOM);
    }
    ed_cache_free(cache);
  }

  const Ssm& ssm_;
  ed_engine* engine_;
  ed_cache_pool* pool_;
  std::map<std::vector<int>, Floats> known_;
  std::map<std::vector<int>, ed_cache*> caches_;
};

// A text as it should be.
struct Text {
  ed_cache* cache;
  std::vector<int> committed;
  std::vector<int> lengths;  // of checkpoints
  Asked tree{};
  int done = 0;  // pending rows below it are committed, or can no longer be

  std::vector<int> path(int row) const {
    std::vector<int> all;
    for (; row >= 0; row = (int)tree.parents[row]) all.push_back(tree.ids[row]);
    all.insert(all.end(), before.rbegin(), before.rend());
    std::reverse(all.begin(), all.end());
    return all;
  }
  std::vector<int> before{};  // what was committed when the tree began
};

class Machine {
 public:
  Machine(Random& r, const Ssm& ssm)
      : r_(r),
        ssm_(ssm),
        engines_(ssm.model),
        pool_(ed_cache_pool_new(&ssm.model, F32)),
        chains_(ssm, engines_.all[0], pool_) {
    texts_.reserve(TEXTS);
    texts_.push_back({ed_cache_new(pool_, ROOM), {}, {}});
  }
  ~Machine() {
    for (Text& text : texts_) ed_cache_free(text.cache);
    ed_cache_pool_free(pool_);
  }

  void step() {
    Text& text = texts_[r_.below((int)texts_.size())];
    const int what = r_.below(100);
    if (what < 45) call();
    else if (what < 75) commit(text);
    else if (what < 80) ed_cache_rollback(text.cache), forget(text);
    else if (what < 87) truncate(text);
    else if (what < 95) fork(text);
    else reload(text);
    check(ed_cache_length(text.cache) == (int)text.committed.size(), "length");
  }

  // Six chains of WORTH rows: the last KEPT ends can be gone back to, and nothing.
  void go_back() {
    ed_cache* cache = ed_cache_new(pool_, ROOM);
    std::vector<int> path;
    for (int i = 0; i < 6; i++) {
      Asked chain{cache, {}, {}, {}};
      for (int j = 0; j < WORTH + 1; j++) chain.ids.push_back(r_.below(DISTINCT));
      run(ssm_, engines_.any(r_), {chain});
      ed_cache_commit(cache, nullptr, WORTH);
      path.insert(path.end(), chain.ids.begin(), chain.ids.end() - 1);
    }
    for (int length : {6 * WORTH - 1, 5 * WORTH - 1, 3 * WORTH + 1, 3 * WORTH - 1}) {
      const int want = length < 3 * WORTH ? 0 : length / WORTH * WORTH, got = ed_cache_truncate(cache, length);
      check(got == want, "checkpoint " + std::to_string(got) + ", not " + std::to_string(want));
      path.resize(got), path.push_back(3);
      check(same(run(ssm_, engines_.any(r_), {{cache, {3}, {}, {}}})[0][0], chains_.last(path)), "a row after a checkpoint");
      ed_cache_rollback(cache), path.pop_back();
    }
    ed_cache_free(cache);
  }

  // Two forks of one text, each on a thread and an engine of its own.
  void two_threads() {
    ed_cache* cache = ed_cache_new(pool_, ROOM);
    std::vector<int> path = {5, 1, 7, 2};
    run(ssm_, engines_.all[0], {{cache, {5, 1, 7, 2, 9}, {}, {}}});
    ed_cache_commit(cache, nullptr, 4);
    std::vector<Floats> rows[2];
    std::thread threads[2];
    for (int t = 0; t < 2; t++)
      threads[t] = std::thread([&, t, twin = ed_cache_fork(cache, 4, ROOM)] {
        for (int i = 0; i < 20; i++) {
          rows[t].push_back(run(ssm_, engines_.all[1 + t], {{twin, {(i * 5 + t) % DISTINCT}, {}, {}}})[0][0]);
          ed_cache_commit(twin, nullptr, 1);
        }
        ed_cache_free(twin);
      });
    ed_cache_free(cache);
    for (int t = 0; t < 2; t++) {
      threads[t].join(), path.resize(4);
      for (int i = 0; i < 20; i++) {
        path.push_back((i * 5 + t) % DISTINCT);
        check(same(rows[t][i], chains_.last(path)), "a row on a thread of its own");
      }
    }
  }

  // Low-rank weights beside both projections: the loop with their product added to its own weights.
  void adapted() {
    const int hidden = ssm_.model.hidden, blocks = ssm_.model.n_blocks, rank = 3;
    if (blocks > 1 || ssm_.quantized) return;
    const Weight* weights[2] = {&ssm_.in, &ssm_.out};
    Loop loop(ssm_);
    Doubles values[2];
    Floats a[2], b[2];
    ed_lora parts[2];
    for (int i = 0; i < 2; i++) {
      const int n = weights[i]->tensor.n, k = weights[i]->tensor.k;
      a[i] = r_.floats((size_t)rank * k, 0, 0.3f), b[i] = r_.floats((size_t)n * rank, 0, 0.3f);
      values[i] = *weights[i]->values;
      for (int row = 0; row < n; row++)
        for (int j = 0; j < k; j++)
          for (int t = 0; t < rank; t++) values[i][(size_t)row * k + j] += 1.5 * b[i][row * rank + t] * a[i][t * k + j];
      parts[i] = {rank, 1.5f, a[i].data(), b[i].data()};
    }
    loop.in.values = &values[0], loop.out.values = &values[1];
    const ed_adapter adapter = {parts};
    ed_cache* cache = ed_cache_new(pool_, ROOM);
    const auto rows = run(ssm_, engines_.any(r_), {{cache, {3, 1, 4, 1, 5}, {}, {}, 0, &adapter}})[0];
    for (int i = 0, ids[] = {3, 1, 4, 1, 5}; i < 5; i++) {
      const float* x = &ssm_.inputs[(size_t)ids[i] * hidden];
      near(rows[i].data(), loop.step({x, x + hidden}), 5e-5, "adapted row " + std::to_string(i));
    }
    counts.adapted++;
    ed_cache_free(cache);
  }

  void near_the_loop() {
    if (ssm_.blocks.size() > 1) return;
    Loop loop(ssm_);
    std::vector<int> path;
    for (int i = 0; i < 30; i++) {
      path.push_back(r_.below(DISTINCT));
      const Floats& y = chains_.last(path);
      const float* x = &ssm_.inputs[(size_t)path.back() * ssm_.model.hidden];
      near(y.data(), loop.step({x, x + ssm_.model.hidden}), ssm_.quantized ? 0.25 : 5e-5, "row " + std::to_string(i));
    }
  }

 private:
  static void forget(Text& text) { text.tree = {}, text.done = 0; }

  void add_rows(Asked& tree, int n, bool chain, int lowest) {
    for (int i = 0; i < n; i++) {
      const int row = (int)tree.ids.size();
      tree.ids.push_back(r_.below(DISTINCT));
      tree.parents.push_back(chain ? row - 1 : r_.from(std::max(-1, std::max(lowest, row - 6)), row - 1));
      tree.numbers.push_back((tree.numbers.empty() ? -1 : tree.numbers.back()) + (chain ? 1 : r_.from(1, 3)));
    }
  }

  // Some texts in one call, each with a new tree or its own grown.
  void call() {
    std::vector<Text*> chosen;
    for (Text& text : texts_)
      if (chosen.empty() || r_.chance(40)) chosen.push_back(&text);
    std::vector<Asked> asked;
    for (Text* text : chosen) {
      const bool chain = r_.chance(40);
      const bool began = text->committed.size() > text->before.size();
      if (text->tree.ids.empty() || began || r_.chance(40)) {
        if (text->committed.size() > 120) truncate(*text);
        forget(*text), text->before = text->committed;
        text->tree = {text->cache, {}, {}, {}};
        add_rows(text->tree, chain && r_.chance(60) ? r_.from(16, 60) : r_.from(1, 12), chain, -1);
      } else {
        // The last rows may be replaced.
        const int keep = std::max(1, (int)text->tree.ids.size() - (r_.chance(30) ? r_.below(3) : 0));
        text->tree.ids.resize(keep), text->tree.parents.resize(keep), text->tree.numbers.resize(keep);
        text->tree.first = keep, counts.grown++;
        add_rows(text->tree, r_.from(1, 6), chain, -1);
      }
      asked.push_back(text->tree);
      const auto& parents = text->tree.parents;
      for (size_t i = 0; i < parents.size(); i++) counts.replayed += parents[i] != (int64_t)i - 1;
      if (chain && text->tree.first == 0 && r_.chance(50)) asked.back().parents.clear(), asked.back().numbers.clear();
    }
    counts.together += chosen.size() > 1;
    const auto rows = run(ssm_, engines_.any(r_), asked);
    for (size_t i = 0; i < chosen.size(); i++)
      for (size_t j = 0; j < rows[i].size(); j++, counts.rows++)
        check(same(rows[i][j], chains_.last(chosen[i]->path(chosen[i]->tree.first + (int)j))),
              "row " + std::to_string(j) + " is not that of a chain");
  }

  // A path of the tree from its root, or the next piece of it: rows whose parent is the last committed row.
  void commit(Text& text) {
    const int rows = (int)text.tree.ids.size();
    if (text.done >= rows) return;
    const bool began = text.committed.size() > text.before.size();
    std::vector<int> path;
    for (int row = r_.chance(50) ? rows - 1 : r_.from(text.done, rows - 1); row >= 0; row = (int)text.tree.parents[row])
      path.push_back(row);
    std::reverse(path.begin(), path.end());
    const auto last = began ? std::find(path.begin(), path.end(), text.done - 1) : path.begin();
    if (began && last == path.end()) return;
    path.erase(path.begin(), last + began);
    if (path.empty()) return;
    if (r_.chance(40)) path.resize(r_.from(1, (int)path.size()));
    counts.pieces += began;
    std::vector<int64_t> numbers;
    for (int row : path) numbers.push_back(text.tree.numbers[row]), text.committed.push_back(text.tree.ids[row]);
    check(ed_cache_commit(text.cache, numbers.data(), (int)numbers.size()) == 0, "commit");
    if (numbers.size() >= (size_t)WORTH) {
      text.lengths.push_back((int)text.committed.size());
      if (text.lengths.size() > (size_t)KEPT) text.lengths.erase(text.lengths.begin());
    }
    text.done = path.back() + 1;
  }

  static int checkpoint(const Text& text, int length) {
    if (length >= (int)text.committed.size()) return length;
    int found = 0;
    for (int at : text.lengths)
      if (at <= length) found = at;
    return found;
  }

  static void cut(Text& text, int length) {
    text.committed.resize(length);
    while (!text.lengths.empty() && text.lengths.back() > length) text.lengths.pop_back();
    forget(text);
  }

  int any_length(const Text& text) {
    const int length = (int)text.committed.size();
    return r_.chance(40) ? length : r_.below(length + 1);
  }

  void truncate(Text& text) {
    const int length = any_length(text), want = checkpoint(text, length);
    const int got = ed_cache_truncate(text.cache, length);
    check(got == want, "truncated to " + std::to_string(got) + ", not " + std::to_string(want));
    counts.back += got && got < (int)text.committed.size();
    cut(text, want);
  }

  void fork(const Text& text) {
    const int length = any_length(text);
    Text twin = text;
    twin.cache = ed_cache_fork(text.cache, length, ROOM);
    cut(twin, checkpoint(text, length));
    check(ed_cache_length(twin.cache) == (int)twin.committed.size(), "length of a fork");
    counts.forks++;
    if (texts_.size() < TEXTS) {
      texts_.push_back(twin);
      return;
    }
    Text& old = texts_[1 + r_.below((int)texts_.size() - 1)];
    ed_cache_free(old.cache);
    old = twin;
  }

  void reload(Text& text) {
    Floats saved(ed_cache_save_bytes(text.cache) / sizeof(float) + 1);
    ed_cache_save(text.cache, (uint8_t*)saved.data());
    ed_cache* loaded = ed_cache_new(pool_, ROOM);
    check(ed_cache_load(loaded, (uint8_t*)saved.data(), ed_cache_save_bytes(text.cache)) == 0, "load");
    check(ed_cache_load(loaded, (uint8_t*)saved.data(), ed_cache_save_bytes(text.cache) - 4) != 0, "load of a part");
    ed_cache_free(text.cache);
    text.cache = loaded, text.lengths.clear();
    if (!text.committed.empty()) text.lengths.push_back((int)text.committed.size());
    forget(text);
  }

  Random& r_;
  const Ssm& ssm_;
  const Engines engines_;
  ed_cache_pool* pool_;
  Chains chains_;
  std::vector<Text> texts_;
};

}  // namespace

int main(int argc, char** argv) {
  const int models = argc > 1 ? std::atoi(argv[1]) : 12;
  for (seed = 1; seed <= (unsigned)models; seed++) {
    Random r(seed);
    const Ssm ssm(r);
    Machine machine(r, ssm);
    machine.near_the_loop();
    machine.go_back();
    machine.two_threads();
    machine.adapted();
    for (int i = 0; i < 150; i++) machine.step();
  }
  std::printf("%d models, %d rows; %d branches, %d grown trees, %d calls of several texts, %d commits of a later piece, "
              "%d forks, %d times back to a checkpoint; failures: %d\n", models, counts.rows, counts.replayed,
              counts.grown, counts.together, counts.pieces, counts.forks, counts.back, failures);
  const bool trees = counts.replayed && counts.grown && counts.together && counts.pieces;
  const bool tried = trees && counts.forks && counts.back && counts.adapted;
  return failures || !tried || !with_zeros ? 1 : 0;
}
