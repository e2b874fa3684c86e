// The distribution of the next token, from all logits, in float64, as in edgedec/sampling/distributions.py.
// The engine's sampler is faster; this one decides comparisons within the rounding of its sums, and does
// typical sampling.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "edgedec.h"

namespace edgedec::lib {

// The settings, with their arrays.
struct Sampling {
  double temperature = 0, top_p = 1, min_p = 0, typical_p = 1, repetition = 1, presence = 0, frequency = 0;
  int32_t top_k = 0;
  std::vector<int32_t> bias_tokens;
  std::vector<float> bias;

  bool adjusts() const { return !bias.empty() || repetition != 1 || presence != 0 || frequency != 0; }
  bool takes_largest() const { return temperature == 0 && !adjusts(); }
};

// Checked as Python does; throws Failure(EDGEDEC_USAGE).
Sampling read_sampling(const edgedec_sampling& asked, int32_t vocab);

struct Distribution {
  std::vector<int32_t> ids;  // ascending
  std::vector<double> p;
};

// ids: the text, of which the first `prompt` were given.
void adjust(std::vector<float>& scores, const Sampling& s, const int32_t* ids, int n, int prompt);
Distribution distribution(const float* scores, int vocab, const Sampling& s);
int32_t draw(const Distribution& d, double u);
double log_total(const float* logits, int vocab);  // log of the sum of exp(logit)
// Throws Failure(EDGEDEC_USAGE) if it is NaN or infinite.
void check_finite(float top);

}  // namespace edgedec::lib
