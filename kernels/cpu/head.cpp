// The last norm and the vocabulary: all logits, or only the best of each row.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine.h"

namespace edgedec {

void Engine::head(const ed_call& call) {
  Matrix w = matrix(m_.head);
  const int rows = call.rows - call.head_from;
  normed(call.hidden + (size_t)call.head_from * m_.hidden, rows, m_.final_norm, w);
  Product p{};
  p.w = w, p.a = rows_for(w, x_.p), p.rows = rows, p.softcap = m_.final_softcap;
  if (call.logits) {
    p.out = call.logits, p.stride = m_.vocab;
    multiply(w, p);
  }
  if (!call.top) return;
  const int width = HEAD_STRIP * LANES;
  const size_t all = (size_t)team_.size() * rows * call.top;
  std::fill_n(best_.p, all, Best{-std::numeric_limits<float>::infinity(), -1});
  team_.share(w.groups(), HEAD_STRIP, [&](int begin, int end, int thread) {
    float* strip = strip_.p + (size_t)thread * rows * width;
    for (int group = begin; group < end; group += HEAD_STRIP) {
      int from = group * LANES, count = std::min(m_.vocab - from, width);
      if (!call.logits) {
        Product part = p;
        part.out = strip - from, part.stride = width;
        k_.product(part, group, std::min(end, group + HEAD_STRIP), scratch_.p + thread * scratch_stride_);
      }
      for (int r = 0; r < rows; r++) {
        const float* logits = call.logits ? call.logits + (size_t)r * m_.vocab + from : strip + (size_t)r * width;
        best_of(call, r, logits, from, count, thread);
      }
    }
  });
  team_.share(rows, 1, [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) merge_best(call, r);
  });
}

// The better of two: the larger logit; of equals the smaller token.
static bool better(float logit, int32_t id, float than, int32_t than_id) {
  return logit > than || (logit == than && (uint32_t)id < (uint32_t)than_id);
}

// Logits from .. from + count - 1 of a row, taken into the thread's best ones (kept in order).
void Engine::best_of(const ed_call& call, int row, const float* logits, int from, int count, int thread) {
  Best* best = best_.p + ((size_t)thread * (call.rows - call.head_from) + row) * call.top;
  Best& least = best[call.top - 1];
  if (k_.most_of(logits, count) < least.logit) return;
  for (int i = 0; i < count; i++) {
    if (!better(logits[i], from + i, least.logit, least.id)) continue;
    int at = call.top - 1;
    for (; at && better(logits[i], from + i, best[at - 1].logit, best[at - 1].id); at--) best[at] = best[at - 1];
    best[at] = {logits[i], from + i};
  }
}

void Engine::merge_best(const ed_call& call, int row) {
  const int rows = call.rows - call.head_from, top = call.top;
  Best* all = best_.p + (size_t)row * top;
  for (int t = 1; t < team_.size(); t++) {
    const Best* other = best_.p + ((size_t)t * rows + row) * top;
    for (int j = 0; j < top && other[j].id >= 0; j++) {
      int at = top;
      for (; at && better(other[j].logit, other[j].id, all[at - 1].logit, all[at - 1].id); at--)
        if (at < top) all[at] = all[at - 1];
      if (at < top) all[at] = other[j];
    }
  }
  for (int j = 0; j < top; j++) {
    call.top_ids[(size_t)row * top + j] = std::isfinite(all[j].logit) ? all[j].id : -1;
    if (call.top_logits) call.top_logits[(size_t)row * top + j] = all[j].logit;
  }
}

}  // namespace edgedec
