// Random models, random calls, random nonsense. Of every sequence of valid calls the logits and the cache
// are those of its rows run one at a time, on one thread, by plain C++: bit for bit. Calls that cannot be
// are refused by number. Meant for the sanitizers.
//
//     engine_fuzz [seconds] [first seed]
#include "fuzz_model.h"

namespace {

long calls = 0, refused = 0, together = 0, with_zeros = 0;

// One text: what is committed and, behind it, the tree of the next call.
struct Text {
  Cache cache;
  std::vector<int64_t> tokens;  // committed
  std::vector<int64_t> tree, parents, positions;
  int first = 0;

  Text(ed_cache_pool* pool, int room) : cache(ed_cache_new(pool, room)) {}
  int depth(int row) const { return row < 0 ? 0 : 1 + depth(parents[row]); }
  std::vector<int64_t> path(int row) const {
    if (row < 0) return tokens;
    std::vector<int64_t> all = path(parents[row]);
    all.push_back(tree[row]);
    return all;
  }
};

// What a call says of one text.
struct Said {
  Floats logits, scores, hidden;
  std::vector<int32_t> ids;
  std::vector<double> logsum;
};

struct Job {
  std::vector<Text*> texts;
  std::vector<Said> said;
  std::vector<ed_sequence> sequences;
  std::vector<std::vector<int32_t>> hidden_blocks;
  std::vector<std::vector<float*>> hidden;
};

bool chain(const Text& t) {
  for (size_t i = 0; i < t.parents.size(); i++)
    if (t.parents[i] != (int)i - 1) return false;
  return true;
}

void prepare(Random& r, const Model& model, Job& job) {
  for (Text* t : job.texts) {
    ed_sequence s{};
    t->positions.clear();
    for (size_t i = 0; i < t->tree.size(); i++) t->positions.push_back((int)t->tokens.size() + t->depth((int)i) - 1);
    s.rows = (int)t->tree.size() - t->first, s.first = t->first, s.cache = t->cache.get();
    s.n_blocks = -1, s.tokens = t->tree.data(), s.positions = t->positions.data();
    if (!chain(*t) || r.chance(30)) s.parents = t->parents.data();
    job.sequences.push_back(s);
    Said said;
    said.logits.resize((size_t)s.rows * model.m.vocab), said.hidden.resize((size_t)s.rows * model.m.hidden);
    job.said.push_back(std::move(said));
  }
}

// All blocks at once, or some of each text (its own cut), then the others from the hidden states, and the head where it is
// wanted.
void run(Random& r, ed_engine* engine, const Model& model, Job& job) {
  const int n = (int)job.sequences.size(), blocks = model.m.n_blocks;
  std::vector<int> done(n, 0);
  std::vector<int32_t> all(blocks), last(1, 0);
  for (int b = 0; b < blocks; b++) all[b] = b;
  std::vector<float*> outs;
  for (Said& said : job.said) outs.push_back(said.hidden.data());
  bool whole = r.chance(40), finished = false;
  std::vector<Floats> inputs(n);
  while (!finished) {
    finished = true;
    std::vector<ed_sequence> call;
    std::vector<int> of;
    std::vector<std::vector<int32_t>> hidden_blocks(n);
    for (int i = 0; i < n; i++) {
      if (done[i] > blocks) continue;
      ed_sequence s = job.sequences[i];
      const int upto = whole ? blocks : r.from(done[i], blocks);
      const bool head = upto == blocks && (whole || r.chance(60));
      if (done[i]) inputs[i] = job.said[i].hidden, s.input = inputs[i].data(), s.tokens = nullptr;
      s.blocks = all.data() + done[i], s.n_blocks = upto - done[i];
      if (done[i] == 0 && upto == blocks && r.chance(50)) s.n_blocks = -1, s.blocks = nullptr;
      hidden_blocks[i] = {s.n_blocks ? upto - 1 : -1};
      s.n_hidden = 1, s.hidden_blocks = hidden_blocks[i].data(), s.hidden = &outs[i];
      s.logits_from = -1;
      if (head) {
        Said& said = job.said[i];
        s.logits_from = 0, s.logits = said.logits.data();
        said.ids.clear(), said.logsum.clear();
        if (r.chance(50)) {
          s.top = r.from(1, 4);
          said.ids.assign((size_t)s.rows * s.top, -7), said.scores.resize(said.ids.size());
          s.top_ids = said.ids.data(), s.top_scores = said.scores.data();
        }
        if (r.chance(30)) said.logsum.resize(s.rows), s.logsum = said.logsum.data();
        if (s.top && r.chance(20)) s.logits = nullptr, said.logits.clear();
      }
      done[i] = head ? blocks + 1 : upto;
      if (upto == 0 && s.tokens) done[i] = 0;  // nothing but the embedding
      finished = finished && head;
      call.push_back(s), of.push_back(i);
    }
    std::vector<int> order(call.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = (int)i;
    std::shuffle(order.begin(), order.end(), r.bits);
    std::vector<ed_sequence> shuffled;
    for (int i : order) shuffled.push_back(call[i]);
    const int code = ed_run(engine, shuffled.data(), (int)shuffled.size());
    check(code == 0, "a valid call refused: " + std::to_string(code));
    if (code) return;
    calls++;
  }
}

// The best tokens and the log-sum are those of the logits.
void check_best(const Model& model, const Said& said, const float* logits, size_t row, size_t rows) {
  const int top = (int)(said.ids.size() / rows);
  std::vector<bool> taken(model.m.vocab);
  for (int j = 0; j < top; j++) {
    int best = -1;
    for (int i = 0; i < model.m.vocab; i++)
      if (!taken[i] && (best < 0 || logits[i] > logits[best])) best = i;
    check(said.ids[row * top + j] == best, "not the best token");
    if (best < 0) break;
    check(said.scores[row * top + j] == logits[best], "not its logit");
    taken[best] = true;
  }
  if (said.logsum.empty()) return;
  double sum = 0;
  for (int i = 0; i < model.m.vocab; i++) sum += std::exp((double)logits[i]);
  check(std::fabs(said.logsum[row] - std::log(sum)) < 1e-5, "not the log of the sum");
}

// A row's logits, alone: its whole text one row at a time in plain C++.
struct Oracle {
  ed_engine* engine;
  const Model& model;
  Cache cache;
  std::vector<int64_t> done;
  Floats logits;
  double logsum = 0;

  Oracle(const Model& m, ed_cache_pool* pool)
      : engine(ed_open(&m.m, 1, "scalar")), model(m), cache(ed_cache_new(pool, m.context)) {}
  ~Oracle() { ed_close(engine); }

  void read(const std::vector<int64_t>& text) {
    size_t same = 0;
    while (same < done.size() && same < text.size() && done[same] == text[same]) same++;
    if (same == text.size() && same) same--;
    done.resize(same);
    check(ed_cache_truncate(cache.get(), (int)same) == (int)same, "truncated elsewhere");
    for (size_t i = same; i < text.size(); i++) {
      int64_t position = (int64_t)i;
      logits.resize(model.m.vocab);
      ed_sequence s{};
      s.rows = 1, s.n_blocks = -1, s.cache = cache.get(), s.tokens = &text[i], s.positions = &position;
      s.logits = logits.data(), s.logsum = &logsum;
      check(ed_run(engine, &s, 1) == 0, "one row refused");
      check(ed_cache_commit(cache.get(), nullptr, 1) == 0, "one row not committed");
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
  size_t rows = 0;
  for (const Text* t : job.texts) rows += t->tree.size() - t->first;
  for (size_t i = 0; i < job.texts.size(); i++) {
    Text* t = job.texts[i];
    const Said& said = job.said[i];
    const size_t n = t->tree.size() - t->first;
    for (size_t row = 0; row < n; row++) {
      if (rows > 12 && r.chance(60)) continue;  // a sample of many
      Oracle& oracle = alone.at(t);
      oracle.read(t->path(t->first + (int)row));
      if (!said.logits.empty()) {
        bool logits = !std::memcmp(oracle.logits.data(), said.logits.data() + row * model.m.vocab, 4 * model.m.vocab);
        check(logits, "logits of row " + std::to_string(t->first + row) + " of " + std::to_string(t->tree.size()));
      }
      if (said.logits.empty() || !said.ids.empty() || !said.logsum.empty())
        check_best(model, said, oracle.logits.data(), row, n);
      if (!said.logsum.empty()) check(said.logsum[row] == oracle.logsum, "another log-sum");
    }
  }
}

// Commits a path of the tree, at once or in pieces, or cuts the text. The cache is then that of the text alone.
void keep(Random& r, Text& t, Oracle& oracle) {
  const int last = (int)t.tree.size() - 1, row = last > 60 ? last : r.from(-1, last);
  std::vector<int64_t> path;
  for (int at = row; at >= 0; at = (int)t.parents[at]) path.insert(path.begin(), at);
  for (size_t i = 0; i < path.size();) {
    const int n = r.chance(70) ? (int)(path.size() - i) : r.from(1, (int)(path.size() - i));
    check(ed_cache_commit(t.cache.get(), path.data() + i, n) == 0, "not committed");
    i += n;
  }
  for (int64_t at : path) t.tokens.push_back(t.tree[at]);
  check(ed_cache_length(t.cache.get()) == (int)t.tokens.size(), "another length");
  t.tree.clear(), t.parents.clear(), t.first = 0;
  if (r.chance(15)) {
    t.tokens.resize(r.from(0, (int)t.tokens.size()));
    check(ed_cache_truncate(t.cache.get(), (int)t.tokens.size()) == (int)t.tokens.size(), "not cut");
  }
  if (r.chance(20)) ed_cache_rollback(t.cache.get());
  if (r.chance(30) && !t.tokens.empty()) {
    oracle.read(t.tokens);
    check(saved(t.cache.get()) == saved(oracle.cache.get()), "another cache");
  }
}

// One text begins anew with the first tokens of another, in the same pages.
void fork(Random& r, int context, Text& from, Text& to) {
  if (from.tokens.empty() || &from == &to) return;
  const int n = (int)from.tokens.size(), length = r.chance(50) ? n : r.from(1, n);
  if (r.chance(20) && from.tree.empty()) {  // by way of its bytes
    const std::vector<uint8_t> bytes = saved(from.cache.get());
    check(ed_cache_load(to.cache.get(), bytes.data(), bytes.size()) == 0, "not loaded");
    if (length < n) ed_cache_truncate(to.cache.get(), length);
  } else if (r.chance(50)) {
    check(ed_cache_adopt(to.cache.get(), from.cache.get(), length) == 0, "not adopted");
  } else {
    to.cache.reset(ed_cache_fork(from.cache.get(), length, context));
  }
  check(ed_cache_length(to.cache.get()) == length, "another length of a fork");
  to.tree.clear(), to.parents.clear(), to.first = 0;
  to.tokens.assign(from.tokens.begin(), from.tokens.begin() + length);
}

// A valid call made impossible in one way, and the number it must be refused with.
void refuse(Random& r, ed_engine* engine, const Model& model, const Job& job) {
  const ed_model& m = model.m;
  std::vector<ed_sequence> call = job.sequences;
  const int which = r.below((int)call.size());
  ed_sequence& s = call[which];
  if (!s.rows) return;
  const int all = s.first + s.rows;
  std::vector<int64_t> tokens(s.tokens, s.tokens + all), positions(s.positions, s.positions + all), parents, numbers, groups, types;
  s.tokens = tokens.data(), s.positions = positions.data();
  int32_t blocks[] = {0, m.n_blocks};
  constexpr int MOST = std::numeric_limits<int32_t>::max();
  int want = 0, row = r.from(s.first, all - 1);
  float* none = nullptr;
  switch (r.below(21)) {
    case 0: s.rows = -r.from(1, 9), want = 1; break;
    case 1: s.rows = (1 << 20) + 1, want = 1; break;
    case 2: s.logits_from = s.rows + 1, want = 1; break;
    case 3: s.top = -1, want = 1; break;
    case 4: tokens[row] = m.vocab, want = 2; break;
    case 5: tokens[row] = r.chance(50) ? -1 : (int64_t)1 << 40, want = 2; break;
    case 6: if (m.n_ropes) positions[row] = model.context, want = 3; break;
    case 7: if (m.n_ropes) positions[row] = r.chance(50) ? -1 : (int64_t)1 << 40, want = 3; break;
    case 8: s.blocks = blocks, s.n_blocks = 2, want = 4; break;
    case 9: blocks[1] = 0, s.blocks = blocks, s.n_blocks = 2, want = 4; break;
    case 10: s.tokens = nullptr, want = 5; break;
    case 11: s.first = -1, want = 1; break;
    case 12: {  // more rows than fit
      const int more = model.context + 1;
      tokens.assign(more, 0), positions.assign(more, 0);
      s.tokens = tokens.data(), s.positions = positions.data();
      s.first = 0, s.rows = more, s.parents = nullptr, want = 6;
      break;
    }
    case 13: case 14: {
      parents.assign(all, -1);
      int bad = r.below(all);
      parents[bad] = r.one_of({bad, bad + 1, -2, MOST});
      s.parents = parents.data(), want = 7;
      break;
    }
    case 15: s.cache = nullptr, want = 8; break;
    case 16: numbers.assign(all, 0), s.numbers = numbers.data(), want = all > 1 ? 10 : 0; break;
    case 17: call.push_back(s), want = 11; break;
    case 18: groups.assign(all, -1), groups[r.below(all)] = -2, s.groups = groups.data(), want = 12; break;
    case 20: types.assign(all, r.one_of({-1, m.n_types, MOST})), s.types = types.data(), want = 20; break;
    case 19: blocks[0] = m.n_blocks, s.hidden_blocks = blocks, s.n_hidden = 1, s.hidden = &none, want = 4; break;
  }
  if (!want) return;
  int got = ed_run(engine, call.data(), (int)call.size());
  check(got == want, "refused as " + std::to_string(got) + ", not " + std::to_string(want));
  refused++;
}

// Several threads call one engine, each with a fork of the text: each gets the same answer.
void crowd(Random& r, ed_engine* engine, const Model& model, const Text& t) {
  if (t.tokens.empty()) return;
  std::vector<Cache> caches;
  for (int i = 0; i < 3; i++) caches.emplace_back(ed_cache_fork(t.cache.get(), (int)t.tokens.size() - 1, model.context));
  std::vector<Floats> all(3, Floats(model.m.vocab));
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; i++)
    threads.emplace_back([&, i] {
      const int64_t position = (int64_t)t.tokens.size() - 1;
      ed_sequence s{};
      s.rows = 1, s.n_blocks = -1, s.tokens = &t.tokens.back(), s.positions = &position, s.cache = caches[i].get();
      s.logits = all[i].data();
      for (int j = 0; j < 3; j++) {
        if (i == j) ed_trim(engine);
        check(ed_run(engine, &s, 1) == 0, "a thread's call refused");
        check(ed_cache_commit(s.cache, nullptr, 1) == 0, "a thread's row not committed");
        ed_cache_truncate(s.cache, (int)position);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const Floats& logits : all)
    check(!std::memcmp(logits.data(), all[0].data(), 4 * logits.size()), "another thread's logits");
  (void)r;
}

void round(unsigned s, const std::vector<std::string>& isas) {
  seed = s;
  Random r(s);
  Model model(r);
  with_zeros += model.with_zeros;
  const int kv = r.from(1, 4), threads = r.from(1, 4);
  const std::string isa = isas[r.below((int)isas.size())];
  ed_engine* engine = ed_open(&model.m, threads, isa.c_str());
  check(engine && isa == ed_engine_isa(engine), "not opened as " + isa);
  Pool pool(ed_cache_pool_new(&model.m, kv));
  {
    std::map<Text*, Oracle> alone;
    std::vector<std::unique_ptr<Text>> texts;
    for (int i = r.from(1, 4); i; i--) {
      texts.emplace_back(new Text(pool.get(), model.context));
      alone.try_emplace(texts.back().get(), model, pool.get());
    }
    for (int step = r.from(3, 8); step; step--) {
      Job job;
      if (r.chance(60)) {
        Text& from = *texts[r.below((int)texts.size())];
        for (auto& t : texts)
          if (r.chance(60)) fork(r, model.context, from, *t);
      }
      for (auto& t : texts) {
        if (texts.size() > 1 && r.chance(30)) continue;
        t->first = (int)t->tree.size();
        grow(r, model, *t);
        job.texts.push_back(t.get());
      }
      if (job.texts.empty()) continue;
      prepare(r, model, job);
      if (r.chance(20)) ed_trim(engine);
      refuse(r, engine, model, job);
      run(r, engine, model, job);
      compare(model, alone, job, r);
      int64_t held = 0, shared = 0;
      for (Text* t : job.texts) {
        ed_cache_pages(t->cache.get(), &held, &shared);
        together += shared;
      }
      if (r.chance(20)) crowd(r, engine, model, *job.texts[0]);
      for (Text* t : job.texts)
        if (r.chance(70)) keep(r, *t, alone.at(t));
    }
  }
  check(ed_cache_pool_pages(pool.get()) == 0, "pages left");
  ed_close(engine);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const unsigned first = argc > 2 ? (unsigned)std::atoi(argv[2]) : 1;
  const std::vector<std::string> isas = usable_isas();
  const double until = now() + seconds;
  unsigned s = first;
  for (; (s - first < LEAST || now() < until) && failures < 20; s++) round(s, isas);
  std::printf("%u models, %ld calls, %ld matrices with zero points, %ld refused, %ld pages shared, %d failures\n",
              s - first, calls, with_zeros, refused, together, failures);
  return failures != 0;
}
