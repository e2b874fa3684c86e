#include "distribution.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "failure.h"

namespace edgedec::lib {

namespace {

// numpy's pairwise summation, for identical sums.
double sum(const double* x, size_t n) {
  if (n < 8) {
    double total = -0.0;
    for (size_t i = 0; i < n; i++) total += x[i];
    return total;
  }
  if (n <= 128) {
    double r[8];
    std::copy(x, x + 8, r);
    size_t i = 8;
    for (; i < n - n % 8; i += 8)
      for (int j = 0; j < 8; j++) r[j] += x[i + j];
    double total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; i++) total += x[i];
    return total;
  }
  size_t half = n / 2;
  half -= half % 8;
  return sum(x, half) + sum(x + half, n - half);
}

double sum(const std::vector<double>& x) { return sum(x.data(), x.size()); }

struct Kept {
  std::vector<int32_t> ids;
  std::vector<float> scores;
  std::vector<double> p;

  template <class Test>
  void keep(Test test) {
    size_t n = 0;
    for (size_t i = 0; i < ids.size(); i++)
      if (test(i)) ids[n] = ids[i], scores[n] = scores[i], p[n] = p[i], n++;
    ids.resize(n), scores.resize(n), p.resize(n);
  }
  void keep(const std::vector<char>& mask) {
    keep([&](size_t i) { return mask[i]; });
  }
  std::vector<double> normalized() const {
    std::vector<double> q = p;
    const double total = sum(q);
    for (double& x : q) x /= total;
    return q;
  }
};

// The tokens that remain after dropping the unlikeliest with a total of at most 1 - mass.
std::vector<char> nucleus(const std::vector<double>& p, const std::vector<float>& scores, double mass) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  // Tokens of at most (1 - mass) / n each cannot exceed 1 - mass together, so they need no sorting.
  const double most = *std::max_element(p.begin(), p.end());
  const double floor = std::min((1 - mass) / (double)p.size(), std::nextafter(most, 0.0));
  order.erase(std::remove_if(order.begin(), order.end(), [&](size_t i) { return !(p[i] > floor); }), order.end());
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  std::vector<double> rising;
  for (size_t i = order.size(); i-- > 0;) rising.push_back(p[order[i]]);
  double upto = 0;
  const double rest = sum(p) - sum(rising);
  size_t stay = 0;
  for (const double x : rising) {
    upto += x;
    stay += rest + upto > 1 - mass;
  }
  stay = std::max<size_t>(stay, 1);
  std::vector<char> keep(p.size(), 0);
  for (size_t i = 0; i < stay; i++) keep[order[i]] = 1;
  return keep;
}

// Locally typical sampling: the tokens whose surprise is nearest the entropy, the fewest that reach `mass`.
std::vector<char> typical(const std::vector<double>& p, double mass) {
  const size_t n = p.size();
  std::vector<double> surprise(n), far(n);
  for (size_t i = 0; i < n; i++) surprise[i] = -std::log(p[i]), far[i] = p[i] * surprise[i];
  const double entropy = sum(far);
  for (size_t i = 0; i < n; i++) far[i] = std::abs(surprise[i] - entropy);
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return far[a] < far[b]; });
  double upto = 0;
  size_t last = 0;
  for (const size_t i : order) {
    upto += p[i];
    last += upto < mass;
  }
  last = std::min(last, n - 1);
  std::vector<char> keep(n);
  for (size_t i = 0; i < n; i++) keep[i] = far[i] <= far[order[last]];
  return keep;
}

void check(const char* name, double value, double low, bool low_too, double high, bool high_too, const char* allowed) {
  if ((value > low || (low_too && value == low)) && (value < high || (high_too && value == high))) return;
  throw Failure(EDGEDEC_USAGE, std::string(name) + ": " + std::to_string(value) + " is out of range; allowed: " + allowed);
}

}  // namespace

Sampling read_sampling(const edgedec_sampling& a, int32_t vocab) {
  const double inf = std::numeric_limits<double>::infinity();
  check("temperature", a.temperature, 0, true, inf, false, "[0, inf)");
  check("top_p", a.top_p, 0, false, 1, true, "(0, 1]");
  check("min_p", a.min_p, 0, true, 1, true, "[0, 1]");
  check("typical_p", a.typical_p, 0, false, 1, true, "(0, 1]");
  check("repetition_penalty", a.repetition_penalty, 0, false, inf, false, "(0, inf)");
  check("presence_penalty", a.presence_penalty, -2, true, 2, true, "[-2, 2]");
  check("frequency_penalty", a.frequency_penalty, -2, true, 2, true, "[-2, 2]");
  if (a.top_k < 0) throw Failure(EDGEDEC_USAGE, "top_k: allowed: whole numbers from 0 on");
  if (a.n_bias < 0 || a.n_bias > vocab || (a.n_bias && (!a.bias_tokens || !a.bias)))
    throw Failure(EDGEDEC_USAGE, "n_bias: " + std::to_string(a.n_bias) + " is out of range, or without tokens");
  Sampling s;
  s.temperature = a.temperature, s.top_p = a.top_p, s.min_p = a.min_p, s.typical_p = a.typical_p;
  s.repetition = a.repetition_penalty, s.presence = a.presence_penalty, s.frequency = a.frequency_penalty;
  s.top_k = a.top_k;
  std::vector<std::pair<int32_t, float>> pairs;
  for (int32_t i = 0; i < a.n_bias; i++) {
    if (a.bias_tokens[i] < 0 || a.bias_tokens[i] >= vocab)
      throw Failure(EDGEDEC_USAGE, "logit_bias: token " + std::to_string(a.bias_tokens[i]) + " is outside the vocabulary of " +
                                       std::to_string(vocab));
    if (!(a.bias[i] < (float)inf)) throw Failure(EDGEDEC_USAGE, "logit_bias: a bias is out of range; allowed: [-inf, inf)");
    pairs.push_back({a.bias_tokens[i], a.bias[i]});
  }
  std::sort(pairs.begin(), pairs.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
  for (size_t i = 0; i < pairs.size(); i++) {
    if (i && pairs[i].first == pairs[i - 1].first) throw Failure(EDGEDEC_USAGE, "logit_bias: allowed: one bias for a token");
    s.bias_tokens.push_back(pairs[i].first), s.bias.push_back(pairs[i].second);
  }
  return s;
}

void adjust(std::vector<float>& scores, const Sampling& s, const int32_t* ids, int n, int prompt) {
  for (size_t i = 0; i < s.bias.size(); i++) scores[s.bias_tokens[i]] += s.bias[i];
  if (s.repetition == 1 && s.presence == 0 && s.frequency == 0) return;
  std::unordered_map<int32_t, int> seen;
  for (int i = 0; i < n; i++) seen[ids[i]] += i >= prompt;
  const float repetition = (float)s.repetition;
  for (const auto& [token, count] : seen) {
    if ((size_t)token >= scores.size()) continue;
    float& score = scores[token];
    if (repetition != 1) score = score < 0 ? score * repetition : score / repetition;
    if (count) score -= (float)(s.presence + s.frequency * count);
  }
}

void check_finite(float top) {
  if (!std::isfinite(top))
    throw Failure(EDGEDEC_USAGE, "logits: the largest is not finite; need at least one finite value and no NaN or +inf");
}

Distribution distribution(const float* scores, int vocab, const Sampling& s) {
  int best = 0;
  for (int i = 0; i < vocab; i++) {
    if (std::isnan(scores[i])) check_finite(scores[i]);
    if (scores[i] > scores[best]) best = i;
  }
  const float top = scores[best];
  check_finite(top);
  if (s.temperature == 0) return {{best}, {1.0}};
  float least = std::numeric_limits<float>::lowest();
  if (0 < s.top_k && s.top_k < vocab) {
    std::vector<float> all(scores, scores + vocab);
    std::nth_element(all.begin(), all.begin() + (s.top_k - 1), all.end(), std::greater<float>());
    least = std::max(least, all[s.top_k - 1]);
  }
  Kept kept;
  for (int i = 0; i < vocab; i++)
    if (scores[i] >= least) {
      const double p = std::exp(((double)scores[i] - top) / s.temperature);
      kept.ids.push_back(i), kept.scores.push_back(scores[i]), kept.p.push_back(p);
    }
  kept.keep([&](size_t i) { return kept.p[i] > 0; });
  if (s.top_p < 1) kept.keep(nucleus(kept.normalized(), kept.scores, s.top_p));
  if (s.min_p > 0) {
    const double bound = s.min_p * *std::max_element(kept.p.begin(), kept.p.end());
    kept.keep([&](size_t i) { return kept.p[i] >= bound; });
  }
  if (s.typical_p < 1) kept.keep(typical(kept.normalized(), s.typical_p));
  kept.p = kept.normalized();
  kept.keep([&](size_t i) { return kept.p[i] > 0; });
  return {std::move(kept.ids), std::move(kept.p)};
}

int32_t draw(const Distribution& d, double u) {
  if (d.ids.size() == 1) return d.ids[0];
  std::vector<double> upto = d.p;
  for (size_t i = 1; i < upto.size(); i++) upto[i] += upto[i - 1];
  const size_t i = (size_t)(std::upper_bound(upto.begin(), upto.end(), u * upto.back()) - upto.begin());
  return d.ids[std::min(i, d.ids.size() - 1)];
}

double log_total(const float* logits, int vocab) {
  const float top = *std::max_element(logits, logits + vocab);
  check_finite(top);
  std::vector<double> p(vocab);
  for (int i = 0; i < vocab; i++) p[i] = std::exp((double)logits[i] - top);
  return top + std::log(sum(p));
}

}  // namespace edgedec::lib
