// The steps of decoding: the call, the choice of tokens, commits. Drafts are verified by following the model's own
// choices through the tree, with one random number a token, so that texts are those of plain decoding. Python's
// `edgedec.decoding.step` does the same for any runtime and any settings.
#include "step.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "sample.h"

namespace edgedec {

namespace {

constexpr int UNDECIDED = -1, MEMORY = -2;

}  // namespace

Governing* Step::decide() {
  if (!governing_.active()) return nullptr;
  if (!governing_.begun()) drafted_ = false, governing_.begin(context());
  return &governing_;
}

// The rows of a governed step whose result the drafters get: the last token, and the guesses that run below it.
void Step::take_draft() {
  const std::vector<int32_t>& nodes = governing_.nodes();
  const size_t n = 1 + nodes.size();
  tokens_.assign(1, pending_), positions_.assign(1, context()), parents_.assign(1, -1);
  for (const int32_t node : nodes) {
    const int parent = governing_.tree().parent(node);
    // Nodes are ascending.
    const auto above = std::lower_bound(nodes.begin(), nodes.end(), parent) - nodes.begin();
    const size_t row = parent < 0 ? 0 : (size_t)above + 1;
    tokens_.push_back(governing_.tree().token(node));
    positions_.push_back(positions_[row] + 1), parents_.push_back((int64_t)row);
  }
  const int top = std::max<int>(governing_.state().top, s_.sampler ? 0 : 1);
  best_.resize(n * (size_t)top), scores_.resize(n * (size_t)top);
  draft_ = ed_sequence{};
  draft_.rows = (int32_t)n, draft_.top = top;
  draft_.tokens = tokens_.data(), draft_.positions = positions_.data(), draft_.parents = parents_.data();
  if (top) draft_.top_ids = best_.data(), draft_.top_scores = scores_.data();
  drafted_ = true;
}

int32_t Step::by(int row) const {
  if (!governing_.active() || row < 1 || row > (int)governing_.nodes().size()) return 0;
  return governing_.tree().by(governing_.nodes()[(size_t)row - 1]);
}

ed_sequence Step::call() {
  if (governing_.active() && governing_.learns()) take_draft();
  ed_sequence call = drafted_ ? draft_ : ed_sequence{};
  call.first = 0, call.n_blocks = -1, call.logits_from = 0, call.cache = s_.cache, call.adapter = s_.adapter;
  if (drafted_) {
    if (!s_.sampler) return call;
    logits_.reset(new float[(size_t)call.rows * (size_t)s_.vocab]);
    call.logits = logits_.get();
    return call;
  }
  position_ = ed_cache_length(s_.cache);
  call.rows = 1, call.tokens = &pending_, call.positions = &position_;
  if (!s_.sampler) {
    call.top = 1, call.top_ids = &largest_;
    return call;
  }
  if (!numbered_) result_.at = number(), numbered_ = true;
  call.sampler = s_.sampler, call.drawn = &drawn_, call.draw_at = result_.at;
  return call;
}

int32_t Step::finish(int64_t rows) {
  rows_ = rows;
  path_.assign(1, 0), picked_.clear();
  numbered_ = false, result_.undecided = 0;
  if (!follow()) return UNDECIDED;
  return complete() ? MEMORY : (int32_t)picked_[0];
}

int Step::decide(int64_t token) {
  result_.undecided = 0;
  if (take(token) && !follow()) return 0;
  return complete();
}

// Chooses tokens from the last accepted row on; false: one is not decided.
bool Step::follow() {
  int64_t token;
  do {
    const int row = (int)path_.back();
    token = choose(row);
    if (token >= 0) continue;
    result_.undecided = 1;
    result_.path = path_.data(), result_.picked = picked_.data(), result_.accepted = (int32_t)picked_.size();
    return false;
  } while (take(token));
  return true;
}

// Appends a token; returns whether the tree has it, so that the one after it can be chosen.
bool Step::take(int64_t token) {
  const int below = drafted_ ? child((int)path_.back(), token) : -1;
  picked_.push_back(token);
  if (below < 0) return false;
  path_.push_back(below);
  if (!ends(token)) return true;
  picked_.push_back(-1);
  return false;
}

// The token after a row, at the end of the tokens picked so far; negative: undecided.
int64_t Step::choose(int row) {
  if (!s_.sampler) return drafted_ ? draft_.top_ids[(size_t)row * (size_t)draft_.top] : largest_;
  if (!drafted_) return drawn_;
  result_.at = number();
  const float* logits = logits_.get() + (size_t)row * (size_t)s_.vocab;
  const int token = ed_sampler_draw(s_.sampler, logits, picked_.data(), (int)picked_.size(), result_.at);
  if (token < 0) keep_row(*s_.sampler, logits);
  return token;
}

double Step::number() {
  if (!s_.random) return 0;
  result_.numbers++;
  return s_.random(s_.random_state);
}

bool Step::ends(int64_t token) const { return std::find(ends_.begin(), ends_.end(), token) != ends_.end(); }

// The first row below another one with this token; -1: there is none.
int Step::child(int row, int64_t token) const {
  for (int i = row + 1; i < draft_.rows; i++)
    if (draft_.parents[i] == row && draft_.tokens[i] == token) return i;
  return -1;
}

// All tokens are chosen: commits the first row.
int Step::complete() {
  logits_.reset();
  result_.path = path_.data(), result_.picked = picked_.data(), result_.accepted = (int32_t)picked_.size();
  pending_ = picked_[0];
  if (const int wrong = ed_cache_commit(s_.cache, nullptr, 1)) return wrong;
  if (!governing_.active()) return 0;
  for (const int64_t token : picked_)
    if (token >= 0) pending_ = token;
  ed_verified seen{};
  seen.picked = picked_.data(), seen.path = path_.data(), seen.accepted = (int32_t)picked_.size(), seen.rows = 1;
  if (drafted_) {
    seen.tokens = tokens_.data(), seen.parents = parents_.data(), seen.rows = draft_.rows;
    if (draft_.top) seen.top_ids = best_.data(), seen.top_scores = scores_.data(), seen.top = draft_.top;
  }
  governing_.end(seen, rows_);
  return 0;
}

}  // namespace edgedec

struct ed_step {
  edgedec::Step step;
};

ed_step* ed_step_new(const ed_step_settings* settings) {
  try {
    return new ed_step{edgedec::Step(*settings)};
  } catch (...) {
    return nullptr;
  }
}

void ed_step_free(ed_step* step) { delete step; }

const ed_step_result* ed_step_results(const ed_step* step) { return &step->step.result(); }

void ed_step_start(ed_step* step, int64_t token) { step->step.start(token); }

void ed_step_draft(ed_step* step, const ed_sequence* rows) { step->step.draft(*rows); }

int ed_step_govern(ed_step* step, ed_governor* governor, const int32_t* more, int n) {
  try {
    step->step.govern(governor, more, n);
    return 0;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

int32_t ed_step_by(const ed_step* step, int row) { return step->step.by(row); }

namespace {

// `text_cells` of edgedec/decoding/allocation.py.
int64_t cells_of(const ed_sequence& call) {
  return call.cache ? (int64_t)ed_cache_length(call.cache) * (3 + call.rows) / 4 : 0;
}

// The calls of all steps after those of others, with the drafts that governed steps run.
void prepare(const ed_steps& run, std::vector<ed_sequence>& calls) {
  std::vector<edgedec::Governing*> governed;
  edgedec::OtherRows others;
  for (const ed_sequence& call : calls) {
    if (call.n_blocks >= 0) continue;  // part of a draft in progress
    others.rows += call.rows;
    others.cells += cells_of(call);
    if (call.logits_from >= 0) others.decoding += call.rows - call.logits_from, others.tokens++;
  }
  for (int i = 0; i < run.n; i++) {
    edgedec::Step& step = run.steps[i]->step;
    if (edgedec::Governing* text = step.decide()) governed.push_back(text);
    else others.rows++, others.decoding++, others.tokens++, others.cells += step.context();
  }
  allocate(governed, others);
  for (int i = 0; i < run.n; i++) calls.push_back(run.steps[i]->step.call());
}

}  // namespace

int ed_steps_run(ed_steps* run) {
  try {
    std::vector<ed_sequence> calls(run->others, run->others + run->n_others);
    prepare(*run, calls);
    run->rows = run->cells = run->drafts = 0, run->spent = 0;
    for (const ed_sequence& call : calls) run->rows += call.rows, run->cells += cells_of(call);
    const auto began = std::chrono::steady_clock::now();
    if (const int wrong = ed_run(run->engine, calls.data(), (int)calls.size())) return wrong;
    run->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  } catch (const std::bad_alloc&) {
    return -1;
  }
  for (int i = 0; i < run->n; i++) {
    edgedec::Step& step = run->steps[i]->step;
    try {
      run->tokens[i] = step.finish(run->rows);
      const edgedec::Governing* text = step.governing();
      if (text && run->tokens[i] >= 0) run->spent += text->spent(), run->drafts += !text->nodes().empty();
    } catch (const std::bad_alloc&) {
      run->tokens[i] = edgedec::MEMORY;
    }
  }
  return 0;
}

int ed_step_decide(ed_step* step, int64_t token) {
  try {
    return step->step.decide(token);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
