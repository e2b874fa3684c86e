// Random views of random caches: pages by bounds, lists, stripes, runs, after slots were dropped, merged, put on disk,
// forked and loaded. What a view says is the same, bit for bit, of another cache that was loaded with the same content,
// on other threads and another instruction set; views that cannot be are refused by number. Meant for the sanitizers.
//
//     views_fuzz [seconds] [first seed] [folder for pages]
#include "fuzz_model.h"

namespace {

constexpr int PAGE = 64;
long calls = 0, views = 0, refused = 0, changes = 0, on_disk = 0;
using Ints = std::vector<int32_t>;

// A view of a block, and what it points to.
struct AnyView {
  ed_view v{};
  Ints sinks, recent, pages, chosen_ends, chosen, slot_ends, slots, runs;

  AnyView(Random& r, int heads, int held) {
    v.group = r.one_of({0, 1, 1, 3});
    for (int h = 0; h < heads; h++) {
      sinks.push_back(r.one_of({0, 1, 30, 100})), recent.push_back(r.one_of({0, 1, 70, 1000}));
      pages.push_back(r.from(-1, 3));
    }
    const int kind = r.below(5);
    if (kind == 0) list(r, heads, held / PAGE, 2, chosen_ends, chosen);
    if (kind == 1 || kind == 2) list(r, heads, held, 3, slot_ends, slots);
    if (kind == 2) stand(r, heads, held);
    if (kind == 3) v.striped = 1, v.theta = r.one_of({0.0f, 0.5f, 5.0f, 1e9f, -1.0f});
    point();
  }
  void point() {
    v.sinks = sinks.data(), v.recent = recent.data(), v.pages = pages.data();
    if (!chosen_ends.empty()) v.chosen_ends = chosen_ends.data(), v.chosen = chosen.data();
    if (!slot_ends.empty()) v.slot_ends = slot_ends.data(), v.slots = slots.data();
    if (!runs.empty()) v.runs = runs.data();
  }
  static void list(Random& r, int heads, int most, int share, Ints& ends, Ints& all) {
    for (int h = 0; h < heads; h++) {
      const int percent = 100 / r.from(share, 9);
      for (int i = 0; i < most; i++)
        if (r.chance(percent)) all.push_back(i);
      ends.push_back((int)all.size());
    }
    all.reserve(1);
  }
  void stand(Random& r, int heads, int held) {
    for (int h = 0, i = 0; h < heads; h++)
      for (; i < slot_ends[h]; i++) {
        const int next = i + 1 < slot_ends[h] ? slots[i + 1] : held;
        runs.push_back(r.from(1, std::min(next - slots[i], PAGE - slots[i] % PAGE)));
      }
  }
  // Makes it one that cannot be; false: it stays.
  bool spoil(Random& r, int held) {
    switch (r.below(7)) {
      case 0: v.group = -1; return true;
      case 1: sinks[r.below((int)sinks.size())] = -1; return true;
      case 2: recent[r.below((int)recent.size())] = -r.from(1, 1 << 30); return true;
      case 3: pages[r.below((int)pages.size())] = -2; return true;
      case 4:
        if (chosen.empty()) return false;
        chosen[r.below((int)chosen.size())] = r.one_of({-1, held / PAGE, 1 << 30});
        return true;
      case 5:
        if (slots.empty()) return false;
        slots[r.below((int)slots.size())] = r.one_of({-1, held, 1 << 30});
        return true;
      default:
        if (runs.empty()) return false;
        runs[r.below((int)runs.size())] = r.one_of({0, -5, 65, std::numeric_limits<int32_t>::max()});
        return true;
    }
  }
};

// Rows of one call, and what came of it.
struct Asked {
  std::vector<int64_t> tokens, positions;
  std::vector<std::unique_ptr<AnyView>> views;
  std::vector<const ed_view*> listed;
  std::vector<Floats> paid;
  std::vector<float*> sums;
  Floats logits;

  ed_sequence sequence(const Model& model, ed_cache* cache) {
    ed_sequence s{};
    s.rows = (int)tokens.size(), s.n_blocks = -1, s.cache = cache, s.tokens = tokens.data();
    s.positions = positions.data(), s.views = listed.data();
    logits.assign((size_t)s.rows * model.m.vocab, 0), s.logits = logits.data();
    for (size_t i = 0; i < paid.size(); i++) {
      std::fill(paid[i].begin(), paid[i].end(), 0.0f);
      sums[i] = paid[i].empty() ? nullptr : paid[i].data();
    }
    s.attention_sums = sums.data();
    return s;
  }
};

void read(Random& r, ed_engine* engine, const Model& model, ed_cache* cache, int n) {
  for (int at = 0, rows; at < n; at += rows) {
    rows = std::min(n - at, 100);
    std::vector<int64_t> tokens, positions;
    for (int i = 0; i < rows; i++) tokens.push_back(r.below(model.m.vocab)), positions.push_back(ed_cache_length(cache) + i);
    ed_sequence s{};
    s.rows = rows, s.n_blocks = -1, s.logits_from = -1, s.cache = cache, s.tokens = tokens.data(), s.positions = positions.data();
    check(ed_run(engine, &s, 1) == 0, "a chunk refused");
    check(ed_cache_commit(cache, nullptr, rows) == 0, "a chunk not committed");
  }
}

std::vector<int64_t> some(Random& r, int most, int n) {
  std::vector<int64_t> all(most);
  for (int i = 0; i < most; i++) all[i] = i;
  std::shuffle(all.begin(), all.end(), r.bits);
  all.resize(n);
  return all;
}

std::vector<int64_t> ascending(std::vector<int64_t> all) {
  std::sort(all.begin(), all.end());
  return all;
}

// Some change of a block, or of the whole cache.
void change(Random& r, const Model& model, Cache& cache, const char* folder) {
  const int block = r.below(model.m.n_blocks), held = ed_cache_slots(cache.get(), block);
  const ed_attention* a = model.blocks[block].attention;
  if (!a || !held) return;
  const int n = held / r.from(3, 8);
  changes++;
  switch (r.below(9)) {
    case 0: check(ed_cache_drop(cache.get(), block, ascending(some(r, held, n)).data(), n) == 0, "not dropped"); break;
    case 1: {
      std::vector<int64_t> all;
      for (int h = 0; h < a->kv_heads; h++)
        for (int64_t slot : ascending(some(r, held, n))) all.push_back(slot);
      check(ed_cache_drop_by_head(cache.get(), block, all.data(), n) == 0, "not dropped by head");
      if (n) all[0] = held, check(ed_cache_drop_by_head(cache.get(), block, all.data(), n) == 14, "dropped what is not held");
      break;
    }
    case 2: {
      const std::vector<int64_t> both = some(r, held, 2 * n);
      Floats weights((size_t)a->kv_heads * n + 1);
      for (float& w : weights) w = 0.3f * r.flat();
      check(ed_cache_merge(cache.get(), block, both.data(), both.data() + n, weights.data(), n) == 0, "not merged");
      break;
    }
    case 3: case 6: case 7: case 8: {
      Ints pages;
      for (int i = 0; i < held / PAGE; i++)
        if (r.chance(50)) pages.push_back(i);
      const uint64_t before = ed_cache_bytes(cache.get());
      check(ed_cache_offload(cache.get(), block, pages.data(), (int)pages.size(), folder) == 0, "not put on disk");
      on_disk += ed_cache_bytes(cache.get()) < before;
      pages.push_back(held / PAGE);
      check(ed_cache_offload(cache.get(), block, pages.data(), (int)pages.size(), folder) == 14, "put on disk what is not held");
      break;
    }
    case 4: ed_cache_truncate(cache.get(), r.from(ed_cache_length(cache.get()) / 2, ed_cache_length(cache.get()))); break;
    default: cache.reset(ed_cache_fork(cache.get(), ed_cache_length(cache.get()), model.context));
  }
}

Asked ask(Random& r, const Model& model, const ed_cache* cache) {
  Asked asked;
  const int rows = r.from(1, 7), length = ed_cache_length(cache);
  for (int i = 0; i < rows; i++) asked.tokens.push_back(r.below(model.m.vocab)), asked.positions.push_back(length + i);
  for (int b = 0; b < model.m.n_blocks; b++) {
    const ed_attention* a = model.blocks[b].attention;
    const bool seen = a && r.chance(75);
    const int held = a ? ed_cache_slots(cache, b) : 0;
    asked.views.emplace_back(seen ? new AnyView(r, a->kv_heads, held) : nullptr);
    asked.listed.push_back(seen ? &asked.views.back()->v : nullptr);
    asked.paid.emplace_back(a && r.chance(50) ? (size_t)a->kv_heads * (held + rows) : 0);
    views += seen;
  }
  asked.sums.resize(asked.paid.size());
  return asked;
}

// The same of this cache and of one that was loaded, by two engines. The order in which threads add sums is their own.
void compare(Random& r, ed_engine* ours, ed_engine* theirs, const Model& model, ed_cache* cache, ed_cache_pool* pool) {
  Asked asked = ask(r, model, cache);
  const std::vector<uint8_t> bytes = saved(cache);
  const Cache twin(ed_cache_new(pool, model.context));
  check(ed_cache_load(twin.get(), bytes.data(), bytes.size()) == 0, "not loaded");
  Floats logits[2];
  std::vector<Floats> paid[2];
  for (int i = 0; i < 2; i++) {
    const ed_sequence s = asked.sequence(model, i ? twin.get() : cache);
    const int code = ed_run(i ? theirs : ours, &s, 1);
    check(code == 0, "a valid view refused: " + std::to_string(code));
    logits[i] = asked.logits, paid[i] = asked.paid;
    ed_cache_rollback(i ? twin.get() : cache);
    calls++;
  }
  check(!std::memcmp(logits[0].data(), logits[1].data(), 4 * logits[0].size()), "other logits");
  for (size_t b = 0; b < paid[0].size(); b++)
    check(paid[0][b].empty() || !std::memcmp(paid[0][b].data(), paid[1][b].data(), 4 * paid[0][b].size()), "other sums");
  check(saved(cache) == bytes, "a call that was rolled back left a trace");
}

void refuse(Random& r, ed_engine* engine, const Model& model, ed_cache* cache) {
  Asked asked = ask(r, model, cache);
  for (int b = 0; b < model.m.n_blocks; b++)
    if (asked.views[b] && asked.views[b]->spoil(r, ed_cache_slots(cache, b))) {
      const ed_sequence s = asked.sequence(model, cache);
      check(ed_run(engine, &s, 1) == 16, "a view that cannot be is not refused");
      refused++;
      return;
    }
}

void round(unsigned s, const std::vector<std::string>& isas, const char* folder) {
  seed = s;
  Random r(s);
  Model model(r);
  const int kv = r.from(1, 4);
  ed_engine* ours = ed_open(&model.m, r.from(1, 3), isas[r.below((int)isas.size())].c_str());
  ed_engine* theirs = ed_open(&model.m, 1, "scalar");
  Pool pool(ed_cache_pool_new(&model.m, kv));
  {
    Cache cache(ed_cache_new(pool.get(), model.context)), kept;
    read(r, ours, model, cache.get(), r.from(1, model.context - 10));
    for (int step = r.from(3, 7); step; step--) {
      if (r.chance(30)) kept.reset(ed_cache_fork(cache.get(), ed_cache_length(cache.get()), model.context));
      const std::vector<uint8_t> before = kept ? saved(kept.get()) : std::vector<uint8_t>();
      change(r, model, cache, folder);
      compare(r, ours, theirs, model, cache.get(), pool.get());
      refuse(r, ours, model, cache.get());
      const int room = model.context - ed_cache_length(cache.get()) - 8;
      if (room > 0 && r.chance(40)) read(r, ours, model, cache.get(), r.from(1, std::min(room, 90)));
      if (kept) check(saved(kept.get()) == before, "a fork was changed");
    }
  }
  check(ed_cache_pool_pages(pool.get()) == 0, "pages left");
  ed_close(ours), ed_close(theirs);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const unsigned first = argc > 2 ? (unsigned)std::atoi(argv[2]) : 1;
  const char* folder = argc > 3 ? argv[3] : "/tmp";
  const std::vector<std::string> isas = usable_isas();
  const double until = now() + seconds;
  unsigned s = first;
  for (; (s - first < LEAST || now() < until) && failures < 20; s++) round(s, isas, folder);
  std::printf("%u models, %ld calls, %ld views, %ld refused, %ld changes, %ld times on disk, %d failures\n", s - first,
              calls, views, refused, changes, on_disk, failures);
  return failures != 0;
}
