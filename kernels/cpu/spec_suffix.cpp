// Suffix matching within the text: edgedec/drafters/suffix.py without a store, and its automaton, `_automaton.py`.
#include "spec_grow.h"

namespace edgedec {

namespace {

constexpr int MOST = 64, LEVELS = 3, CROWD = 32;
constexpr double LEAST = 0.04;

// Every substring of a text is a path, and its state has its count, up to MOST.
class Automaton {
 public:
  struct State {
    int32_t link, length, count, degree, first, last_edge;
  };
  // The edges of a state in the order they came.
  struct Edge {
    int32_t token, target, next;
  };

  Automaton() { add_state(-1, 0, MOST); }

  const State& state(int s) const { return states_[(size_t)s]; }
  const Edge& edge(int e) const { return edges_[(size_t)e]; }
  int last() const { return last_; }

  void add(int32_t token) {
    int state = last_;
    const int fresh = last_ = add_state(0, states_[(size_t)state].length + 1, 1);
    int found = -1;
    while (state >= 0 && (found = find(state, token)) < 0) {
      add_edge(state, token, fresh);
      state = states_[(size_t)state].link;
    }
    if (state < 0) return;
    int target = edges_[(size_t)found].target;
    if (states_[(size_t)state].length + 1 != states_[(size_t)target].length) target = split(state, token, target);
    states_[(size_t)fresh].link = target;
    for (; states_[(size_t)target].count < MOST; target = states_[(size_t)target].link) states_[(size_t)target].count++;
  }

 private:
  static constexpr int WIDE = 12;  // edges of a state that are looked through one by one

  int add_state(int32_t link, int32_t length, int32_t count) {
    states_.push_back({link, length, count, 0, -1, -1});
    return (int)states_.size() - 1;
  }

  int find(int state, int32_t token) const {
    const State& s = states_[(size_t)state];
    if (s.degree <= WIDE) {
      int e = s.first;
      while (e >= 0 && edges_[(size_t)e].token != token) e = edges_[(size_t)e].next;
      return e;
    }
    for (size_t at = home(state, token);; at = (at + 1) & (wide_.size() - 1)) {
      const Wide& found = wide_[at];
      if (!found.edge) return -1;
      if (found.state == state && edges_[(size_t)found.edge - 1].token == token) return found.edge - 1;
    }
  }

  void add_edge(int state, int32_t token, int32_t target) {
    const int e = (int)edges_.size();
    edges_.push_back({token, target, -1});
    State& s = states_[(size_t)state];
    if (s.last_edge < 0)
      s.first = e;
    else
      edges_[(size_t)s.last_edge].next = e;
    s.last_edge = e, s.degree++;
    if (s.degree == WIDE + 1)
      for (int old = s.first; old >= 0; old = edges_[(size_t)old].next) index(state, old);
    else if (s.degree > WIDE)
      index(state, e);
  }

  // The shorter substrings of `target` now end at one place more than the longer: they get a state.
  int split(int state, int32_t token, int target) {
    const State old = states_[(size_t)target];
    const int twin = add_state(old.link, states_[(size_t)state].length + 1, old.count);
    for (int e = old.first; e >= 0; e = edges_[(size_t)e].next) {
      const Edge copy = edges_[(size_t)e];
      add_edge(twin, copy.token, copy.target);
    }
    states_[(size_t)target].link = twin;
    for (int e; state >= 0 && (e = find(state, token)) >= 0 && edges_[(size_t)e].target == target;
         state = states_[(size_t)state].link)
      edges_[(size_t)e].target = twin;
    return twin;
  }

  struct Wide {
    int32_t state, edge;  // edge + 1; 0: none
  };
  size_t home(int state, int32_t token) const {
    return mixed((uint64_t)(uint32_t)state << 32 | (uint32_t)token) & (wide_.size() - 1);
  }
  void index(int state, int e) {
    if (2 * (n_wide_ + 1) > wide_.size()) {
      std::vector<Wide> old(wide_.empty() ? 64 : 2 * wide_.size());
      old.swap(wide_);
      for (const Wide& kept : old)
        if (kept.edge) put(kept);
    }
    put({state, e + 1});
    n_wide_++;
  }
  void put(const Wide& wide) {
    size_t at = home(wide.state, edges_[(size_t)wide.edge - 1].token);
    while (wide_[at].edge) at = (at + 1) & (wide_.size() - 1);
    wide_[at] = wide;
  }

  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<Wide> wide_;
  size_t n_wide_ = 0;
  int last_ = 0;
};

class Suffix final : public TableDrafter {
 public:
  void propose(const DraftText& text, int nodes, double least, DraftTree& draft) override {
    if (text.ids.size() < read_) reset();
    for (; read_ < text.ids.size(); read_++) automaton_.add(text.ids[read_]);
    if (nodes <= 0) return;
    const int state = std::max(0, automaton_.state(automaton_.last()).link);
    least = std::max(least, LEAST);
    const Match root = {state, automaton_.state(state).length, least};
    grower_.grow(root, nodes, least, draft,
                 [this](const Match& match, Grower::Followers& after) { follow(match, after); });
  }

  void reset() override { automaton_ = Automaton(), read_ = 0; }
  std::unique_ptr<TableDrafter> fork() const override { return std::make_unique<Suffix>(); }

 private:
  // least: how likely a token must be here.
  struct Match {
    int state, length;
    double least;
  };
  using Grower = TreeGrower<Match>;

  // Likely next tokens by the longest suffix seen before, then by shorter ones, which share the remaining probability.
  void follow(const Match& match, Grower::Followers& after) {
    int state = match.state, length = match.length;
    double left = 1;
    for (int level = 0; level < LEVELS && state > 0 && left > match.least; level++) {
      const Automaton::State& s = automaton_.state(state);
      const double unseen = unforeseen_(length);
      if (s.degree == 1) {
        const Automaton::Edge& only = automaton_.edge(s.first);
        const int n = automaton_.state(only.target).count;
        const double p = left * n / (n + unseen);
        left -= p;
        if (p > match.least) found(after, only, length, p, match.least);
      } else if (s.degree && s.degree <= CROWD) {
        int counted = 0;
        for (int e = s.first; e >= 0; e = automaton_.edge(e).next) counted += automaton_.state(automaton_.edge(e).target).count;
        const double total = counted + unseen, enough = match.least * total / left;
        for (int e = enough < total ? s.first : -1; e >= 0; e = automaton_.edge(e).next) {
          const int n = automaton_.state(automaton_.edge(e).target).count;
          if (n > enough) found(after, automaton_.edge(e), length, left * n / total, match.least);
        }
        left *= unseen / total;
      }
      state = s.link;
      length = automaton_.state(std::max(state, 0)).length;
    }
  }

  static void found(Grower::Followers& after, const Automaton::Edge& edge, int length, double p, double least) {
    for (const auto& known : after)
      if (known.token == edge.token) return;
    after.push_back({edge.token, p, {edge.target, length + 1, least / p}});
  }

  const Unforeseen unforeseen_;
  Automaton automaton_;
  size_t read_ = 0;
  Grower grower_;
};

}  // namespace

std::unique_ptr<TableDrafter> make_suffix(const ed_drafter_options&) { return std::make_unique<Suffix>(); }

}  // namespace edgedec
