#include "spec_tables.h"

#include <cmath>

namespace edgedec {

void RankedTable::learn(const std::vector<int64_t>& keys, const std::vector<int>& lines, const int32_t* ids,
                        const float* p, float rate) {
  const size_t n = keys.size(), k = (size_t)k_;
  places_.resize(n), before_.resize(n), new_ids_.resize(n * k), new_p_.resize(n * k);
  if (n > 64 && size() + (int)n <= cap_) index_.reserve(n);
  for (size_t i = 0; i < n; i++) {
    const int place = find(keys[i]);
    places_[i] = place >= 0 ? place : add(keys[i]);
  }
  // All lines of a call are merged with the table's state before the call.
  for (size_t i = 0; i < n; i++) {
    const int visits = rate < 1 ? this->visits(places_[i]) : 0;
    before_[i] = visits;
    std::copy_n(ids + lines[i] * k, k, new_ids_.begin() + i * k);
    std::copy_n(p + lines[i] * k, k, new_p_.begin() + i * k);
    if (visits) mix((int)i, ids + lines[i] * k, p + lines[i] * k, std::max(rate, (float)(1.0 / (visits + 1.0))));
  }
  for (size_t i = 0; i < n; i++) {
    uint8_t* row = write(places_[i]);
    ((Head*)row)->visits = before_[i] + 1;
    std::memcpy(row + sizeof(Head), &new_ids_[i * k], k * 4);
    std::memcpy(row + sizeof(Head) + k * 4, &new_p_[i * k], k * 4);
  }
}

// Line i: the old and the new as one, of which the new weighs `share`.
void RankedTable::mix(int i, const int32_t* ids, const float* p, float share) {
  const int32_t* old_ids = this->ids(places_[i]);
  const float* old_p = this->p(places_[i]);
  const float rest = 1 - share;
  both_.clear();
  for (int a = 0; a < k_; a++) {
    float sum = 0;
    for (int b = 0; b < k_; b++)
      if (ids[a] == old_ids[b]) sum += old_p[b] * rest;
    both_.push_back({p[a] * share + sum, ids[a]});
  }
  for (int b = 0; b < k_; b++) {
    const bool met = std::find(ids, ids + k_, old_ids[b]) != ids + k_;
    both_.push_back({met ? 0.0f : old_p[b] * rest, old_ids[b]});
  }
  // Both halves are nearly in order, and short: by insertion, equals in their order.
  for (size_t i = 1; i < both_.size(); i++) {
    const auto moved = both_[i];
    size_t at = i;
    for (; at && both_[at - 1].first < moved.first; at--) both_[at] = both_[at - 1];
    both_[at] = moved;
  }
  for (int a = 0; a < k_; a++) new_p_[(size_t)i * k_ + a] = both_[a].first, new_ids_[(size_t)i * k_ + a] = both_[a].second;
}

int RankedTable::add(int64_t key) {
  const int place = next_;
  next_ = (place + 1) % cap_;
  if ((size_t)place >= rows_.size()) {
    rows_.resize((size_t)place + 1);
  } else {
    const int64_t old = ((const Head*)rows_.at(place))->key;
    if (find(old) == place) index_.remove(old);
  }
  uint8_t* row = write(place);
  *(Head*)row = {key, 0, 0};
  std::memset(row + sizeof(Head) + (size_t)k_ * 4, 0, (size_t)k_ * 4);
  index_.add(place);
  return place;
}

void RankedTable::save(int64_t* keys, int32_t* ids, float* p, int32_t* visits) const {
  const int n = size(), turn = n == cap_ ? next_ : 0;
  for (int i = 0; i < n; i++) {
    const int place = (turn + i) % n;
    keys[i] = ((const Head*)rows_.at(place))->key, visits[i] = this->visits(place);
    std::copy_n(this->ids(place), k_, ids + (size_t)i * k_);
    std::copy_n(this->p(place), k_, p + (size_t)i * k_);
  }
}

void RankedTable::load(int n, const int64_t* keys, const int32_t* ids, const float* p, const int32_t* visits) {
  index_.clear(), rows_.clear(), next_ = 0;
  for (int i = 0; i < n; i++) {
    uint8_t* row = write(add(keys[i]));
    ((Head*)row)->visits = visits[i];
    std::memcpy(row + sizeof(Head), ids + (size_t)i * k_, (size_t)k_ * 4);
    std::memcpy(row + sizeof(Head) + (size_t)k_ * 4, p + (size_t)i * k_, (size_t)k_ * 4);
  }
}

void RecycledTable::show(int64_t token, int n, const int32_t* ids, const double* p) {
  int place = find(token);
  const bool known = place >= 0;
  if (!known) {
    place = (int)rows_.size();
    rows_.resize((size_t)place + 1);
  }
  uint8_t* row = rows_.write(place);
  *(Head*)row = {token, ++turn_, n, 0};
  std::memcpy(row + sizeof(Head), p, (size_t)n * 8);
  std::memcpy(row + sizeof(Head) + (size_t)k_ * 8, ids, (size_t)n * 4);
  if (!known) index_.add(place);
}

std::vector<int> RecycledTable::by_turn() const {
  std::vector<int> places(rows_.size());
  for (size_t i = 0; i < places.size(); i++) places[i] = (int)i;
  const auto turn = [this](int place) { return ((const Head*)rows_.at(place))->turn; };
  std::sort(places.begin(), places.end(), [&](int a, int b) { return turn(a) < turn(b); });
  return places;
}

void RecycledTable::trim() {
  if (size() <= cap_) return;
  const RecycledTable old(*this);
  const std::vector<int> places = old.by_turn();
  index_.clear(), rows_.clear();
  for (size_t i = (size_t)(cap_ / 2); i < places.size(); i++)
    show(((const Head*)old.rows_.at(places[i]))->token, old.count(places[i]), old.ids(places[i]), old.p(places[i]));
}

void RecycledTable::save(int64_t* tokens, int32_t* ids, float* p) const {
  size_t i = 0;
  for (const int place : by_turn()) {
    tokens[i] = ((const Head*)rows_.at(place))->token;
    for (int j = 0; j < k_; j++) {
      const bool known = j < count(place);
      ids[i * k_ + j] = known ? this->ids(place)[j] : -1, p[i * k_ + j] = known ? (float)this->p(place)[j] : 0.0f;
    }
    i++;
  }
}

void RecycledTable::load(int n, const int64_t* tokens, const int32_t* ids, const float* p) {
  index_.clear(), rows_.clear(), turn_ = 0;
  std::vector<double> chances((size_t)k_);
  for (int i = 0; i < n; i++) {
    const int32_t* row = ids + (size_t)i * k_;
    const int known = (int)(std::find_if(row, row + k_, [](int32_t id) { return id < 0; }) - row);
    for (int j = 0; j < known; j++) chances[j] = p[(size_t)i * k_ + j];
    show(tokens[i], known, row, chances.data());
  }
}

}  // namespace edgedec
