// Draws a token from a row of logits: penalties, temperature, top-k, top-p, min-p. A faster version of
// Python's `edgedec.sampling.distributions`: if a comparison is within the rounding of its sums, no token is
// drawn (-1) and Python decides, so that a seed gives the same tokens either way.
#include "sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <unordered_map>
#include <vector>

#include "dispatch.h"

namespace edgedec {

namespace {

constexpr int UNDECIDED = -1;
// Relative errors of sums: of float64 in another order, of float32 in lanes.
constexpr double EXACT = 1e-9, LANES_ERROR = 4e-6;
// The first shortlist has the tokens with at least this fraction of the mass that top-p may drop.
constexpr double NEAR = 0.005;
constexpr int BLOCK = 256, MAXIMA_STEP = 64;
constexpr float LOWEST = std::numeric_limits<float>::lowest(), NOTHING = -std::numeric_limits<float>::infinity();

bool likelier(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

}  // namespace

// One draw from the scores of a row.
class Draw {
 public:
  Draw(const ed_sampling& settings, const Kernels& kernels, const float* scores, int vocab, DrawScratch& scratch)
      : s_(settings), kernels_(kernels), scores_(scores), vocab_(vocab), maxima_(scratch.maxima), sums_(scratch.sums),
        found_(scratch.found), ranked_(scratch.ranked) {}
  int token(double u);

 private:
  double weight(float score) const { return std::exp(((double)score - top_) / s_.temperature); }
  bool find_top(int k);
  void collect(float least);
  void collect_best(int k);
  void weigh() {
    for (Candidate& c : found_) c.weight = weight(c.score);
  }
  bool take_nucleus_of_all();
  bool cut_nucleus(double total, double error, bool closed);
  bool cut_least();
  int pick(double u) const;
  int pick_of_all(double u);
  double sum_of_all();

  const ed_sampling& s_;
  const Kernels& kernels_;
  const float* const scores_;
  const int vocab_;
  std::vector<float>& maxima_;
  std::vector<double>& sums_;
  std::vector<Candidate>&found_, &ranked_;
  float top_ = 0;
};

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
  // The same of the text itself; the logits are changed meanwhile.
  int draw_in_place(float* logits, double u, DrawScratch& scratch) const;
  void keep(const float* logits) { kept_.assign(logits, logits + vocab_); }
  const float* kept() const { return kept_.empty() ? nullptr : kept_.data(); }

 private:
  struct Seen {
    int id, count;
  };

  void follow(float* scores, const int64_t* path, int n_path);
  void adjust(float* scores) const;
  int token(const float* scores, double u, DrawScratch& scratch) const {
    return Draw(s_, kernels_, scores, vocab_, scratch).token(u);
  }

  const ed_sampling s_;
  const int vocab_;
  const Kernels& kernels_;
  const std::vector<int32_t> bias_ids_;
  const std::vector<float> bias_;
  const bool adjusts_;
  std::unordered_map<int, int> place_;
  std::vector<Seen> seen_;
  std::vector<float> scores_, kept_;
  DrawScratch scratch_;
};

int Sampler::draw(const float* logits, const int64_t* path, int n_path, double u) {
  if (!adjusts_) return token(logits, u, scratch_);
  scores_.assign(logits, logits + vocab_);
  follow(scores_.data(), path, n_path);
  return token(scores_.data(), u, scratch_);
}

int Sampler::draw_in_place(float* logits, double u, DrawScratch& scratch) const {
  if (!adjusts_) return token(logits, u, scratch);
  auto& before = scratch.before;
  before.clear();
  for (const int id : bias_ids_) before.push_back({id, logits[id]});
  for (const Seen& seen : seen_) before.push_back({seen.id, logits[seen.id]});
  adjust(logits);
  int drawn = UNDECIDED;
  try {
    drawn = token(logits, u, scratch);
  } catch (const std::bad_alloc&) {
  }
  for (const auto& [id, logit] : before) logits[id] = logit;
  return drawn;
}

// Applies the penalties of the text followed by `path`.
void Sampler::follow(float* scores, const int64_t* path, int n_path) {
  const size_t known = seen_.size();
  std::vector<size_t> counted;  // of the path, to be taken back
  for (int i = 0; i < n_path; i++) {
    see(path[i], true);
    const auto at = place_.find((int)path[i]);
    if (at != place_.end()) counted.push_back((size_t)at->second);
  }
  adjust(scores);
  for (const size_t at : counted) seen_[at].count--;
  for (size_t i = known; i < seen_.size(); i++) place_.erase(seen_[i].id);
  seen_.resize(known);
}

// Bias, then the repetition penalty on all tokens of the text, then presence and frequency on the generated ones.
void Sampler::adjust(float* scores) const {
  for (size_t i = 0; i < bias_.size(); i++) scores[bias_ids_[i]] += bias_[i];
  const float repetition = (float)s_.repetition;
  if (repetition != 1)
    for (const Seen& seen : seen_) {
      float& score = scores[seen.id];
      score = score < 0 ? score * repetition : score / repetition;
    }
  if (s_.presence != 0 || s_.frequency != 0)
    for (const Seen& seen : seen_)
      if (seen.count) scores[seen.id] -= (float)(s_.presence + s_.frequency * seen.count);
}

int Draw::token(double u) {
  const int k = 0 < s_.top_k && s_.top_k < vocab_ && s_.temperature != 0 ? s_.top_k : 0;
  if (!find_top(k)) return UNDECIDED;
  if (s_.temperature == 0) return (int)(std::find(scores_, scores_ + vocab_, top_) - scores_);
  if (k) {
    collect_best(k);
    double total = 0;
    for (const Candidate& c : found_) total += c.weight;
    if (s_.top_p < 1 && !cut_nucleus(total, total * EXACT, true)) return UNDECIDED;
  } else if (s_.top_p < 1) {
    if (!take_nucleus_of_all()) return UNDECIDED;
  } else if (s_.min_p > 1e-30) {
    collect((float)(top_ + s_.temperature * (std::log(s_.min_p) - 1e-3)));
    weigh();
  } else {
    return pick_of_all(u);
  }
  return cut_least() ? pick(u) : UNDECIDED;
}

// The largest score, and `maxima_` of at least 4 k disjoint parts of the row; false: a score is NaN or +infinity, or
// none is finite.
bool Draw::find_top(int k) {
  const int width = k < vocab_ / 16 ? std::max(4 * k, 1) : 1;
  maxima_.resize((size_t)(width + MAXIMA_STEP - 1) / MAXIMA_STEP * MAXIMA_STEP);
  if (kernels_.maxima(scores_, vocab_, (int)maxima_.size(), maxima_.data())) return false;
  top_ = kernels_.reduce_max(maxima_.data(), (int)maxima_.size());
  return std::isfinite(top_);
}

// The finite scores from `least` on, without their weights.
void Draw::collect(float least) {
  found_.clear();
  least = std::max(least, LOWEST);
  int32_t at[BLOCK];
  for (int block = 0; block < vocab_; block += BLOCK) {
    const int n = kernels_.at_least(scores_ + block, std::min(BLOCK, vocab_ - block), least, at);
    for (int i = 0; i < n; i++) found_.push_back({scores_[block + at[i]], block + at[i], 0});
  }
}

// Finds the k best, and all that equal the last of them. The k-th largest of the maxima of disjoint parts is
// a lower bound that few scores reach.
void Draw::collect_best(int k) {
  float bound = NOTHING;
  const auto larger = std::greater<float>();
  if ((int)maxima_.size() >= 4 * k) {
    std::nth_element(maxima_.begin(), maxima_.begin() + (k - 1), maxima_.end(), larger);
    bound = maxima_[k - 1];
  }
  collect(bound);
  if ((int)found_.size() > k) {
    maxima_.clear();
    for (const Candidate& c : found_) maxima_.push_back(c.score);
    std::nth_element(maxima_.begin(), maxima_.begin() + (k - 1), maxima_.end(), larger);
    const float least = maxima_[k - 1];
    found_.erase(std::remove_if(found_.begin(), found_.end(), [&](const Candidate& c) { return c.score < least; }),
                 found_.end());
  }
  weigh();
}

// The sum of all weights; `sums_` by block.
double Draw::sum_of_all() {
  sums_.clear();
  double total = 0;
  for (int block = 0; block < vocab_; block += BLOCK) {
    const int end = std::min(vocab_, block + BLOCK);
    double sum = kernels_.sum_exp(scores_ + block, end - block, top_, (float)(1 / s_.temperature));
    if (!(sum == sum)) {  // forbidden tokens among them
      sum = 0;
      for (int i = block; i < end; i++)
        if (std::isfinite(scores_[i])) sum += weight(scores_[i]);
    }
    sums_.push_back(sum);
    total += sum;
  }
  return total;
}

bool Draw::take_nucleus_of_all() {
  if (s_.temperature < 1e-2 || s_.temperature > 1e2) return false;
  const double total = sum_of_all();
  for (const double share : {NEAR * (1 - s_.top_p), (1 - s_.top_p) / vocab_}) {
    collect((float)(top_ + s_.temperature * std::log(total * share)));
    weigh();
    if (cut_nucleus(total, total * LANES_ERROR, false)) return true;
  }
  return false;
}

// Keeps the likeliest of `found_` that hold top_p of `total`; false where that is not decided. closed: no
// other token has any weight.
bool Draw::cut_nucleus(double total, double error, bool closed) {
  ranked_ = found_;
  std::sort(ranked_.begin(), ranked_.end(), likelier);
  const double mass = s_.top_p * total;
  double before = 0;
  size_t n = 0;
  for (; n < ranked_.size(); n++) {
    if (n && before > mass + error) break;
    if (n && before >= mass - error) return false;
    before += ranked_[n].weight;
  }
  if (n == ranked_.size()) return closed || before > mass + error;
  const Candidate first = ranked_[n];  // of those that go
  found_.erase(std::remove_if(found_.begin(), found_.end(), [&](const Candidate& c) { return !likelier(c, first); }),
               found_.end());
  return true;
}

// Drops what min-p drops.
bool Draw::cut_least() {
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
int Draw::pick(double u) const {
  if (found_.size() == 1) return found_[0].id;
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
int Draw::pick_of_all(double u) {
  const double total = sum_of_all(), target = u * total, error = total * LANES_ERROR;
  double upto = 0;
  size_t block = 0;
  while (block + 1 < sums_.size() && upto + sums_[block] <= target) upto += sums_[block++];
  const int begin = (int)block * BLOCK, end = std::min(vocab_, begin + BLOCK);
  if (block && upto >= target - error) return UNDECIDED;
  for (int i = begin; i < end; i++) {
    if (!std::isfinite(scores_[i])) continue;
    upto += weight(scores_[i]);
    if (upto > target + error) return i;
    if (upto >= target - error) return UNDECIDED;
  }
  return UNDECIDED;
}

}  // namespace edgedec

struct ed_sampler {
  edgedec::Sampler sampler;
};

int edgedec::draw_in_place(ed_sampler& sampler, float* logits, double u, DrawScratch& scratch) {
  try {
    return sampler.sampler.draw_in_place(logits, u, scratch);
  } catch (...) {
    return UNDECIDED;
  }
}

void edgedec::keep_row(ed_sampler& sampler, const float* logits) { sampler.sampler.keep(logits); }

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

const float* ed_sampler_row(const ed_sampler* sampler) { return sampler->sampler.kept(); }
