#include "session.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "adapter.h"
#include "drafting.h"
#include "failure.h"

namespace edgedec::lib {

// ---- choosing tokens -------------------------------------------------------------------------------

Chooser::Chooser(const Sampling& sampling, int32_t vocab)
    : sampling_(sampling), vocab_(vocab), adjusts_(sampling.adjusts()) {
  if (sampling.typical_p < 1) return;
  const Sampling& s = sampling_;
  const ed_sampling asked{s.temperature, s.top_p, s.min_p, s.repetition, s.presence, s.frequency,
                          s.top_k < vocab ? s.top_k : 0, (int32_t)s.bias.size(), s.bias_tokens.data(), s.bias.data()};
  sampler_.reset(ed_sampler_new(&asked, vocab));
  if (!sampler_) throw std::bad_alloc();
}

void Chooser::read(const std::vector<int32_t>& ids, int prompt) {
  if (!adjusts_ || (length_ == ids.size() && prompt_ == prompt)) return;
  if (prompt_ == prompt && length_ < ids.size()) {
    for (size_t i = length_; i < ids.size(); i++) {
      if (sampler_ && ed_sampler_accept(sampler_.get(), ids[i])) throw std::bad_alloc();
      ids_.push_back(ids[i]);
    }
  } else {
    ids_ = ids;
    const std::vector<int64_t> wide(ids.begin(), ids.end());
    if (sampler_ && ed_sampler_read(sampler_.get(), wide.data(), (int)wide.size(), prompt)) throw std::bad_alloc();
  }
  length_ = ids.size(), prompt_ = prompt;
}

int32_t Chooser::choose(const float* logits, const std::vector<int64_t>& path, double u) {
  const int token = sampler_ ? ed_sampler_draw(sampler_.get(), logits, path.data(), (int)path.size(), u) : -1;
  return token >= 0 ? token : decide(logits, path, u);
}

// Draws a token that the sampler does not decide.
int32_t Chooser::decide(const float* logits, const std::vector<int64_t>& path, double u) const {
  std::vector<float> scores(logits, logits + vocab_);
  if (adjusts_) {
    std::vector<int32_t> ids = ids_;
    ids.insert(ids.end(), path.begin(), path.end());
    adjust(scores, sampling_, ids.data(), (int)ids.size(), prompt_);
  }
  return draw(distribution(scores.data(), vocab_, sampling_), u);
}

// ---- sessions --------------------------------------------------------------------------------------

namespace {

int checked_capacity(const Model& model, const edgedec_session_options& options) {
  const int64_t limit = model.spec().context;
  if (options.context < 0 || options.context > limit)
    throw Failure(EDGEDEC_USAGE, "context " + std::to_string(options.context) + ": must be from 1 to " +
                                     std::to_string(limit) + ", the model's limit");
  return options.context ? options.context : (int)limit;
}

int checked_sinks(const Model& model, const edgedec_session_options& options) {
  const int quarter = checked_capacity(model, options) / 4;
  if (options.sinks < -1 || options.sinks > quarter)
    throw Failure(EDGEDEC_USAGE, "sinks " + std::to_string(options.sinks) + ": must be from 0 to " +
                                     std::to_string(quarter) + ", a quarter of the context, or -1");
  return options.sinks;
}

}  // namespace

Session::Session(std::shared_ptr<Model> model, const edgedec_session_options& options)
    : model_(std::move(model)), capacity_(checked_capacity(*model_, options)), sinks_(checked_sinks(*model_, options)) {
  if (options.adapter) {
    adapter_ = options.adapter->adapter;
    if (&adapter_->model() != model_.get()) throw Failure(EDGEDEC_USAGE, "adapter: opened for another model");
  }
  cache_ = model_->new_cache(capacity_);
  ids_.reserve((size_t)capacity_ + 1);
  drafting_ = make_drafting(*model_, options.speculate ? options.speculate : "off", options.draft);
  model_->sessions++;
}

Session::Session(const Session& other)
    : rng(other.rng),
      model_(other.model_),
      capacity_(other.capacity_),
      sinks_(other.sinks_),
      adapter_(other.adapter_),
      cache_(ed_cache_fork(other.cache_.get(), ed_cache_length(other.cache_.get()), other.capacity_)),
      prompt_(other.prompt_),
      long_(other.long_),
      logits_(other.logits_),
      has_logits_(other.has_logits_) {
  if (!cache_) throw std::bad_alloc();
  ids_.reserve((size_t)capacity_ + 1);
  ids_ = other.ids_;
  if (other.drafting_) drafting_ = other.drafting_->fork();
  model_->sessions++;
}

Session::~Session() { model_->sessions--; }

const ed_adapter* Session::engine_adapter() const { return adapter_ ? adapter_->engine() : nullptr; }

void Session::check_tokens(const int32_t* tokens, int32_t n) const {
  if (n < 0 || (n && !tokens)) throw Failure(EDGEDEC_USAGE, "tokens: no tokens, or less than none");
  for (int32_t i = 0; i < n; i++)
    if (tokens[i] < 0 || tokens[i] >= model_->vocab())
      throw Failure(EDGEDEC_USAGE, "token " + std::to_string(tokens[i]) + " is outside the vocabulary of " +
                                       std::to_string(model_->vocab()));
}

void Session::read(const int32_t* tokens, int32_t n) {
  check_tokens(tokens, n);
  const size_t most = std::min(ids_.size(), (size_t)n);
  const int same = std::min((int)(std::mismatch(ids_.begin(), ids_.begin() + (ptrdiff_t)most, tokens).first - ids_.begin()), cached());
  if (same < cached()) ed_cache_truncate(cache_.get(), same);
  has_logits_ = has_logits_ && same == n && cached() == n;
  ids_.assign(tokens, tokens + n);
  prompt_ = n;
  suit(n);
  if (model_->keeps_prefixes() && !adapter_) model_->find_prefix(cache_.get(), ids_, cached(), long_);
  if (drafting_) drafting_->reset();
}

void Session::append(const int32_t* tokens, int32_t n) {
  check_tokens(tokens, n);
  ids_.insert(ids_.end(), tokens, tokens + n);
  prompt_ = (int)ids_.size();
  has_logits_ = has_logits_ && !n;
}

void Session::truncate(int length) {
  if (length < 0 || length > (int)ids_.size())
    throw Failure(EDGEDEC_USAGE, "length " + std::to_string(length) + ": the text has " + std::to_string(ids_.size()) + " tokens");
  if (length == (int)ids_.size()) return;
  ids_.resize((size_t)length);
  prompt_ = std::min(prompt_, length);
  if (cached() > length) ed_cache_truncate(cache_.get(), length);
  has_logits_ = false;
  if (drafting_) drafting_->reset();
}

void Session::push(int32_t token) {
  ids_.push_back(token);
  has_logits_ = false;
}

void Session::make_room() {
  if (sinks_ < 0)
    throw Failure(EDGEDEC_FULL, std::to_string(ids_.size()) + " tokens do not fit a context of " + std::to_string(capacity_) +
                                    ": shorten the prompt, ask for fewer tokens, or let the context slide (sinks)");
  const int latest = std::max(capacity_ / 2 - sinks_, 1), dropped = (int)ids_.size() - sinks_ - latest;
  ids_.erase(ids_.begin() + sinks_, ids_.end() - latest);
  prompt_ = std::max(prompt_ - dropped, std::min(prompt_, sinks_));
  ed_cache_truncate(cache_.get(), 0);
  has_logits_ = false;
  if (drafting_) drafting_->reset();
}

void Session::suit(int length) {
  const int64_t original = model_->spec().original;
  if (!original || long_ == (length > original)) return;
  ed_cache_truncate(cache_.get(), 0);
  long_ = length > original, has_logits_ = false;
}

// By the positions of what the cache holds.
bool Session::cached_long() {
  const ModelSpec& spec = model_->spec();
  for (size_t b = 0; spec.original && b < spec.blocks.size(); b++) {
    std::vector<int64_t> positions((size_t)ed_cache_slots(cache_.get(), (int)b));
    if (spec.blocks[b].kind != KIND_ATTENTION || positions.empty()) continue;
    ed_cache_positions(cache_.get(), (int)b, positions.data());
    return positions[0] >= spec.original;
  }
  return false;
}

int Session::rope_room() const {
  const int64_t original = model_->spec().original;
  return original && !long_ ? (int)std::max<int64_t>(0, original - (int64_t)ids_.size()) : std::numeric_limits<int>::max();
}

void Session::uncache_last() {
  if (cached() >= (int)ids_.size()) ed_cache_truncate(cache_.get(), (int)ids_.size() - 1);
}

void Session::commit(const int64_t* rows, int n) {
  if (ed_cache_commit(cache_.get(), rows, n)) throw Failure(EDGEDEC_MEMORY, "the cache cannot keep these rows");
}

void Session::keep_prefix() {
  if (!adapter_ && model_->keeps_prefixes()) model_->keep_prefix(cache_.get(), ids_, long_);
}

void Session::rows(ed_sequence& call, int count, int room) {
  const int length = cached(), all = count + room;
  if ((int)tokens_.size() < all) tokens_.resize((size_t)all), positions_.resize((size_t)all);
  const int64_t start = length + (long_ ? model_->spec().original : 0);
  for (int i = 0; i < count; i++) tokens_[(size_t)i] = ids_[(size_t)(length + i)], positions_[(size_t)i] = start + i;
  call = {};
  call.rows = count, call.n_blocks = -1, call.logits_from = -1;
  call.cache = cache_.get();
  call.tokens = tokens_.data(), call.positions = positions_.data();
  call.adapter = engine_adapter();
}

void Session::check_cancelled() const {
  if (cancelled.load(std::memory_order_relaxed)) throw Failure(EDGEDEC_CANCELLED, "cancelled");
}

void Session::prefill(edgedec_progress progress, void* user, int more) {
  if (ids_.empty()) throw Failure(EDGEDEC_USAGE, "nothing to compute: give at least one token");
  if (has_logits_ && !pending()) return;
  has_logits_ = false;
  if ((int)ids_.size() > capacity_) make_room();
  suit((int)ids_.size() + more);
  uncache_last();
  logits_.resize((size_t)model_->vocab());
  while (pending()) {
    check_cancelled();
    ed_sequence call;
    const int n = std::min(pending(), CHUNK), last = n == pending();
    rows(call, n);
    if (last) call.logits_from = n - 1, call.logits = logits_.data();
    model_->run(&call, 1);
    commit(nullptr, n);
    has_logits_ = last;
    if (progress && progress(user, (uint64_t)cached(), ids_.size())) throw Failure(EDGEDEC_CANCELLED, "cancelled");
  }
}

void Session::begin_step(int32_t token, ed_sequence& call) {
  check_tokens(&token, 1);
  if (pending()) prefill(nullptr, nullptr);
  if ((int)ids_.size() + 1 > capacity_ && sinks_ < 0)
    throw Failure(EDGEDEC_FULL, "the context of " + std::to_string(capacity_) + " tokens is full");
  push(token);
  if ((int)ids_.size() > capacity_) make_room();
  suit((int)ids_.size());
  if (pending() > 1) {  // all but the new token is read again
    ids_.pop_back();
    prefill(nullptr, nullptr, 1);
    push(token);
  }
  logits_.resize((size_t)model_->vocab());
  rows(call, 1);
  call.logits_from = 0, call.logits = logits_.data();
}

void Session::end_step(bool done) {
  if (!done) {
    ids_.pop_back();
    return;
  }
  commit(nullptr, 1);
  has_logits_ = true;
}

int32_t Session::sample(const Sampling& s) {
  if (!has_logits_) throw Failure(EDGEDEC_USAGE, "no logits: call edgedec_prefill() or edgedec_step() first");
  const auto same = [&](const Sampling& o) {
    return o.temperature == s.temperature && o.top_p == s.top_p && o.min_p == s.min_p && o.typical_p == s.typical_p &&
           o.repetition == s.repetition && o.presence == s.presence && o.frequency == s.frequency && o.top_k == s.top_k &&
           o.bias_tokens == s.bias_tokens && o.bias == s.bias;
  };
  if (!chooser_ || !same(chooser_->sampling())) chooser_ = std::make_unique<Chooser>(s, model_->vocab());
  chooser_->read(ids_, prompt_);
  return chooser_->choose(logits_.data(), {}, s.temperature > 0 ? rng.next() : 0.0);
}

// On a fork, so that this session does not change.
void Session::score(const int32_t* tokens, int32_t n, double* out) {
  check_tokens(tokens, n);
  if (ids_.empty()) throw Failure(EDGEDEC_USAGE, "nothing to score after: give the session at least one token");
  if ((int64_t)ids_.size() + n > (int64_t)capacity_ + 1)
    throw Failure(EDGEDEC_FULL, std::to_string(ids_.size() + (size_t)n) + " tokens do not fit a context of " + std::to_string(capacity_));
  if (!n) return;
  Session twin(*this);
  twin.uncache_last();
  const int first = (int)ids_.size() - 1;  // the row that token 0 is scored by
  twin.ids_.insert(twin.ids_.end(), tokens, tokens + n - 1);
  twin.suit((int)twin.ids_.size());
  std::vector<float> some;
  while (twin.pending()) {
    check_cancelled();
    ed_sequence call;
    const int from = twin.cached(), count = std::min(twin.pending(), 64), skip = std::clamp(first - from, 0, count);
    twin.rows(call, count);
    some.resize((size_t)(count - skip) * (size_t)model_->vocab());
    if (skip < count) call.logits_from = skip, call.logits = some.data();
    model_->run(&call, 1);
    twin.commit(nullptr, count);
    for (int row = skip; row < count; row++) {
      const float* logits = some.data() + (size_t)(row - skip) * (size_t)model_->vocab();
      const int at = from + row - first;
      out[at] = (double)logits[tokens[at]] - log_total(logits, model_->vocab());
    }
  }
}

Use::Use(Session& session) : session_(session) {
  if (session.busy.exchange(true, std::memory_order_acquire))
    throw Failure(EDGEDEC_BUSY, "the session is in use by another thread; use one thread at a time, or a fork");
  session.cancelled.store(false, std::memory_order_relaxed);
}

}  // namespace edgedec::lib
