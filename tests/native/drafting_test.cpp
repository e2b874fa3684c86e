// Table drafters, forks and the merged tree under the sanitizers: random texts and calls, forks that several threads go
// on with while their tables' pages are shared, and nonsense that has to be refused.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "api.h"

namespace {

std::atomic<int> wrong{0};
std::atomic<long> proposed{0};

void check(bool ok, const char* what) {
  if (!ok && wrong++ < 20) std::printf("FAILED %s\n", what);
}

struct Random {
  std::mt19937 bits;
  explicit Random(unsigned seed) : bits(seed) {}
  int below(int n) { return (int)(bits() % (unsigned)n); }
};

constexpr int KINDS = 6, ROOM = 400, DATASTORE = 5;

ed_drafter* make(int kind, int vocab) {
  const ed_drafter_options options = {kind, vocab, 16, 4, kind == DATASTORE ? 1 : 4, 32, 0.3, 0.05};
  return ed_drafter_new(&options);
}

// Tokens, last first, and their suffix array. wrong: some of its places, and some tokens, are none.
struct Segment {
  std::vector<int32_t> tokens, order;
  Segment(int n, int vocab, unsigned seed, bool wrong) {
    Random r(seed);
    for (int i = 0; i < n; i++) tokens.push_back(i > 9 && r.below(4) ? tokens[(size_t)i - 7] : r.below(vocab + 1) - 1);
    for (int i = 0; i < n; i++) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      return std::lexicographical_compare(tokens.begin() + a, tokens.end(), tokens.begin() + b, tokens.end());
    });
    const int32_t none[] = {-2147483647 - 1, -1, n, 2147483647};
    for (int i = 0; wrong && i < n / 5; i++) (i % 2 ? tokens : order)[(size_t)r.below(n)] = none[r.below(4)];
  }
};

struct Tree {
  std::vector<int32_t> ids = std::vector<int32_t>(4 * ROOM);
  std::vector<double> floats = std::vector<double>(2 * ROOM);
  ed_draft_tree tree = {ids.data(),     ids.data() + ROOM,   ids.data() + 2 * ROOM, ids.data() + 3 * ROOM,
                        floats.data(), floats.data() + ROOM, ROOM, 0};
};

// One text through a group of drafters.
void play(std::vector<ed_drafter*> drafters, int vocab, unsigned seed, int calls) {
  Random r(seed);
  const int n = (int)drafters.size();
  ed_drafting* drafting = ed_drafting_new(drafters.data(), n);
  std::vector<double> counts((size_t)n * 3 * ED_DRAFT_KINDS, 0.5), seconds((size_t)n);
  std::vector<ed_calibration> calibrations;
  for (int i = 0; i < n; i++) {
    double* at = counts.data() + i * 3 * ED_DRAFT_KINDS;
    calibrations.push_back({at, at + ED_DRAFT_KINDS, at + 2 * ED_DRAFT_KINDS});
  }
  std::vector<int32_t> text;
  for (int call = 0; call < calls; call++) {
    if (r.below(40) == 0) ed_drafting_reset(drafting), text.clear();
    const size_t before = text.size();
    for (int more = text.empty() ? 1 + r.below(300) : r.below(5); more > 0; more--)
      text.push_back(text.size() > 9 && r.below(4) ? text[text.size() - 7] : r.below(vocab));
    Tree tree;
    const std::vector<int32_t> more(text.begin() + (std::ptrdiff_t)before, text.end());
    const ed_proposal asked = {more.data(), calibrations.data(), seconds.data(), 0.01, (int)more.size(),
                               (int)text.size() / 2, r.below(40), (uint32_t)r.below(1 << n)};
    if (text.empty()) continue;
    check(ed_drafting_propose(drafting, &asked, &tree.tree) == 0, "propose");
    check(ed_drafting_read(drafting) == (int)text.size(), "read");
    proposed += tree.tree.n;
    for (int i = 0; i < tree.tree.n; i++) check(tree.tree.parents[i] < i && tree.tree.by[i], "a tree");
    Tree few;
    const int kept = tree.tree.n / 2;
    check(ed_drafting_cut(drafting, tree.tree.order, kept, &few.tree) == 0 && few.tree.n == kept, "cut");
    // A call of the root and a few rows, which shows the best tokens of each.
    const int rows = 1 + r.below(9);
    std::vector<int64_t> tokens = {text.back()}, parents = {-1}, picked, path = {0};
    for (int i = 1; i < rows; i++) tokens.push_back(r.below(vocab)), parents.push_back(r.below(i));
    if (rows > 1 && parents[1] == 0) picked.push_back(tokens[1]), path.push_back(1);
    picked.push_back(r.below(vocab));
    std::vector<int32_t> best((size_t)rows * 5);
    std::vector<float> scores(best.size());
    for (size_t i = 0; i < best.size(); i++)
      best[i] = r.below(50) ? (int)((tokens[i / 5] * 3 + (int64_t)(i % 5)) % vocab) : -1, scores[i] = -(float)(i % 5);
    const ed_verified seen = {tokens.data(), parents.data(), best.data(),     scores.data(), picked.data(),
                              path.data(),   rows,           0,               5,             (int)picked.size()};
    check(ed_drafting_observe(drafting, &seen, (uint32_t)r.below(1 << n), seconds.data()) == 0, "observe");
    std::vector<int32_t> right(picked.size());
    ed_drafting_test(drafting, picked.data(), (int)picked.size(), calibrations.data(), right.data());
    // A look at the same text, and at what came to it.
    const std::vector<double> costs = {0, 1, 1.2, 1.4, 1.7, 2, 2.5, 3, 3.5};
    ed_watch watch = {costs.data(), 0.5, 0.1, 0.9, 0.2, (int)costs.size() - 1, -1};
    ed_proposal looked = asked;
    looked.n_more = 0;
    for (int look = 0; look < 2; look++) {
      check(ed_drafting_watch(drafting, &looked, &watch) == 0, "watch");
      check(watch.nodes >= 0 && watch.nodes < (int)costs.size(), "what pays");
    }
    std::vector<int64_t> accepted((size_t)rows), follow((size_t)rows);
    const int walked = ed_walk(tokens.data(), parents.data(), rows, 0, best.data(), 5, accepted.data(), follow.data());
    check(walked >= 0 && walked <= rows, "walk");
  }
  ed_drafting_free(drafting);
}

void refusals() {
  ed_drafter_options options = {9, 50, 16, 4, 4, 32, 0.3, 0.05};
  check(!ed_drafter_new(&options), "an unknown kind");
  options = {0, 50, 16, 4, 9, 32, 0, 0};
  check(!ed_drafter_new(&options), "n-grams too long");
  options = {5, 50, 16, 4, 13, 32, 0, 0};
  check(!ed_drafter_new(&options), "matches too long");
  options = {3, 50, 16, 51, 4, 32, 0.3, 0};
  check(!ed_drafter_new(&options), "more than the vocabulary");
  ed_drafter *a = make(2, 50), *b = make(3, 50);
  check(ed_drafter_share(a, b) == ED_DRAFT_REFUSED, "tables of another kind");
  ed_drafting* drafting = ed_drafting_new(&a, 1);
  const int32_t tokens[] = {1, 2}, parents[] = {1, -1}, missing[] = {5};
  const std::vector<double> estimates(ED_DRAFT_KINDS);
  Tree tree;
  check(ed_drafting_add(drafting, 0, 2, tokens, parents, nullptr, estimates.data(), nullptr) == ED_DRAFT_REFUSED,
        "a parent after its child");
  check(ed_drafting_cut(drafting, missing, 1, &tree.tree) == ED_DRAFT_REFUSED, "a node that is none");
  ed_drafting_free(drafting), ed_drafter_free(a), ed_drafter_free(b);
}

}  // namespace

int main() {
  const int vocab = 60;
  std::vector<ed_drafter*> first;
  for (int kind = 0; kind < KINDS; kind++) first.push_back(make(kind, vocab));
  const std::vector<Segment> documents = {{400, vocab, 1, false}, {1, vocab, 2, false}, {0, vocab, 3, false},
                                          {300, vocab, 4, true},  {90, 3, 5, false}};
  for (const Segment& each : documents)
    check(ed_drafter_index(first[DATASTORE], each.tokens.data(), each.order.data(), (int64_t)each.tokens.size()) == 0,
          "documents");
  check(ed_drafter_index(first[DATASTORE], nullptr, nullptr, -1) == ED_DRAFT_REFUSED, "fewer than no documents");
  check(ed_drafter_index(first[0], nullptr, nullptr, 0) == ED_DRAFT_REFUSED, "documents for copy");
  play(first, vocab, 1, 300);
  // Forks share pages with the first ones and with each other; each goes its own way on a thread of its own.
  std::vector<std::vector<ed_drafter*>> forks(4);
  for (auto& fork : forks)
    for (const ed_drafter* each : first) fork.push_back(ed_drafter_fork(each));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < forks.size(); i++) threads.emplace_back(play, forks[i], vocab, (unsigned)i + 2, 300);
  play(first, vocab, 9, 300);
  for (std::thread& thread : threads) thread.join();
  check(ed_drafter_figure(first[DATASTORE], 0) > 100 && ed_drafter_figure(first[DATASTORE], 1) > 50, "documents found");
  for (auto& fork : forks)
    for (ed_drafter* each : fork) ed_drafter_free(each);
  for (ed_drafter* each : first) ed_drafter_free(each);
  refusals();
  check(proposed > 1000, "much was proposed");
  std::printf("wrong: %d\n", wrong.load());
  return wrong != 0;
}
