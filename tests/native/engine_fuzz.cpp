// Random models, random calls, random nonsense. Of every sequence of valid calls the logits and the cache
// are those of its rows run one at a time, on one thread, by plain C++: bit for bit. Calls that cannot be
// are refused by number. Meant for the sanitizers.
//
//     engine_fuzz [seconds] [first seed]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../kernels/cpu/api.h"

namespace {

int failures = 0;
unsigned seed = 0;
long calls = 0, refused = 0, together = 0;

void check(bool ok, const std::string& what) {
  if (ok) return;
  if (failures++ < 20) std::printf("FAILED seed %u: %s\n", seed, what.c_str());
}

struct Random {
  std::mt19937 bits;
  explicit Random(unsigned s) : bits(s) {}
  int below(int n) { return (int)(bits() % (unsigned)n); }
  int from(int a, int b) { return a + below(b - a + 1); }
  bool chance(int percent) { return below(100) < percent; }
  float flat() { return (float)((int)(bits() >> 8) - (1 << 23)) / (float)(1 << 23); }
  template <class T>
  T one_of(std::initializer_list<T> all) { return all.begin()[below((int)all.size())]; }
};

// Memory of exactly the size that is needed, so that a step past its end is seen.
struct Memory {
  std::vector<std::unique_ptr<uint8_t[]>> all;
  template <class T>
  T* get(size_t n) {
    all.emplace_back(new uint8_t[n * sizeof(T) + 1]());
    return (T*)all.back().get();
  }
  float* floats(Random& r, size_t n, float middle, float spread) {
    float* x = get<float>(n);
    for (size_t i = 0; i < n; i++) x[i] = middle + spread * r.flat();
    return x;
  }
};

struct Model {
  Memory memory;
  ed_model m{};
  std::vector<ed_layer> layers;
  std::vector<ed_rope> ropes;
  int context = 0;

  ed_tensor tensor(Random& r, int n, int k) {
    ed_tensor t{};
    t.format = r.from(1, 4), t.n = n, t.k = k;
    float size = 1.5f / std::sqrt((float)k);
    if (t.format == 1) {
      t.data = memory.floats(r, (size_t)n * k, 0, size);
    } else if (t.format == 2) {
      uint16_t* x = memory.get<uint16_t>((size_t)n * k);
      for (size_t i = 0; i < (size_t)n * k; i++) x[i] = half(r, size);
      t.data = x;
    } else {
      t.layout = r.below(2), t.block = 16 << r.below(5);
      size_t rows = t.layout ? (n + 15) / 16 * 16 : n, blocks = (k + t.block - 1) / t.block;
      size_t bytes = rows * blocks * t.block / (t.format == 4 ? 2 : 1);
      uint8_t* data = memory.get<uint8_t>(bytes);
      uint16_t* scales = memory.get<uint16_t>(rows * blocks);
      for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)r.below(256);
      for (size_t i = 0; i < rows * blocks; i++) scales[i] = half(r, size / (t.format == 4 ? 8 : 128));
      t.data = data, t.scales = scales;
    }
    return t;
  }

  // A small number as a half, some of them subnormal, some zero.
  static uint16_t half(Random& r, float size) {
    if (r.chance(3)) return (uint16_t)r.below(64);
    int exponent = 15 + (int)std::floor(std::log2(size));
    if (exponent < 1) exponent = 0;
    return (uint16_t)(r.below(2) << 15 | (exponent < 30 ? exponent : 30) << 10 | r.below(1024));
  }

  explicit Model(Random& r) {
    m.kv_heads = r.from(1, 3), m.heads = m.kv_heads * r.from(1, 4), m.head_dim = r.from(1, r.chance(20) ? 70 : 34);
    m.hidden = r.from(1, 70), m.intermediate = r.chance(50) ? 16 * r.from(1, 5) : r.from(1, 70);
    m.vocab = r.chance(20) ? r.from(500, 1300) : r.from(1, 70);
    m.n_layers = r.from(1, 3), m.n_ropes = m.head_dim > 1 ? r.from(1, 2) : 0;
    m.qk_norm = r.below(3), m.activation = r.below(2), m.norm_eps = 1e-5f;
    m.attn_scale = 1 / std::sqrt((float)m.head_dim), m.embed_scale = r.chance(50) ? 1.0f : 2.0f;
    m.attn_softcap = r.chance(70) ? 0.0f : 3.0f, m.final_softcap = r.chance(70) ? 0.0f : 5.0f;
    m.sinks = r.chance(80) ? 0 : r.from(1, 5);
    context = r.chance(40) ? r.from(270, 620) : r.from(20, 120);
    for (int i = 0; i < m.n_ropes; i++) {
      int pairs = r.from(1, m.head_dim / 2);
      float *cos = memory.get<float>((size_t)context * pairs), *sin = memory.get<float>((size_t)context * pairs);
      for (int j = 0; j < context * pairs; j++) {
        float angle = (float)(j / pairs) / (1 + j % pairs * 3);
        cos[j] = std::cos(angle), sin[j] = std::sin(angle);
      }
      ropes.push_back({cos, sin, pairs, context});
    }
    bool before = r.chance(70), after = !before || r.chance(30), bias = r.chance(40);
    int q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
    auto norm = [&](bool there, int n) { return there ? memory.floats(r, n, 1, 0.3f) : nullptr; };
    auto offset = [&](int n) { return bias ? memory.floats(r, n, 0, 0.3f) : nullptr; };
    for (int i = 0; i < m.n_layers; i++) {
      ed_layer l{};
      l.qkv = tensor(r, q + 2 * kv, m.hidden), l.o = tensor(r, m.hidden, q);
      l.gate_up = tensor(r, 2 * m.intermediate, m.hidden), l.down = tensor(r, m.hidden, m.intermediate);
      l.attn_norm = norm(before, m.hidden), l.mlp_norm = norm(before, m.hidden);
      l.attn_post_norm = norm(after, m.hidden), l.mlp_post_norm = norm(after, m.hidden);
      l.q_norm = norm(m.qk_norm, m.qk_norm == 1 ? m.head_dim : q);
      l.k_norm = norm(m.qk_norm, m.qk_norm == 1 ? m.head_dim : kv);
      l.qkv_bias = offset(q + 2 * kv), l.o_bias = offset(m.hidden);
      l.gate_up_bias = offset(2 * m.intermediate), l.down_bias = offset(m.hidden);
      l.rope = m.n_ropes ? r.from(-1, m.n_ropes - 1) : -1;
      l.window = r.chance(50) ? 0 : r.from(1, r.chance(50) ? 8 : 300);
      layers.push_back(l);
    }
    m.embed = tensor(r, m.vocab, m.hidden);
    m.head = r.chance(50) ? m.embed : tensor(r, m.vocab, m.hidden);
    m.final_norm = norm(true, m.hidden);
    m.layers = layers.data(), m.ropes = ropes.data();
  }

  size_t row_bytes(int kv) const { return (size_t)ed_kv_row_bytes(m.head_dim, kv); }
};

struct Cache {
  const Model* model;
  int kv, allocated, length = 0;
  std::unique_ptr<uint8_t[]> data;
  std::shared_ptr<const Cache> others;  // the first n_shared slots, which are other texts' too
  int n_shared = 0;

  Cache(const Model& m, int kv, int allocated) : model(&m), kv(kv), allocated(allocated) {
    data.reset(new uint8_t[bytes() + 1]());
  }
  size_t runs() const { return (size_t)model->m.n_layers * 2 * model->m.kv_heads; }
  size_t bytes() const { return runs() * allocated * model->row_bytes(kv); }
  uint8_t* at(size_t run, int slot) const {
    if (slot < n_shared) return others->at(run, slot);
    return data.get() + (run * allocated + slot - n_shared) * model->row_bytes(kv);
  }
  // The first `n` slots in memory of their own, which texts may share.
  std::shared_ptr<const Cache> begin(int n, int room) const {
    auto made = std::make_shared<Cache>(*model, kv, room);
    for (size_t run = 0; run < runs(); run++)
      for (int slot = 0; slot < n; slot++) std::memcpy(made->at(run, slot), at(run, slot), model->row_bytes(kv));
    return made;
  }
  // Slots 0 to n as they lie there, and those up to `length` behind them.
  void share(std::shared_ptr<const Cache> from, int n) {
    Cache own(*model, kv, allocated + n_shared - n);
    own.n_shared = n;
    for (size_t run = 0; run < runs(); run++)
      for (int slot = n; slot < length; slot++) std::memcpy(own.at(run, slot), at(run, slot), model->row_bytes(kv));
    data = std::move(own.data), allocated = own.allocated, others = std::move(from), n_shared = n;
  }
  void move(int to, int from) {
    for (size_t run = 0; run < runs(); run++) std::memcpy(at(run, to), at(run, from), model->row_bytes(kv));
  }
  bool same(int slot, const Cache& other, int slot_there) const {
    for (size_t run = 0; run < runs(); run++)
      if (std::memcmp(at(run, slot), other.at(run, slot_there), model->row_bytes(kv))) return false;
    return true;
  }
};

using Floats = std::vector<float>;

// One text: what is committed and, behind it, the tree of the next call.
struct Text {
  Cache cache;
  std::vector<int64_t> tokens;  // committed
  std::vector<int64_t> tree;
  std::vector<int32_t> parents;
  int first = 0;

  Text(const Model& m, int kv, int room) : cache(m, kv, room) {}
  int depth(int row) const { return row < 0 ? 0 : 1 + depth(parents[row]); }
  std::vector<int64_t> path(int row) const {
    if (row < 0) return tokens;
    std::vector<int64_t> all = path(parents[row]);
    all.push_back(tree[row]);
    return all;
  }
};

struct Job {
  std::vector<Text*> texts;
  std::vector<int64_t> tokens, positions;
  std::vector<ed_sequence> sequences;
  std::vector<int32_t> blocks;
  Floats hidden, logits, top_logits;
  std::vector<int32_t> top_ids;
  ed_call call{};
};

bool chain(const Text& t) {
  for (size_t i = 0; i < t.parents.size(); i++)
    if (t.parents[i] != (int)i - 1) return false;
  return true;
}

void prepare(const Model& model, Job& job, bool parents_always) {
  const ed_model& m = model.m;
  for (Text* t : job.texts) {
    ed_sequence s{};
    s.row = (int)job.tokens.size(), s.rows = (int)t->tree.size() - t->first;
    s.length = t->cache.length, s.first = t->first, s.allocated = t->cache.allocated, s.kv = t->cache.kv;
    s.cache = t->cache.data.get();
    if ((s.shared = t->cache.n_shared)) {
      s.shared_cache = t->cache.others->data.get(), s.shared_allocated = t->cache.others->allocated;
    }
    if (parents_always || !chain(*t)) s.parents = t->parents.data();
    for (size_t i = t->first; i < t->tree.size(); i++) {
      job.tokens.push_back(t->tree[i]);
      job.positions.push_back((int)t->tokens.size() + t->depth((int)i) - 1);
    }
    job.sequences.push_back(s);
  }
  for (int b = 0; b < 2 * m.n_layers; b++) job.blocks.push_back(b);
  job.hidden.resize(job.tokens.size() * m.hidden);
  job.logits.resize(job.tokens.size() * m.vocab);
  ed_call& c = job.call;
  c.rows = (int)job.tokens.size(), c.n_sequences = (int)job.sequences.size(), c.n_blocks = (int)job.blocks.size();
  c.tokens = job.tokens.data(), c.hidden = job.hidden.data(), c.positions = job.positions.data();
  c.sequences = job.sequences.data(), c.blocks = job.blocks.data(), c.logits = job.logits.data();
}

// The whole call at once, or block by block and the head by itself, with the best beside all logits or without.
void run(Random& r, ed_engine* engine, const Model& model, Job& job) {
  const int top = r.from(1, 4);
  job.top_ids.assign(job.tokens.size() * top, -7), job.top_logits.resize(job.tokens.size() * top);
  ed_call c = job.call;
  if (r.chance(50)) {
    int at = 0;
    c.head_from = -1;
    while (at < job.call.n_blocks) {
      c.n_blocks = r.from(1, job.call.n_blocks - at), c.blocks = job.blocks.data() + at;
      check(ed_run(engine, &c) == 0, "blocks refused");
      at += c.n_blocks, c.tokens = nullptr;
      calls++;
    }
    c.n_blocks = 0, c.n_sequences = 0, c.sequences = nullptr, c.positions = nullptr, c.head_from = 0;
  }
  if (r.chance(50)) c.top = top, c.top_ids = job.top_ids.data(), c.top_logits = job.top_logits.data();
  check(ed_run(engine, &c) == 0, "a valid call refused");
  calls++;
  if (!c.top) return;
  for (size_t row = 0; row < job.tokens.size(); row++) {
    const float* logits = job.logits.data() + row * model.m.vocab;
    std::vector<bool> taken(model.m.vocab);
    for (int j = 0; j < top; j++) {
      int best = -1;
      for (int i = 0; i < model.m.vocab; i++)
        if (!taken[i] && (best < 0 || logits[i] > logits[best])) best = i;
      check(job.top_ids[row * top + j] == best, "not the best token");
      if (best < 0) break;
      check(job.top_logits[row * top + j] == logits[best], "not its logit");
      taken[best] = true;
    }
  }
}

// A row's logits, alone: its whole text one row at a time in plain C++.
struct Oracle {
  ed_engine* engine;
  const Model& model;
  Cache cache;
  std::vector<int64_t> done;
  Floats logits;

  Oracle(const Model& m, int kv) : engine(ed_open(&m.m, 1, "scalar")), model(m), cache(m, kv, m.context) {}
  ~Oracle() { ed_close(engine); }

  void read(const std::vector<int64_t>& text) {
    size_t same = 0;
    while (same < done.size() && same < text.size() && done[same] == text[same]) same++;
    if (same == text.size()) same--;
    done.resize(same);
    for (size_t i = same; i < text.size(); i++) {
      std::vector<int32_t> blocks;
      for (int b = 0; b < 2 * model.m.n_layers; b++) blocks.push_back(b);
      ed_sequence s{};
      s.rows = 1, s.length = (int)i, s.allocated = cache.allocated, s.kv = cache.kv, s.cache = cache.data.get();
      int64_t position = (int64_t)i;
      Floats hidden(model.m.hidden);
      logits.resize(model.m.vocab);
      ed_call c{};
      c.rows = 1, c.n_sequences = 1, c.n_blocks = (int)blocks.size(), c.tokens = &text[i], c.hidden = hidden.data();
      c.positions = &position, c.sequences = &s, c.blocks = blocks.data(), c.logits = logits.data();
      check(ed_run(engine, &c) == 0, "one row refused");
      done.push_back(text[i]);
    }
  }
};

void grow(Random& r, const Model& model, Text& t) {
  int room = model.context - (int)t.tokens.size() - (int)t.tree.size();
  int rows = std::min(room, r.chance(10) ? r.from(60, 90) : r.chance(20) ? 1 : r.from(0, 12));
  bool branching = r.chance(60);
  if (t.tokens.empty() && r.chance(30)) rows = r.from(room / 2, room), branching = false;  // whole chunks
  for (int i = 0; i < rows; i++) {
    int last = (int)t.tree.size() - 1;
    t.tree.push_back(r.below(model.m.vocab));
    t.parents.push_back(branching ? r.from(-1, last) : last);
  }
}

void compare(const Model& model, std::map<Text*, Oracle>& alone, const Job& job, Random& r) {
  size_t row = 0;
  for (Text* t : job.texts)
    for (size_t i = t->first; i < t->tree.size(); i++, row++) {
      if (job.tokens.size() > 12 && r.chance(60)) continue;  // a sample of many
      Oracle& oracle = alone.at(t);
      oracle.read(t->path((int)i));
      bool logits = !std::memcmp(oracle.logits.data(), job.logits.data() + row * model.m.vocab, 4 * model.m.vocab);
      check(logits, "logits of row " + std::to_string(i) + " of " + std::to_string(t->tree.size()));
      check(t->cache.same(t->cache.length + (int)i, oracle.cache, (int)oracle.done.size() - 1), "cache of a row");
    }
}

// Commits a path of the tree, or cuts the text.
void keep(Random& r, Text& t) {
  const int last = (int)t.tree.size() - 1, row = last > 60 ? last : r.from(-1, last);
  std::vector<int> path;
  for (int at = row; at >= 0; at = t.parents[at]) path.insert(path.begin(), at);
  int base = t.cache.length;
  for (size_t i = 0; i < path.size(); i++) {
    t.cache.move(base + (int)i, base + path[i]);
    t.tokens.push_back(t.tree[path[i]]);
  }
  t.cache.length += (int)path.size();
  t.tree.clear(), t.parents.clear(), t.first = 0;
  if (r.chance(15)) {
    t.cache.length = r.from(std::min(t.cache.n_shared, t.cache.length), t.cache.length);
    t.tokens.resize(t.cache.length);
  }
}

// One text begins anew with the first tokens of another, from there on in one copy for both.
void lend(Random& r, Text& from, Text& to) {
  if (!from.tree.empty() || !from.cache.length || &from == &to) return;
  const int n = r.chance(50) ? from.cache.length : r.from(1, from.cache.length), room = n + (r.chance(50) ? 0 : r.from(1, 9));
  std::shared_ptr<const Cache> shared = n <= from.cache.n_shared ? from.cache.others : from.cache.begin(n, room);
  if (n > from.cache.n_shared) from.cache.share(shared, n);
  to.tree.clear(), to.parents.clear(), to.first = 0;
  to.tokens.assign(from.tokens.begin(), from.tokens.begin() + n);
  to.cache.length = n;
  to.cache.share(shared, n);
}

// A valid call made impossible in one way, and the number it must be refused with.
void refuse(Random& r, ed_engine* engine, const Model& model, Job job) {
  const ed_model& m = model.m;
  const int n = job.call.rows;
  if (!n) return;
  ed_call& c = job.call;
  c.tokens = job.tokens.data(), c.hidden = job.hidden.data(), c.positions = job.positions.data();
  c.sequences = job.sequences.data(), c.blocks = job.blocks.data(), c.logits = job.logits.data();
  ed_sequence& s = job.sequences[r.below((int)job.sequences.size())];
  std::vector<int32_t> parents;
  constexpr int MOST = std::numeric_limits<int32_t>::max();
  int want = 0;
  switch (r.below(26)) {
    case 0: c.rows = -r.from(1, 9), want = 1; break;
    case 1: c.rows = (1 << 20) + 1, want = 1; break;
    case 2: c.head_from = n + 1, want = 1; break;
    case 3: c.top = -1, want = 1; break;
    case 4: job.tokens[r.below(n)] = m.vocab, want = 2; break;
    case 5: job.tokens[r.below(n)] = r.chance(50) ? -1 : (int64_t)1 << 40, want = 2; break;
    case 6: if (m.n_ropes) job.positions[r.below(n)] = model.context, want = 3; break;
    case 7: if (m.n_ropes) job.positions[r.below(n)] = r.chance(50) ? -1 : (int64_t)1 << 40, want = 3; break;
    case 8: job.blocks[r.below((int)job.blocks.size())] = r.chance(50) ? -1 : 2 * m.n_layers, want = 4; break;
    case 9: c.n_sequences--, want = job.sequences.back().rows ? 5 : 0; break;
    case 10: s.row++, want = 5; break;
    case 11: s.rows = -1, want = 5; break;
    case 12: s.rows = MOST, want = -1; break;
    case 13: s.allocated = s.length - s.shared + s.first + s.rows - 1, want = 6; break;
    case 14: s.length = s.shared - 1, want = 6; break;
    case 15: s.first = -1, want = 6; break;
    case 16: s.length = s.first = MOST, want = 6; break;
    case 17: case 18: {
      int all = s.first + s.rows;
      if (!all) return;
      parents.assign(all, -1);
      int bad = r.below(all);
      parents[bad] = r.one_of({bad, bad + 1, -2, MOST});
      s.parents = parents.data(), want = 7;
      break;
    }
    case 19: s.kv = r.one_of({0, -1, 5, MOST}), want = 8; break;
    case 20: s.cache = nullptr, want = s.rows ? 8 : 0; break;
    case 21: s.rows = MOST, s.allocated = MOST, s.length = s.first = s.shared = 0, s.parents = nullptr, want = -1; break;
    case 22: s.shared = s.length + 1, s.shared_allocated = MOST, s.shared_cache = s.cache, want = s.cache ? 6 : 0; break;
    case 23: s.shared = r.one_of({-1, -MOST}), s.shared_cache = s.cache, want = s.cache ? 6 : 0; break;
    case 24: if (s.shared) s.shared_allocated = s.shared - 1, want = 6; break;
    case 25: if (s.shared) s.shared_cache = nullptr, want = 8; break;
  }
  if (!want) return;
  int got = ed_run(engine, &c);
  check(want < 0 ? got > 0 : got == want, "refused as " + std::to_string(got) + ", not " + std::to_string(want));
  refused++;
}

// Several threads call one engine: each gets its own answer.
void crowd(ed_engine* engine, const Job& job) {
  ed_call head = job.call;
  head.n_blocks = 0, head.tokens = nullptr;
  std::vector<Floats> all(3, Floats(job.logits.size()));
  std::vector<std::thread> threads;
  for (Floats& logits : all)
    threads.emplace_back([&, head] {
      ed_call c = head;
      Floats hidden = job.hidden;
      c.hidden = hidden.data(), c.logits = logits.data();
      for (int i = 0; i < 5; i++) ed_run(engine, &c);
    });
  for (std::thread& t : threads) t.join();
  for (const Floats& logits : all)
    check(!std::memcmp(logits.data(), job.logits.data(), 4 * logits.size()), "another thread's logits");
}

void round(unsigned s, const std::vector<std::string>& isas) {
  seed = s;
  Random r(s);
  Model model(r);
  const int kv = r.from(1, 4), threads = r.from(1, 4);
  const std::string isa = isas[r.below((int)isas.size())];
  ed_engine* engine = ed_open(&model.m, threads, isa.c_str());
  check(engine && isa == ed_engine_isa(engine), "not opened as " + isa);
  std::map<Text*, Oracle> alone;
  std::vector<std::unique_ptr<Text>> texts;
  for (int i = r.from(1, 4); i; i--) {
    texts.emplace_back(new Text(model, kv, model.context));
    alone.try_emplace(texts.back().get(), model, kv);
  }
  for (int step = r.from(3, 8); step; step--) {
    Job job;
    if (r.chance(60)) {
      Text& from = *texts[r.below((int)texts.size())];
      for (auto& t : texts)
        if (r.chance(60)) lend(r, from, *t);
    }
    for (auto& t : texts) {
      if (texts.size() > 1 && r.chance(30)) continue;
      t->first = (int)t->tree.size();
      grow(r, model, *t);
      job.texts.push_back(t.get());
    }
    if (job.texts.empty()) continue;
    prepare(model, job, r.chance(30));
    for (size_t i = 1; i < job.texts.size(); i++)
      together += job.texts[i]->cache.others && job.texts[i]->cache.others == job.texts[i - 1]->cache.others &&
                  std::min(job.texts[i]->cache.n_shared, job.texts[i - 1]->cache.n_shared) >= 256;
    refuse(r, engine, model, job);
    run(r, engine, model, job);
    compare(model, alone, job, r);
    if (job.call.rows && r.chance(20)) crowd(engine, job);
    for (Text* t : job.texts)
      if (r.chance(70)) keep(r, *t);
  }
  ed_close(engine);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const unsigned first = argc > 2 ? (unsigned)std::atoi(argv[2]) : 1;
  std::vector<std::string> isas;
  for (const char* p = ed_isas(); *p;) {  // "avx2+,scalar+": those with a plus run here
    const char* end = p + std::strcspn(p, ",");
    if (end[-1] == '+') isas.emplace_back(p, end - 1);
    p = *end ? end + 1 : end;
  }
  auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  const double until = now() + seconds;
  unsigned s = first;
  for (; s == first || (now() < until && failures < 20); s++) round(s, isas);
  std::printf("%u models, %ld calls, %ld refused, %ld chunks shared, %d failures\n", s - first, calls, refused,
              together, failures);
  return failures != 0;
}
