// The interface between the head and the samplers of a call (sample.cpp).
#pragma once
#include <utility>
#include <vector>

#include "api.h"

namespace edgedec {

struct Candidate {
  float score;
  int id;
  double weight;
};

// What a draw works with: one for each thread, so that it stays in the caches.
struct DrawScratch {
  std::vector<float> maxima;
  std::vector<double> sums;                   // of weights by block
  std::vector<Candidate> found, ranked;       // in order of ids; the likeliest first
  std::vector<std::pair<int, float>> before;  // what penalties changed, to be put back
};

// The token at u that follows the sampler's text; -1: undecided. The logits [vocab] are changed meanwhile.
int draw_in_place(ed_sampler& sampler, float* logits, double u, DrawScratch& scratch);
// For ed_sampler_row.
void keep_row(ed_sampler& sampler, const float* logits);

}  // namespace edgedec
