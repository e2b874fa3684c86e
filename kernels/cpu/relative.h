// Scores of queries and keys with the distance between them (edgedec/spec/relative.py), for each text and head a matrix that
// is added to the scores of its queries with its keys.
#pragma once
#include <vector>

#include "engine.h"

namespace edgedec {

class RelativeScores {
 public:
  RelativeScores(Engine& engine, const ed_attention& m);
  // Whether the block has what it needs.
  static bool possible(const ed_attention& m);
  // Of all texts of a call: q and k of the rows, from row to row `width` floats, heads side by side.
  void compute(const BlockCall& call, const float* q, const float* k, int64_t width);
  // Those of a text: [rows, heads, stride].
  const float* of(size_t sequence) const { return s_.scores.p + s_.at[sequence]; }
  static int64_t stride(int rows) { return (rows + LANES - 1) / LANES * LANES; }

 private:
  // Rows of a text: queries or keys.
  struct Piece {
    size_t sequence;
    int first, count;
  };
  struct Scratch {
    Buffer<float> scores, threads;
    std::vector<size_t> at;      // of each sequence
    std::vector<int32_t> rows;   // of the tables, by query - key from 1 - the longest text on
    std::vector<Piece> pieces;
  };

  void prepare(const BlockCall& call);
  // A piece's vectors of one head, which lie `width` floats apart, times the rows of a table that texts of n rows use:
  // [count, used(n)].
  const float* products(const Piece& piece, const float* table, int head, const float* x, int64_t width, int n, int thread);
  void by_queries(const BlockCall& call, const Piece& piece, int head, const float* q, int64_t width, int thread);
  void by_keys(const BlockCall& call, const Piece& piece, int head, const float* k, int64_t width, int thread);
  // The row of the tables for query - key.
  int32_t row(int apart) const { return s_.rows[apart + longest_ - 1]; }
  int used(int n) const { return row(n - 1) - row(1 - n) + 1; }

  Engine& engine_;
  const ed_attention m_;
  Scratch& s_;
  int longest_ = 0;
};

}  // namespace edgedec
