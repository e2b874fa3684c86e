// Drafts from documents: edgedec/drafters/datastore.py, and the lookup of edgedec/storage/datastore.py.
#include "spec_grow.h"

namespace edgedec {

namespace {

constexpr int DEPTH = 12, PLACES = 32, GROUPS = 2;
constexpr int32_t END = -1, NONE = -2;
constexpr double LEAST = 0.04;

// The latest tokens of a text, the last one first.
struct Query {
  int32_t tokens[DEPTH];
  int n = 0;
};

struct Span {
  int64_t begin, end;
};

// What follows a place is tokens[at - 1].
struct Place {
  const int32_t* tokens;
  int32_t at;
  int32_t next() const { return at ? tokens[at - 1] : END; }
};

// Tokens of documents, last first, and their places in the order of what stands there. An invalid place has
// no tokens: the file was checked at opening, but may have been changed since.
class Segment {
 public:
  Segment(const int32_t* tokens, const int32_t* order, int64_t n) : tokens_(tokens), order_(order), n_(n) {}

  // The first number whose place has the query, or what comes after it.
  int64_t find(const Query& query) const {
    return bisect(0, n_, [&](int64_t i) { return compare(i, query, query.n) < 0; });
  }

  // How many tokens of the query the places beside `at`, where it was found, have.
  int longest(const Query& query, int64_t at) const {
    const int before = at > 0 ? agree(order_[at - 1], query, query.n) : 0;
    return std::max(before, at < n_ ? agree(order_[at], query, query.n) : 0);
  }

  // The numbers of the places that have the first n tokens of the query: those around `at`, where all of it was found.
  Span span(const Query& query, int n, int64_t at) const {
    int64_t begin = at, first = 0, end = at, last = n_;
    for (int64_t step = 1; begin > 0; step *= 2) {
      const int64_t before = std::max<int64_t>(begin - step, 0);
      if (compare(before, query, n) < 0) {
        first = before + 1;
        break;
      }
      begin = before;
    }
    for (int64_t step = 1; end < n_; step *= 2) {
      const int64_t after = std::min(end + step, n_) - 1;
      if (compare(after, query, n) > 0) {
        last = after;
        break;
      }
      end = after + 1;
    }
    return {bisect(std::min(first, begin), begin, [&](int64_t i) { return compare(i, query, n) < 0; }),
            bisect(end, std::max(last, end), [&](int64_t i) { return compare(i, query, n) <= 0; })};
  }

  // False: no place has this number.
  bool place(int64_t number, Place& found) const {
    found = {tokens_, order_[number]};
    return found.at >= 0 && found.at < n_;
  }

 private:
  template <class Below>
  static int64_t bisect(int64_t low, int64_t high, Below below) {
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (below(middle))
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  int agree(int64_t place, const Query& query, int n) const {
    if (place < 0 || place >= n_) return 0;
    const int most = (int)std::min<int64_t>(n, n_ - place);
    int same = 0;
    while (same < most && tokens_[place + same] == query.tokens[same]) same++;
    return same;
  }

  // What stands at a place against n tokens of the query, as Python compares lists: the shorter one comes first.
  int compare(int64_t number, const Query& query, int n) const {
    const int64_t place = order_[number];
    const int same = agree(place, query, n);
    if (same == n) return 0;
    if (place < 0 || place + same >= n_) return -1;
    return tokens_[place + same] < query.tokens[same] ? -1 : 1;
  }

  const int32_t *tokens_, *order_;
  int64_t n_;
};

class Documents final : public TableDrafter {
 public:
  Documents(int vocab, int least) : vocab_(vocab), least_(least) {}

  bool index(const int32_t* tokens, const int32_t* order, int64_t n) override {
    if (n >= 0) segments_.emplace_back(tokens, order, n);
    return n >= 0;
  }

  void propose(const DraftText& text, int nodes, double least, DraftTree& draft) override {
    if (nodes < 1) return;
    places_.clear();
    const Matches found = look_up(text);
    lookups_++, matches_ += found.n > 0;
    if (!found.n) return;
    grower_.grow(found, nodes, std::max(least, LEAST), draft, [this](const Matches& matches, Grower::Followers& after) {
      follow(advanced(matches), after);
    });
  }

  void reset() override {}
  std::unique_ptr<TableDrafter> fork() const override {
    auto made = std::make_unique<Documents>(vocab_, least_);
    made->segments_ = segments_;
    return made;
  }
  int64_t figure(int what) const override { return what ? matches_ : lookups_; }

 private:
  // Places from `begin` to before `end` with a match of one length.
  struct Group {
    int length, begin, end;
  };
  // Groups, the longest match first, and the token that came after them: NONE yet.
  struct Matches {
    Group groups[GROUPS];
    int n = 0;
    int32_t token = NONE;
    // With the places from `begin` on, if there are any.
    void add(int length, int begin, int end) {
      if (end > begin) groups[n++] = {length, begin, end};
    }
  };
  using Grower = TreeGrower<Matches>;

  // Finds the end of the text in the documents: the longest match, and half of it.
  Matches look_up(const DraftText& text) {
    Query query;
    query.n = (int)std::min(text.ids.size(), (size_t)DEPTH);
    std::copy_n(text.ids.rbegin(), query.n, query.tokens);
    int best = 0;
    at_.clear();
    for (const Segment& segment : segments_) {
      at_.push_back(segment.find(query));
      best = std::max(best, segment.longest(query, at_.back()));
    }
    Matches found;
    for (const int length : {best, best >= 4 ? best / 2 : 0}) {
      if (length < least_) continue;
      const int begin = (int)places_.size();
      choose(query, length);
      found.add(length, begin, (int)places_.size());
    }
    return found;
  }

  // Up to PLACES places, evenly from all that have so much of the query.
  void choose(const Query& query, int length) {
    spans_.clear();
    int64_t total = 0, passed = 0;
    for (size_t i = 0; i < segments_.size(); i++) {
      spans_.push_back(segments_[i].span(query, length, at_[i]));
      total += spans_.back().end - spans_.back().begin;
    }
    const double step = std::max((double)total / PLACES, 1.0);
    double at = 0;
    int taken = 0;
    for (size_t i = 0; i < segments_.size(); i++) {
      const int64_t size = spans_[i].end - spans_[i].begin;
      for (; at < (double)(passed + size) && taken < PLACES; at += step, taken++) {
        Place place;
        if (segments_[i].place(spans_[i].begin + (int64_t)at - passed, place)) places_.push_back(place);
      }
      passed += size;
    }
  }

  // The places one token later, those where it came.
  Matches advanced(const Matches& matches) {
    if (matches.token == NONE) return matches;
    Matches found;
    for (int g = 0; g < matches.n; g++) {
      const Group group = matches.groups[g];
      const int begin = (int)places_.size();
      for (int i = group.begin; i < group.end; i++) {
        const Place place = places_[(size_t)i];
        if (place.next() == matches.token) places_.push_back({place.tokens, place.at - 1});
      }
      found.add(group.length + 1, begin, (int)places_.size());
    }
    return found;
  }

  // Likely next tokens: the longest matches first, shorter ones share the remaining probability.
  void follow(Matches matches, Grower::Followers& found) {
    double left = 1;
    for (int g = 0; g < matches.n; g++) {
      const Group& group = matches.groups[g];
      count(group);
      const double unseen = unforeseen_(group.length), total = (group.end - group.begin) + unseen;
      for (const Said& said : said_) {
        const double p = left * said.n / total;
        auto known = std::find_if(found.begin(), found.end(), [&](const auto& f) { return f.token == said.token; });
        if (known != found.end()) {
          known->p += p;
          continue;
        }
        matches.token = said.token;
        found.push_back({said.token, p, matches});
      }
      left *= unseen / total;
    }
  }

  // Which tokens come next in a group, in the order they were seen, and how often.
  void count(const Group& group) {
    said_.clear();
    for (int i = group.begin; i < group.end; i++) {
      const int32_t token = places_[(size_t)i].next();
      if (token < 0 || token >= vocab_) continue;
      auto known = std::find_if(said_.begin(), said_.end(), [&](const Said& said) { return said.token == token; });
      if (known == said_.end())
        said_.push_back({token, 1});
      else
        known->n++;
    }
  }

  struct Said {
    int32_t token;
    int n;
  };
  const int vocab_, least_;
  const Unforeseen unforeseen_;
  std::vector<Segment> segments_;
  std::vector<int64_t> at_;  // by segment: where the query was found
  std::vector<Span> spans_;
  std::vector<Place> places_;
  std::vector<Said> said_;
  Grower grower_;
  int64_t lookups_ = 0, matches_ = 0;
};

}  // namespace

std::unique_ptr<TableDrafter> make_datastore(const ed_drafter_options& options) {
  const bool right = options.vocab > 0 && options.ngram >= 1 && options.ngram <= DEPTH;
  return right ? std::make_unique<Documents>(options.vocab, options.ngram) : nullptr;
}

}  // namespace edgedec
