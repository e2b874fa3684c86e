// The last norm and the vocabulary: all logits, the best of each row, the log of the sum of exp(logit), and a token drawn
// from the logits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine.h"

namespace edgedec {

namespace {

constexpr int HEAD_STRIP = 32;  // groups of the vocabulary between two searches for better tokens
constexpr int STRIP_WIDTH = HEAD_STRIP * LANES;
constexpr int BEST_PART = 16;  // logits that are passed over together where none is among the best
// Rows of logits that tokens are drawn from at a time: for a small vocabulary, whose weights are soon read
// again, and for others.
constexpr int DRAW_ROWS = 16, MANY_DRAW_ROWS = 64, SMALL_VOCAB = 1 << 14;

// Of two the better: the larger logit; of equals the smaller token.
bool better(float logit, int32_t id, float than, int32_t than_id) {
  return logit > than || (logit == than && (uint32_t)id < (uint32_t)than_id);
}

// The n-th largest of a strip's parts, 1 <= n <= count; NaNs come last.
float nth_largest(const float* parts, int count, int n) {
  float sorted[STRIP_WIDTH / BEST_PART];
  std::copy_n(parts, count, sorted);
  const auto before = [](float a, float b) { return a > b || (a == a && b != b); };
  std::nth_element(sorted, sorted + n - 1, sorted + count, before);
  return sorted[n - 1];
}

}  // namespace

// The rows of all sequences that the head, or a readout, runs on, in the order of the call.
void Engine::head_rows(const ed_sequence* sequences, int n, const ed_readout* readout) {
  head_rows_.clear(), top_ = 0, draws_ = 0, logsums_ = false;
  for (int i = 0; i < n; i++) {
    const ed_sequence& s = sequences[i];
    if (s.readout != readout || s.logits_from < 0 || s.logits_from >= s.rows || !(s.logits || s.top || s.logsum || s.entropy || s.sampler))
      continue;
    const auto planned = std::find_if(planned_.begin(), planned_.end(), [&](const Planned& p) { return p.asked == &s; });
    top_ = std::max(top_, s.top), logsums_ |= s.logsum || s.entropy;
    for (int r = s.logits_from; r < s.rows; r++) {
      const size_t at = r - s.logits_from;
      head_rows_.push_back({hidden_.p + (size_t)(planned->row + r) * model_.hidden,
                            s.logits ? s.logits + at * model_.vocab : nullptr, s.top ? s.top_ids + at * s.top : nullptr,
                            s.top && s.top_scores ? s.top_scores + at * s.top : nullptr,
                            s.logsum ? s.logsum + at : nullptr, s.entropy ? s.entropy + at : nullptr, s.top, s.temperature > 0 ? s.temperature : 1, nullptr});
    }
    if (s.sampler) head_rows_.back().drawing = &s, draws_++;
  }
}

// Sequences that share a readout share its product.
void Engine::head(const ed_sequence* sequences, int n) {
  head_of(sequences, n, nullptr);
  for (int i = 0; i < n; i++) {
    const ed_readout* readout = sequences[i].readout;
    const auto same = [readout](const ed_sequence& s) { return s.readout == readout; };
    if (readout && std::find_if(sequences, sequences + i, same) == sequences + i) head_of(sequences, n, readout);
  }
}

void Engine::head_of(const ed_sequence* sequences, int n, const ed_readout* readout) {
  head_rows(sequences, n, readout);
  if (head_rows_.empty()) return;
  const int rows = (int)head_rows_.size();
  Product p{};
  p.w = matrix(readout ? readout->head : model_.head), p.rows = rows, p.softcap = model_.final_softcap;
  p.a = norm_head(p.w);
  p.bias = readout ? nullptr : model_.head_bias;
  if (only_draws()) return draw_in_parts(p);
  draw_apart();
  bool in_place = true;  // all rows' logits are wanted, one after another
  for (int r = 0; r < rows; r++)
    in_place = in_place && head_rows_[r].logits && head_rows_[r].logits == head_rows_[0].logits + (size_t)r * model_.vocab;
  if (in_place) {
    p.out = head_rows_[0].logits, p.stride = model_.vocab;
    multiply(p);
  }
  if (!in_place || top_ || logsums_) strips(p, in_place);
  if (top_ || logsums_)
    pool_.parallel_for(rows, 1, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        if (head_rows_[r].top) merge_best(r, readout ? readout->ids : nullptr);
        if (head_rows_[r].logsum || head_rows_[r].entropy) merge_sums(r);
      }
    });
  if (draws_) draw(0, rows);
}

// Whether only a token of each row is requested.
bool Engine::only_draws() const {
  return draws_ == (int)head_rows_.size() && !top_ && !logsums_ &&
         std::none_of(head_rows_.begin(), head_rows_.end(), [](const HeadRow& row) { return row.logits; });
}

// For a small vocabulary, so few rows of logits at a time that they are still in the caches when tokens are
// drawn from them.
void Engine::draw_in_parts(const Product& p) {
  const int most = std::min(p.rows, model_.vocab <= SMALL_VOCAB ? DRAW_ROWS : MANY_DRAW_ROWS);
  drawn_.need((size_t)most * model_.vocab);
  for (int from = 0; from < p.rows; from += most) {
    Product part = p;
    part.rows = std::min(most, p.rows - from), part.out = drawn_.p, part.stride = model_.vocab;
    part.a.records += from * p.a.row_bytes(), part.a.x += (size_t)from * p.w.k;
    multiply(part);
    for (int r = 0; r < part.rows; r++) head_rows_[from + r].logits = drawn_.p + (size_t)r * model_.vocab;
    draw(from, part.rows);
  }
}

// Room for the logits of rows that are drawn from beside others.
void Engine::draw_apart() {
  drawn_.need((size_t)draws_ * model_.vocab);
  float* own = drawn_.p;
  for (HeadRow& row : head_rows_)
    if (row.drawing && !row.logits) row.logits = own, own += model_.vocab;
}

void Engine::draw(int from, int n) {
  pool_.parallel_for(n, 1, [&](int begin, int end, int thread) {
    for (int r = from + begin; r < from + end; r++)
      if (const ed_sequence* s = head_rows_[r].drawing)
        *s->drawn = draw_in_place(*s->sampler, head_rows_[r].logits, s->draw_at, draws_of_[thread]);
  });
  for (int r = from; r < from + n; r++)
    if (const ed_sequence* s = head_rows_[r].drawing)
      if (*s->drawn < 0) keep_row(*s->sampler, head_rows_[r].logits);
}

// Processes the vocabulary strip by strip; `made`: the logits are computed already.
void Engine::strips(const Product& p, bool made) {
  const int rows = p.rows, n_strips = (p.w.groups() + HEAD_STRIP - 1) / HEAD_STRIP;
  const size_t best = (size_t)pool_.size() * rows * top_;
  if (!made) strip_.need((size_t)pool_.size() * rows * STRIP_WIDTH);
  if (logsums_) sums_.need((size_t)rows * n_strips);
  best_.need(best);
  std::fill_n(best_.p, best, Best{-std::numeric_limits<float>::infinity(), -1});
  pool_.parallel_for(p.w.groups(), HEAD_STRIP, [&](int begin, int end, int thread) {
    float* strip = strip_.p + (size_t)thread * rows * STRIP_WIDTH;
    for (int group = begin; group < end; group += HEAD_STRIP) {
      const int from = group * LANES, count = std::min(p.w.n - from, STRIP_WIDTH);
      if (!made) {
        Product part = p;
        part.out = strip - from, part.stride = STRIP_WIDTH;
        kernels_.product(part, group, std::min(end, group + HEAD_STRIP), scratch(thread));
      }
      for (int r = 0; r < rows; r++) {
        float* logits = head_rows_[r].logits ? head_rows_[r].logits + from : nullptr;
        const float* of_strip = made ? logits : strip + (size_t)r * STRIP_WIDTH;
        if (!made && logits) std::memcpy(logits, of_strip, (size_t)count * 4);
        if (head_rows_[r].top) take_best(r, of_strip, from, count, thread);
        if (head_rows_[r].logsum || head_rows_[r].entropy)
          sums_.p[(size_t)r * n_strips + group / HEAD_STRIP] = strip_sum(r, of_strip, count);
      }
    }
  });
}

// The largest of a strip's logits, and the sum of exp((logit - largest) / temperature).
Engine::StripSum Engine::strip_sum(int r, const float* logits, int count) const {
  const float max = kernels_.reduce_max(logits, count), scale = (float)(1 / head_rows_[r].temperature);
  StripSum found{max, kernels_.sum_exp(logits, count, max, scale), 0};
  if (!head_rows_[r].entropy) return found;
  float weights[STRIP_WIDTH];
  kernels_.exp_shifted(logits, count, max, weights);
  for (int i = 0; i < count; i++)
    if (weights[i] > 0) found.weighted += (double)weights[i] * ((double)logits[i] - max);
  return found;
}

// Logits from .. from + count - 1 of a row, taken into the thread's best ones (kept in order). Parts that hold none of them
// are passed over: those whose largest is below the worst of the best, or, as long as there are too few of these, below the
// largest of `top` other parts.
void Engine::take_best(int r, const float* logits, int from, int count, int thread) {
  const int top = head_rows_[r].top, parts = (count + BEST_PART - 1) / BEST_PART;
  Best* best = best_.p + ((size_t)thread * head_rows_.size() + r) * top_;
  Best& least = best[top - 1];
  if (kernels_.reduce_max(logits, count) < least.logit) return;
  float largest[STRIP_WIDTH / BEST_PART];
  for (int i = 0; i < parts; i++)
    largest[i] = kernels_.reduce_max(logits + i * BEST_PART, std::min(BEST_PART, count - i * BEST_PART));
  const float floor = least.id < 0 && parts > top ? nth_largest(largest, parts, top) : -std::numeric_limits<float>::infinity();
  for (int part = 0; part < parts; part++) {
    if (largest[part] < floor || largest[part] < least.logit) continue;
    for (int i = part * BEST_PART; i < std::min(count, (part + 1) * BEST_PART); i++) {
      if (!better(logits[i], from + i, least.logit, least.id)) continue;
      int at = top - 1;
      for (; at && better(logits[i], from + i, best[at - 1].logit, best[at - 1].id); at--) best[at] = best[at - 1];
      best[at] = {logits[i], from + i};
    }
  }
}

// ids: the tokens of a readout's rows; null: a row's number is its token.
void Engine::merge_best(int r, const int32_t* ids) {
  const int rows = (int)head_rows_.size(), top = head_rows_[r].top;
  Best* all = best_.p + (size_t)r * top_;
  for (int t = 1; t < pool_.size(); t++) {
    const Best* other = best_.p + ((size_t)t * rows + r) * top_;
    for (int j = 0; j < top && other[j].id >= 0; j++) {
      int at = top;
      for (; at && better(other[j].logit, other[j].id, all[at - 1].logit, all[at - 1].id); at--)
        if (at < top) all[at] = all[at - 1];
      if (at < top) all[at] = other[j];
    }
  }
  for (int j = 0; j < top; j++) {
    const int32_t id = std::isfinite(all[j].logit) ? all[j].id : -1;
    head_rows_[r].ids[j] = id >= 0 && ids ? ids[id] : id;
    if (head_rows_[r].scores) head_rows_[r].scores[j] = all[j].logit;
  }
}

// Strips are merged in order, whichever thread made them.
void Engine::merge_sums(int r) {
  const int n = (matrix(model_.head).groups() + HEAD_STRIP - 1) / HEAD_STRIP;
  const StripSum* strips = sums_.p + (size_t)r * n;
  const double temperature = head_rows_[r].temperature;
  float max = strips[0].max;
  for (int i = 1; i < n; i++) max = std::max(max, strips[i].max);
  double sum = 0;
  for (int i = 0; i < n; i++) sum += strips[i].sum * std::exp(((double)strips[i].max - max) / temperature);
  if (head_rows_[r].logsum) *head_rows_[r].logsum = max / temperature + std::log(sum);
  if (!head_rows_[r].entropy) return;
  double whole = 0, weighted = 0;
  for (int i = 0; i < n; i++) {
    const double shift = (double)strips[i].max - max, scale = std::exp(shift);
    if (scale > 0) whole += strips[i].sum * scale, weighted += scale * (strips[i].weighted + strips[i].sum * shift);
  }
  *head_rows_[r].entropy = std::log(whole) - weighted / whole;
}

}  // namespace edgedec
