#include "spec_tracks.h"

#include <cmath>

namespace edgedec {

double claim_after(int run) {
  static constexpr double EARLY[] = {0.05, 0.17, 0.38, 0.5, 0.6, 0.67, 0.72, 0.77, 0.81};
  return run < 9 ? EARLY[run] : std::min(0.975, 1 - 1.4 / std::min(run, RUN));
}

void EndIndex::clear() { entries_.assign(256, {0, 0}), n_ = 0; }

size_t EndIndex::home(int n, int after) const {
  uint64_t key = (uint64_t)n;
  for (int i = after - n; i < after; i++) key = mixed(key + (uint32_t)token(i) + 1);
  return key & (entries_.size() - 1);
}

bool EndIndex::same(int n, int a, int b) const {
  for (int i = 1; i <= n; i++)
    if (token(a - i) != token(b - i)) return false;
  return true;
}

int EndIndex::set(int n, int after) {
  if (2 * (n_ + 1) > entries_.size()) grow(2 * entries_.size());
  size_t at = home(n, after);
  for (; entries_[at].n; at = (at + 1) & (entries_.size() - 1))
    if (entries_[at].n == n && same(n, entries_[at].after, after)) {
      const int before = entries_[at].after;
      entries_[at].after = after;
      return before;
    }
  entries_[at] = {after, n}, n_++;
  return -1;
}

void EndIndex::reserve(size_t tokens) {
  size_t size = entries_.size();
  while (size < 2 * (n_ + tokens * (size_t)ngram_)) size *= 2;
  if (size > entries_.size()) grow(size);
}

void EndIndex::grow(size_t size) {
  std::vector<Entry> old(size, {0, 0});
  old.swap(entries_);
  for (const Entry& kept : old) {
    if (!kept.n) continue;
    size_t at = home(kept.n, kept.after);
    while (entries_[at].n) at = (at + 1) & (entries_.size() - 1);
    entries_[at] = kept;
  }
}

void TrackTree::clear(double least) {
  least_ = least;
  tokens_.clear(), parents_.clear(), claims_.clear(), paths_.clear(), elder_.clear();
  child_.assign(1, -1), left_.assign(1, 1.0);
}

void TrackTree::append(int parent, int32_t token, double claim, double path) {
  const int node = size();
  tokens_.push_back(token), parents_.push_back(parent), claims_.push_back(claim), paths_.push_back(path);
  elder_.push_back(child_[(size_t)parent + 1]), child_[(size_t)parent + 1] = node;
  child_.push_back(-1), left_.push_back(1.0);
}

void TrackTree::begin(const std::vector<int32_t>& ahead, const Track& track) {
  double path = 1;
  for (size_t i = 0; i < ahead.size(); i++) {
    const double claim = claim_after(std::min(track.run, RUN) + (int)i) * (i ? 1.0 : track.doubt);
    path *= claim;
    if (path < least_) return;
    left_[i] = 1.0 - claim;
    append((int)i - 1, ahead[i], claim, path);
  }
}

void TrackTree::extend(const std::vector<int32_t>& ahead, const Track& track) {
  int parent = -1, run = std::min(track.run, RUN);
  double doubt = track.doubt;
  for (const int32_t token : ahead) {
    parent = add(parent, token, claim_after(run++) * doubt);
    if (parent < 0) return;
    doubt = 1.0;
  }
}

int TrackTree::add(int parent, int32_t token, double claim) {
  for (int node = child_[(size_t)parent + 1]; node >= 0; node = elder_[(size_t)node])
    if (tokens_[(size_t)node] == token) return node;
  double& left = left_[(size_t)parent + 1];
  claim *= left;
  const double path = parent < 0 ? claim : claim * paths_[(size_t)parent];
  if (path < least_) return -1;
  left -= claim;
  append(parent, token, claim, path);
  return size() - 1;
}

void TrackTree::cut(int nodes, DraftTree& draft) const {
  std::vector<int> kept(tokens_.size());
  for (size_t i = 0; i < kept.size(); i++) kept[i] = (int)i;
  if ((int)kept.size() > nodes) {
    std::stable_sort(kept.begin(), kept.end(), [this](int a, int b) { return paths_[(size_t)a] > paths_[(size_t)b]; });
    kept.resize((size_t)nodes);
    std::sort(kept.begin(), kept.end());
  }
  std::vector<int32_t> place(tokens_.size() + 1, -1);
  for (size_t i = 0; i < kept.size(); i++) {
    const size_t node = (size_t)kept[i];
    place[node + 1] = (int32_t)i;
    draft.add(tokens_[node], place[(size_t)parents_[node] + 1], claims_[node]);
  }
}

}  // namespace edgedec
