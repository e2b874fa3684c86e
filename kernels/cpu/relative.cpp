#include "relative.h"

#include <algorithm>

namespace edgedec {

namespace {

constexpr int PIECE = 64;  // rows of a text that are multiplied by a table at once

}  // namespace

RelativeScores::RelativeScores(Engine& engine, const ed_attention& m) : engine_(engine), m_(m), s_(engine.shared<Scratch>()) {}

bool RelativeScores::possible(const ed_attention& m) {
  if (m.heads != m.kv_heads || m.relative_length < 1 || !m.relative_rows || (!m.relative_k && !m.relative_q)) return false;
  const int32_t *rows = m.relative_rows, *end = rows + 2 * (size_t)m.relative_length - 1;
  return *rows >= 0 && end[-1] < 2 * (int64_t)m.relative && std::is_sorted(rows, end);
}

void RelativeScores::compute(const BlockCall& call, const float* q, const float* k, int64_t width) {
  prepare(call);
  const int tasks = (int)s_.pieces.size() * m_.heads;
  // Queries write the rows of their texts, keys add to the columns.
  engine_.pool().parallel_for(tasks, 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; i++) by_queries(call, s_.pieces[i / m_.heads], i % m_.heads, q, width, thread);
  });
  if (!m_.relative_q) return;
  engine_.pool().parallel_for(tasks, 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; i++) by_keys(call, s_.pieces[i / m_.heads], i % m_.heads, k, width, thread);
  });
}

void RelativeScores::prepare(const BlockCall& call) {
  s_.at.clear(), s_.pieces.clear(), longest_ = 0;
  size_t size = 0;
  for (size_t i = 0; i < call.sequences.size(); i++) {
    const int n = call.sequences[i].rows;
    s_.at.push_back(size);
    size += (size_t)n * m_.heads * stride(n);
    longest_ = std::max(longest_, n);
    for (int first = 0; first < n; first += PIECE) s_.pieces.push_back({i, first, std::min(PIECE, n - first)});
  }
  const int most = m_.relative_length - 1;
  s_.rows.resize(2 * (size_t)longest_);
  for (int apart = 1 - longest_; apart < longest_; apart++)
    s_.rows[apart + longest_ - 1] = m_.relative_rows[std::clamp(apart, -most, most) + most];
  s_.scores.need(size);
  if (longest_) s_.threads.need((size_t)engine_.pool().size() * PIECE * (m_.head_dim + used(longest_)));
}

const float* RelativeScores::products(const Piece& piece, const float* table, int head, const float* x, int64_t width, int n,
                                      int thread) {
  const int d = m_.head_dim;
  float* rows = s_.threads.p + (size_t)thread * PIECE * (d + used(longest_));
  for (int i = 0; i < piece.count; i++) std::copy_n(x + i * width + (int64_t)head * d, d, rows + (size_t)i * d);
  Product p{};
  const float* from = table + ((size_t)head * 2 * m_.relative + row(1 - n)) * d;
  p.w = {F32, ROWS, used(n), d, 0, 0, (const uint8_t*)from, nullptr, nullptr};
  p.a.x = rows, p.rows = piece.count, p.out = rows + (size_t)PIECE * d, p.stride = used(n);
  engine_.kernels().product(p, 0, p.w.groups(), engine_.scratch(thread));
  return p.out;
}

void RelativeScores::by_queries(const BlockCall& call, const Piece& piece, int head, const float* q, int64_t width,
                                int thread) {
  const SequenceRows& s = call.sequences[piece.sequence];
  const int n = s.rows, first = row(1 - n), all = used(n);
  const int64_t wide = stride(n);
  const float* found = nullptr;
  if (m_.relative_k) found = products(piece, m_.relative_k, head, q + (s.row + piece.first) * width, width, n, thread);
  for (int i = 0; i < piece.count; i++) {
    float* out = s_.scores.p + s_.at[piece.sequence] + ((size_t)(piece.first + i) * m_.heads + head) * wide;
    std::fill_n(out, wide, 0.0f);
    if (!found) continue;
    const float* of = found + (size_t)i * all;
    const int32_t* rows = s_.rows.data() + longest_ - 1 + piece.first + i;  // of a distance at rows[-key]
    for (int j = 0; j < n; j++) out[j] = m_.scale * of[rows[-j] - first];
  }
}

void RelativeScores::by_keys(const BlockCall& call, const Piece& piece, int head, const float* k, int64_t width, int thread) {
  const SequenceRows& s = call.sequences[piece.sequence];
  const int n = s.rows, first = row(1 - n), all = used(n);
  const int64_t wide = stride(n);
  const float* found = products(piece, m_.relative_q, head, k + (s.row + piece.first) * width, width, n, thread);
  for (int i = 0; i < n; i++) {
    float* out = s_.scores.p + s_.at[piece.sequence] + ((size_t)i * m_.heads + head) * wide + piece.first;
    const int32_t* rows = s_.rows.data() + longest_ - 1 + i - piece.first;
    for (int j = 0; j < piece.count; j++) out[j] += m_.scale * found[(size_t)j * all + rows[-j] - first];
  }
}

}  // namespace edgedec
