// Pairs of heads of differential attention (edgedec/spec/differential.py). Queries have half of a head's values and are
// widened by zeros, so that attention is that of single heads; then the second output of a pair is subtracted from the first.
#pragma once
#include "engine.h"

namespace edgedec {

class HeadPairs {
 public:
  HeadPairs(Engine& engine, const ed_attention& m);

  void reserve(int rows) { s_.rows.need((size_t)rows * std::max(m_.qkv.n, narrow_)); }
  // [rows, qkv.n], where the first matrix of the block puts its rows.
  float* projected() const { return s_.rows.p; }
  // These rows, with wide queries, to [rows, width].
  void widen(int rows, float* qkv, int64_t width);
  // What the heads attend to [rows, heads * head_dim]: of the pairs [rows, heads * head_dim / 2].
  const float* subtract(const float* attended, int rows);

 private:
  struct Scratch {
    Buffer<float> rows;
  };

  Engine& engine_;
  const ed_attention m_;
  const int half_, narrow_;  // values of a query; of all queries
  const float factor_;
  Scratch& s_;
};

}  // namespace edgedec
