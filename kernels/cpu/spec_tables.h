// The tables of the drafters that learn from the model's predictions:
// `edgedec.drafters._tables.ranked.Table`, and that of `recycling`, with the same numbers. Copies share their
// pages.
#pragma once
#include <algorithm>
#include <vector>

#include "spec_rows.h"

namespace edgedec {

// Key -> the k likeliest next tokens. At `cap` keys the oldest is evicted for a new one.
class RankedTable {
 public:
  RankedTable(int k, int cap) : k_(k), cap_(cap), rows_(row_bytes(k), 5), index_(rows_) {}
  RankedTable(const RankedTable& other)
      : k_(other.k_), cap_(other.cap_), next_(other.next_), rows_(other.rows_), index_(other.index_, rows_) {}

  int k() const { return k_; }
  int size() const { return index_.size(); }
  int find(int64_t key) const { return index_.find(key); }
  int visits(int place) const { return ((const Head*)rows_.at(place))->visits; }
  // Those after the likeliest may be -1 and 0.
  const int32_t* ids(int place) const { return (const int32_t*)(rows_.at(place) + sizeof(Head)); }
  const float* p(int place) const { return (const float*)(ids(place) + k_); }

  // Line lines[i] of ids, p [.., k] was seen under keys[i]: the mean of the first visits, and from then on a new one
  // weighs `rate` (1: only the last counts). Of a key that comes twice the last line counts.
  void learn(const std::vector<int64_t>& keys, const std::vector<int>& lines, const int32_t* ids, const float* p,
             float rate);
  // Keys with their rows, the oldest first; [size] and [size, k].
  void save(int64_t* keys, int32_t* ids, float* p, int32_t* visits) const;
  // At most `cap` different keys.
  void load(int n, const int64_t* keys, const int32_t* ids, const float* p, const int32_t* visits);

 private:
  struct Head {
    int64_t key;
    int32_t visits, reserved;
  };
  static size_t row_bytes(int k) { return sizeof(Head) + (size_t)k * 8; }

  int add(int64_t key);
  void mix(int place, const int32_t* ids, const float* p, float share);
  uint8_t* write(int place) { return rows_.write(place); }

  const int k_, cap_;
  int next_ = 0;
  SharedRows rows_;
  RowIndex index_;
  // Of a call of `learn`.
  std::vector<int> places_, before_;
  std::vector<int32_t> new_ids_;
  std::vector<float> new_p_;
  std::vector<std::pair<float, int32_t>> both_;
};

// Token -> the next tokens that the model gave last, and how likely each follows. Over `cap` tokens, the
// least recently updated ones are evicted, half of `cap` at once.
class RecycledTable {
 public:
  static constexpr int CAP = 1 << 14;

  RecycledTable(int k, int cap) : k_(k), cap_(cap), rows_(row_bytes(k), 5), index_(rows_) {}
  RecycledTable(const RecycledTable& other)
      : k_(other.k_), cap_(other.cap_), turn_(other.turn_), rows_(other.rows_), index_(other.index_, rows_) {}

  int k() const { return k_; }
  int size() const { return index_.size(); }
  int find(int64_t token) const { return index_.find(token); }
  int count(int place) const { return ((const Head*)rows_.at(place))->n; }
  const double* p(int place) const { return (const double*)(rows_.at(place) + sizeof(Head)); }
  const int32_t* ids(int place) const { return (const int32_t*)(p(place) + k_); }

  // n tokens that may follow, the likeliest first.
  void show(int64_t token, int n, const int32_t* ids, const double* p);
  // Evicts tokens if there are too many; called after the rows of a call.
  void trim();
  // The least recently updated token first; ids -1 and p 0 after the last; [size] and [size, k].
  void save(int64_t* tokens, int32_t* ids, float* p) const;
  void load(int n, const int64_t* tokens, const int32_t* ids, const float* p);

 private:
  struct Head {
    int64_t token;
    uint64_t turn;
    int32_t n, reserved;
  };
  static size_t row_bytes(int k) { return sizeof(Head) + (((size_t)k * 12 + 7) & ~(size_t)7); }
  std::vector<int> by_turn() const;

  const int k_, cap_;
  uint64_t turn_ = 0;
  SharedRows rows_;
  RowIndex index_;
};

}  // namespace edgedec
