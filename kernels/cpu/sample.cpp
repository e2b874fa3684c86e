// Draws a token from a row of logits: penalties, temperature, top-k, top-p, min-p. What Python's
// `edgedec.sampling.distributions` says, quicker: where a comparison lies within the rounding of its sums, no token is
// drawn (-1) and Python decides, so that a seed means the same tokens on either way.
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <unordered_map>
#include <vector>

#include "api.h"
#include "dispatch.h"

namespace edgedec {

namespace {

constexpr int UNDECIDED = -1;
// Relative errors of sums: of float64 in another order, of float32 in lanes.
constexpr double EXACT = 1e-9, LANES_ERROR = 4e-6;
// A first shortlist has the tokens of at least this part of what top-p may drop.
constexpr double NEAR = 0.005;
constexpr int STRIPS = 64, BLOCK = 256;

struct Candidate {
  float score;
  int id;
  double weight;
};

bool likelier(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

}  // namespace

class Sampler {
 public:
  Sampler(const ed_sampling& asked, int vocab)
      : s_(asked),
        vocab_(vocab),
        kernels_(*choose()),
        bias_ids_(asked.bias_ids, asked.bias_ids + asked.n_bias),
        bias_(asked.bias, asked.bias + asked.n_bias),
        adjusts_(asked.n_bias || asked.repetition != 1 || asked.presence != 0 || asked.frequency != 0) {}

  void read(const int64_t* ids, int n, int prompt) {
    place_.clear(), seen_.clear();
    for (int i = 0; i < n; i++) see(ids[i], i >= prompt);
  }

  void see(int64_t id, bool generated) {
    if (!adjusts_ || id < 0 || id >= vocab_) return;
    const auto [at, fresh] = place_.try_emplace((int)id, (int)seen_.size());
    if (fresh) seen_.push_back({(int)id, 0});
    seen_[at->second].count += generated;
  }

  int draw(const float* logits, const int64_t* path, int n_path, double u);

 private:
  struct Seen {
    int id, count;
  };

  const float* adjust(const float* logits, const int64_t* path, int n_path);
  double weight(float score) const { return std::exp(((double)score - top_) / s_.temperature); }
  void collect(const float* scores, float least);
  float kth_largest(const float* scores);
  bool take_nucleus_of_all(const float* scores);
  bool cut_nucleus(double total, double error, bool closed);
  bool cut_least();
  int pick(double u);
  int pick_of_all(const float* scores, double u);
  double sum_of_all(const float* scores);

  const ed_sampling s_;
  const int vocab_;
  const Kernels& kernels_;
  const std::vector<int32_t> bias_ids_;
  const std::vector<float> bias_;
  const bool adjusts_;
  std::unordered_map<int, int> place_;
  std::vector<Seen> seen_;
  std::vector<float> scores_, maxima_;
  std::vector<double> sums_;
  std::vector<Candidate> found_;
  float top_ = 0;
};

// Bias, then the repetition penalty on all tokens of the text, then presence and frequency on the generated ones.
const float* Sampler::adjust(const float* logits, const int64_t* path, int n_path) {
  if (!adjusts_) return logits;
  const size_t known = seen_.size();
  std::vector<std::pair<size_t, int>> counted;  // of the path, to be taken back
  for (int i = 0; i < n_path; i++) {
    see(path[i], true);
    const auto at = place_.find((int)path[i]);
    if (at != place_.end()) counted.push_back({(size_t)at->second, 1});
  }
  scores_.assign(logits, logits + vocab_);
  for (size_t i = 0; i < bias_.size(); i++) scores_[bias_ids_[i]] += bias_[i];
  const float repetition = (float)s_.repetition;
  if (repetition != 1)
    for (const Seen& seen : seen_) {
      float& score = scores_[seen.id];
      score = score < 0 ? score * repetition : score / repetition;
    }
  if (s_.presence != 0 || s_.frequency != 0)
    for (const Seen& seen : seen_)
      if (seen.count) scores_[seen.id] -= (float)(s_.presence + s_.frequency * seen.count);
  for (const auto& [at, n] : counted) seen_[at].count -= n;
  for (size_t i = known; i < seen_.size(); i++) place_.erase(seen_[i].id);
  seen_.resize(known);
  return scores_.data();
}

int Sampler::draw(const float* logits, const int64_t* path, int n_path, double u) {
  const float* scores = adjust(logits, path, n_path);
  int strange = 0;
  for (int i = 0; i < vocab_; i++) strange |= scores[i] != scores[i];
  top_ = kernels_.reduce_max(scores, vocab_);
  if (strange || !std::isfinite(top_)) return UNDECIDED;
  if (s_.temperature == 0) return (int)(std::find(scores, scores + vocab_, top_) - scores);
  if (0 < s_.top_k && s_.top_k < vocab_) {
    collect(scores, kth_largest(scores));
    double total = 0;
    for (const Candidate& c : found_) total += c.weight;
    if (s_.top_p < 1 && !cut_nucleus(total, total * EXACT, true)) return UNDECIDED;
  } else if (s_.top_p < 1) {
    if (!take_nucleus_of_all(scores)) return UNDECIDED;
  } else if (s_.min_p > 1e-30) {
    collect(scores, (float)(top_ + s_.temperature * (std::log(s_.min_p) - 1e-3)));
  } else {
    return pick_of_all(scores, u);
  }
  return cut_least() ? pick(u) : UNDECIDED;
}

// The finite scores from `least` on.
void Sampler::collect(const float* scores, float least) {
  found_.clear();
  least = std::max(least, std::numeric_limits<float>::lowest());
  for (int block = 0; block < vocab_; block += BLOCK) {
    const int end = std::min(vocab_, block + BLOCK);
    if (kernels_.reduce_max(scores + block, end - block) < least) continue;
    for (int i = block; i < end; i++)
      if (scores[i] >= least) found_.push_back({scores[i], i, weight(scores[i])});
  }
}

// The k-th largest of the maxima of disjoint strips is a lower bound that few scores reach.
float Sampler::kth_largest(const float* scores) {
  const int k = s_.top_k, width = vocab_ / STRIPS;
  float bound = -std::numeric_limits<float>::infinity();
  if (k < width) {
    maxima_.assign(scores, scores + width);
    for (int strip = 1; strip < STRIPS; strip++)
      for (int i = 0; i < width; i++) maxima_[i] = std::max(maxima_[i], scores[strip * width + i]);
    std::nth_element(maxima_.begin(), maxima_.begin() + (k - 1), maxima_.end(), std::greater<float>());
    bound = maxima_[k - 1];
  }
  maxima_.clear();
  for (int i = 0; i < vocab_; i++)
    if (scores[i] >= bound) maxima_.push_back(scores[i]);
  std::nth_element(maxima_.begin(), maxima_.begin() + (k - 1), maxima_.end(), std::greater<float>());
  return maxima_[k - 1];
}

// The sum of all weights; `sums_` by block.
double Sampler::sum_of_all(const float* scores) {
  sums_.clear();
  double total = 0;
  for (int block = 0; block < vocab_; block += BLOCK) {
    const int end = std::min(vocab_, block + BLOCK);
    double sum = kernels_.sum_exp(scores + block, end - block, top_, (float)(1 / s_.temperature));
    if (!(sum == sum)) {  // forbidden tokens among them
      sum = 0;
      for (int i = block; i < end; i++)
        if (std::isfinite(scores[i])) sum += weight(scores[i]);
    }
    sums_.push_back(sum);
    total += sum;
  }
  return total;
}

bool Sampler::take_nucleus_of_all(const float* scores) {
  if (s_.temperature < 1e-2 || s_.temperature > 1e2) return false;
  const double total = sum_of_all(scores);
  for (const double share : {NEAR * (1 - s_.top_p), (1 - s_.top_p) / vocab_}) {
    collect(scores, (float)(top_ + s_.temperature * std::log(total * share)));
    if (cut_nucleus(total, total * LANES_ERROR, false)) return true;
  }
  return false;
}

// Keeps the likeliest of `found_` that hold top_p of `total`; false where that is not decided. closed: nothing else has
// any weight.
bool Sampler::cut_nucleus(double total, double error, bool closed) {
  std::sort(found_.begin(), found_.end(), likelier);
  const double mass = s_.top_p * total;
  double before = 0;
  size_t n = 0;
  for (; n < found_.size(); n++) {
    if (n && before > mass + error) break;
    if (n && before >= mass - error) return false;
    before += found_[n].weight;
  }
  if (n == found_.size() && !closed && before <= mass + error) return false;
  found_.resize(n);
  return true;
}

// Drops what min-p drops.
bool Sampler::cut_least() {
  if (s_.min_p <= 0) return true;
  double most = 0;
  for (const Candidate& c : found_) most = std::max(most, c.weight);
  const double least = s_.min_p * most;
  for (const Candidate& c : found_)
    if (std::abs(c.weight - least) <= EXACT * least) return false;
  found_.erase(std::remove_if(found_.begin(), found_.end(), [&](const Candidate& c) { return c.weight < least; }),
               found_.end());
  return true;
}

// By inverse CDF, tokens in order of their ids.
int Sampler::pick(double u) {
  if (found_.size() == 1) return found_[0].id;
  std::sort(found_.begin(), found_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0, upto = 0;
  for (const Candidate& c : found_) total += c.weight;
  const double target = u * total, error = total * EXACT;
  for (const Candidate& c : found_) {
    upto += c.weight;
    if (upto > target + error) return c.id;
    if (upto >= target - error) return UNDECIDED;
  }
  return UNDECIDED;
}

// The same of the whole row: the block from sums in lanes, the token in it one by one.
int Sampler::pick_of_all(const float* scores, double u) {
  const double total = sum_of_all(scores), target = u * total, error = total * LANES_ERROR;
  double upto = 0;
  size_t block = 0;
  while (block + 1 < sums_.size() && upto + sums_[block] <= target) upto += sums_[block++];
  const int begin = (int)block * BLOCK, end = std::min(vocab_, begin + BLOCK);
  if (block && upto >= target - error) return UNDECIDED;
  for (int i = begin; i < end; i++) {
    if (!std::isfinite(scores[i])) continue;
    upto += weight(scores[i]);
    if (upto > target + error) return i;
    if (upto >= target - error) return UNDECIDED;
  }
  return UNDECIDED;
}

}  // namespace edgedec

struct ed_sampler {
  edgedec::Sampler sampler;
};

ed_sampler* ed_sampler_new(const ed_sampling* asked, int vocab) {
  try {
    return new ed_sampler{{*asked, vocab}};
  } catch (...) {
    return nullptr;
  }
}

void ed_sampler_free(ed_sampler* sampler) { delete sampler; }

int ed_sampler_read(ed_sampler* sampler, const int64_t* ids, int n, int prompt) {
  try {
    sampler->sampler.read(ids, n, prompt);
    return 0;
  } catch (...) {
    return -1;
  }
}

int ed_sampler_accept(ed_sampler* sampler, int64_t id) {
  try {
    sampler->sampler.see(id, true);
    return 0;
  } catch (...) {
    return -1;
  }
}

int ed_sampler_draw(ed_sampler* sampler, const float* logits, const int64_t* path, int n_path, double u) {
  try {
    return sampler->sampler.draw(logits, path, n_path, u);
  } catch (...) {
    return edgedec::UNDECIDED;
  }
}
