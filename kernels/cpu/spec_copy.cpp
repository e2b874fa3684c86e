// Aggressive Decoding and prompt lookup: edgedec/drafters/copy.py.
#include <unordered_map>

#include "spec_tracks.h"

namespace edgedec {

namespace {

constexpr double LEAST = 0.04, REPLACED = 0.62, INSERTED = 0.25, OMITTED = 0.45;
constexpr int WALK = 32, SURE = 4, FIRM = 16, NEAR = 24, PATIENCE = 12, TRACKS = 4;

class Copy final : public TableDrafter {
 public:
  Copy(int ngram, int length) : ngram_(ngram), length_(length), ends_(ids_, ngram) {}

  void propose(const DraftText& text, int nodes, double least, DraftTree& draft) override {
    follow(text.ids);
    if (nodes > 0 && !tracks_.empty()) this->draft(nodes, std::max(least, LEAST), draft);
  }

  void reset() override {
    ids_.clear(), ends_.clear(), tracks_.clear(), renamed_.clear();
    lost_at_ = -1, patience_ = 0;
  }

  std::unique_ptr<TableDrafter> fork() const override { return std::make_unique<Copy>(ngram_, length_); }
  int64_t figure(int what) const override { return figures_[what < 3 ? what : 0]; }

 private:
  // What replaced a token of the source last, how often so, and how often it stayed.
  struct Renamed {
    int32_t token;
    int times, stayed;
  };

  // Reads the new tokens since the last call.
  void follow(const std::vector<int32_t>& ids) {
    if (ids.size() < ids_.size()) reset();
    size_t read = ids_.size();
    ids_.insert(ids_.end(), ids.begin() + (std::ptrdiff_t)read, ids.end());
    if (ids_.size() - read > 2 * WALK) {
      tracks_.clear(), lost_at_ = -1;
      ends_.reserve(ids_.size() - read);
      for (; read < ids_.size() - WALK; read++)
        for (int n = 1; n <= ngram_; n++) ends_.set(n, (int)read + 1);
    }
    for (; read < ids_.size(); read++) step((int)read);
  }

  // Reads token `i`: moves the tracks, opens new ones, indexes it.
  void step(int i) {
    const int32_t token = ids_[(size_t)i];
    std::vector<Track>& tracks = next_;
    tracks.clear();
    Track lost{-1, -1};
    for (Track& track : tracks_) {
      if (ids_[(size_t)track.at] == token) {
        right(track, token);
        tracks.push_back(track);
      } else if (track.run >= SURE && track.doubt == 1.0 && track.run > lost.run) {
        lost = track;
      }
    }
    if (tracks.empty() || tracks[0].run < SURE) {
      if (lost.at >= 0) {
        figures_[1]++;
        lost_at_ = lost.at, lost_run_ = lost.run, patience_ = PATIENCE;
        realign(i, lost);
      } else if (lost_at_ >= 0) {
        again(i, token);
      }
    }
    look_up(i);
    if (tracks.size() > 1) keep_best();
    tracks_.swap(next_);
  }

  void keep_best() {
    std::stable_sort(next_.begin(), next_.end(), [](const Track& a, const Track& b) { return strength(a) > strength(b); });
    size_t n = 0;
    for (size_t i = 0; i < next_.size() && n < TRACKS; i++) {
      bool known = false;
      for (size_t j = 0; j < n; j++) known |= next_[j].at == next_[i].at;
      if (!known) next_[n++] = next_[i];
    }
    next_.resize(n);
  }

  void right(Track& track, int32_t token) {
    track.at++, track.run++;
    if (track.doubt != 1.0) {
      track.doubt = 1.0;
      if (track.old >= 0) replaced(track.old, track.fresh);
    } else if (track.run > SURE) {
      const auto known = renamed_.find(token);
      if (known != renamed_.end()) known->second.stayed++;
    }
    figures_[0]++;
  }

  void replaced(int32_t old, int32_t fresh) {
    figures_[2]++;
    Renamed& known = renamed_.try_emplace(old, Renamed{fresh, 0, 0}).first->second;
    known.times = known.token == fresh ? known.times + 1 : 1;
    known.token = fresh;
  }

  // Places where a text that just left `lost` may continue: the token was replaced, inserted before, or left
  // out. Not after a short agreement, which may be chance.
  void realign(int i, const Track& lost) {
    const int run = 2 + std::min(lost.run, RUN) / 2;
    const double trust = std::min(1.0, (double)lost.run / FIRM);
    next_.push_back({lost.at, run, INSERTED * trust});
    next_.push_back({lost.at + 1, run, REPLACED * trust, ids_[(size_t)lost.at], ids_[(size_t)i]});
    const int found = find(ids_[(size_t)i], lost.at + 1, std::min(lost.at + NEAR, i));
    if (found >= 0) next_.push_back({found + 1, run, OMITTED * trust});
  }

  // The text left its source some tokens ago: has it come back, a little further on?
  void again(int i, int32_t token) {
    const int at = lost_at_;
    if (--patience_ == 0) lost_at_ = -1;
    const int found = find(token, at, std::min(at + NEAR, i));
    if (found >= 0) next_.push_back({found + 1, 1 + lost_run_ / 8, OMITTED});
  }

  // Index the n-grams that end at `i`; their last occurrences are tracks, if they are new.
  void look_up(int i) {
    const bool firm = !next_.empty() && next_[0].run >= FIRM;
    int found[NGRAM_MOST];
    for (int n = 1; n <= ngram_; n++) found[n - 1] = ends_.set(n, i + 1);
    if (firm) return;
    const size_t before = next_.size();
    size_t fresh = before;
    for (int n = ngram_; n > (before ? 1 : 0); n--) {
      const int at = found[n - 1];
      bool known = at < 0;
      for (const Track& track : next_) known |= track.at == at;
      for (int earlier = n; earlier < ngram_; earlier++) known |= found[earlier] == at;
      if (known) continue;
      const int run = agreement(at - 1, i);
      if (run) next_.push_back({at, run}), fresh++;
    }
  }

  int find(int32_t token, int start, int stop) const {
    for (int i = start; i < stop; i++)
      if (ids_[(size_t)i] == token) return i;
    return -1;
  }

  // How many tokens up to `a` and up to `b` > a are the same.
  int agreement(int a, int b) const {
    int run = 0;
    const int most = std::min(WALK, a + 1);
    while (run < most && ids_[(size_t)(a - run)] == ids_[(size_t)(b - run)]) run++;
    return run;
  }

  // The chains of all tracks as one tree. The claims of earlier siblings reduce those of later ones.
  void draft(int nodes, double least, DraftTree& draft) {
    tree_.clear(least);
    for (const Track& track : tracks_) {
      read_ahead(track.at, std::min(nodes, length_));
      bool renamed = false;
      if (!renamed_.empty())
        for (const int32_t token : ahead_) renamed |= renamed_.count(token) > 0;
      if (renamed)
        chain(track);
      else if (!tree_.size())
        tree_.begin(ahead_, track);
      else
        tree_.extend(ahead_, track);
    }
    tree_.cut(nodes, draft);
  }

  // What stands from `at` on; where that reaches the end of the text it begins again: a loop.
  void read_ahead(int at, int most) {
    const int loop = std::max(0, std::min(most, (int)ids_.size() - at));
    ahead_.assign(ids_.begin() + std::min(at, (int)ids_.size()), ids_.begin() + std::min(at + loop, (int)ids_.size()));
    while (loop && (int)ahead_.size() < most) ahead_.push_back(ahead_[ahead_.size() - (size_t)loop]);
  }

  // A chain with replacements: at replaced words of the source both words are proposed, and the chain
  // continues after the likelier.
  void chain(const Track& track) {
    int parent = -1, run = std::min(track.run, RUN);
    double doubt = track.doubt;
    for (const int32_t token : ahead_) {
      const double claim = claim_after(run++) * doubt;
      doubt = 1.0;
      const auto known = renamed_.find(token);
      const Renamed renamed = known == renamed_.end() ? Renamed{-1, 0, 0} : known->second;
      double share = renamed.times ? (renamed.times + 0.3) / (renamed.times + renamed.stayed + 0.6) : 0.0;
      int32_t first = renamed.token, second = token;
      if (share < 0.5) std::swap(first, second), share = 1 - share;
      const int before = tree_.size(), node = tree_.add(parent, first, claim * share);
      if (node < 0) return;
      if (renamed.times) {  // `add` gives it a part of what its sibling has left
        const double left = node == before ? 1 - claim * share : 1.0;
        tree_.add(parent, second, claim * (1 - share) / left);
      }
      parent = node;
    }
  }

  const int ngram_, length_;
  std::vector<int32_t> ids_;  // as far as it was read
  EndIndex ends_;
  std::vector<Track> tracks_, next_;
  int lost_at_ = -1, lost_run_ = 0, patience_ = 0;
  std::unordered_map<int32_t, Renamed> renamed_;
  int64_t figures_[3] = {0, 0, 0};  // tokens, edits, replacements
  std::vector<int32_t> ahead_;
  TrackTree tree_;
};

}  // namespace

std::unique_ptr<TableDrafter> make_copy(const ed_drafter_options& o) { return std::make_unique<Copy>(o.ngram, o.length); }

}  // namespace edgedec
