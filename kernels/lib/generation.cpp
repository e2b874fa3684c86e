#include "generation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "constraint.h"
#include "failure.h"
#include "tokenizer.h"

namespace edgedec::lib {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Generation::Generation(Session& session, const int32_t* prompt, int32_t n, const edgedec_generate_options* options,
                       edgedec_result* result)
    : session_(session),
      options_(given(options, edgedec_generate_options_init)),
      result_(result),
      sampling_(read_sampling(given(options_.sampling, edgedec_sampling_init), session.model().vocab())),
      left_(options_.max_tokens < 0 ? std::numeric_limits<int64_t>::max() : options_.max_tokens),
      min_left_(options_.min_tokens),
      began_(seconds_now()) {
  check_options();
  ends_.assign(options_.stop_tokens, options_.stop_tokens + options_.n_stop_tokens);
  const auto& eos = session.model().bundle().manifest.text.eos;
  if (!options_.ignore_eos) ends_.insert(ends_.end(), eos.begin(), eos.end());
  const bool plain = sampling_.takes_largest() && options_.logprobs < 0 && !options_.min_tokens && !options_.on_logits && !constraint_;
  if (!plain) chooser_ = std::make_unique<Chooser>(sampling_, session.model().vocab());
  const bool texts = options_.text || options_.n_stop;
  const Tokenizer* tokenizer = texts ? &session.model().tokenizer() : nullptr;
  std::vector<std::string> stops(options_.stop, options_.stop + options_.n_stop);
  if (prompt) session.read(prompt, n);
  if (session.ids().empty()) throw Failure(EDGEDEC_USAGE, "nothing to continue: give at least one token");
  if (options_.sampling && options_.sampling->seeded) session.rng = Pcg64(options_.sampling->seed);
  if (texts) text_ = std::make_unique<TextStream>(*tokenizer, std::move(stops), session.ids());
  session.suit((int)session.ids().size());
  counts_.size = sizeof counts_;
  counts_.prompt = (int32_t)session.ids().size(), counts_.cached = session.cached();
}

Generation::~Generation() = default;

void Generation::check_options() {
  const edgedec_generate_options& o = options_;
  if (o.min_tokens < 0) throw Failure(EDGEDEC_USAGE, "min_tokens: must be 0 or more");
  if (o.logprobs > 100) throw Failure(EDGEDEC_USAGE, "logprobs: must be from 0 to 100, or -1");
  if (o.n_stop_tokens < 0 || (o.n_stop_tokens && !o.stop_tokens)) throw Failure(EDGEDEC_USAGE, "stop_tokens: none are there");
  if (o.n_stop < 0 || (o.n_stop && !o.stop)) throw Failure(EDGEDEC_USAGE, "stop: no strings are there");
  for (int32_t i = 0; i < o.n_stop; i++)
    if (!o.stop[i] || !*o.stop[i]) throw Failure(EDGEDEC_USAGE, "stop: allowed: a list of non-empty strings");
  if (o.sampling && o.sampling->seeded && o.sampling->seed > (uint64_t)std::numeric_limits<int64_t>::max())
    throw Failure(EDGEDEC_USAGE, "seed: must be below 2^63");
  if (o.constraint || o.constraint_kind) constraint_ = make_constraint(session_.model(), o.constraint_kind, o.constraint);
}

bool Generation::is_end(int32_t token) const { return std::find(ends_.begin(), ends_.end(), token) != ends_.end(); }

// ---- a call ----------------------------------------------------------------------------------------

bool Generation::next(int sequences) {
  if (ended_) return false;
  if (session_.cancelled.load(std::memory_order_relaxed)) throw Failure(EDGEDEC_CANCELLED, "cancelled");
  if (constraint_ && constraint_->done()) return finish(EDGEDEC_EOS), false;
  if (left_ <= 0) return finish(EDGEDEC_LENGTH), false;
  if ((int)session_.ids().size() > session_.capacity()) {
    if (counts_.generated && options_.max_tokens < 0 && !session_.slides()) return finish(EDGEDEC_CONTEXT), false;
    session_.make_room();
  }
  session_.suit((int)session_.ids().size());
  session_.uncache_last();
  const int pending = session_.pending();
  piece_ = pending > Session::CHUNK;
  draft_.clear();
  governing_ = nullptr;
  if (piece_) {
    n_rows_ = Session::CHUNK;
    return true;
  }
  root_ = pending - 1;
  if (Drafting* drafting = session_.drafting(); drafting) {
    const int64_t space = std::min<int64_t>(session_.capacity() - (int64_t)session_.ids().size(), session_.rope_room());
    const int64_t room = std::max<int64_t>(0, std::min(space, left_ == std::numeric_limits<int64_t>::max() ? space : left_ - 1));
    const int most = (int)std::min<int64_t>(room, Drafting::MOST);
    governing_ = drafting->decide(session_.ids(), session_.prompt(), root_ > 0, most, sequences);
  }
  return true;
}

void Generation::make(ed_sequence& call) {
  if (piece_) {
    session_.rows(call, n_rows_);
    forward_began_ = seconds_now();
    return;
  }
  const int pending = root_ + 1;
  Drafting* drafting = session_.drafting();
  if (drafting) drafting->take(draft_);
  const int drafted = (int)draft_.tokens.size();
  n_rows_ = pending + drafted;
  session_.rows(call, pending, drafted);
  if (drafting) {
    parents_.resize((size_t)n_rows_);
    for (int i = 0; i < pending; i++) parents_[(size_t)i] = i - 1;
  }
  for (int i = 0; i < drafted; i++) {
    const int parent = draft_.parents[(size_t)i] < 0 ? root_ : pending + draft_.parents[(size_t)i], row = pending + i;
    parents_[(size_t)row] = parent;
    session_.row_tokens()[row] = draft_.tokens[(size_t)i];
    session_.row_positions()[row] = session_.row_positions()[parent] + 1;
  }
  if (drafted) call.rows = n_rows_, call.parents = parents_.data();
  prepare_outputs(call, root_, n_rows_ - root_);
  forward_began_ = seconds_now();
}

void Generation::prepare_outputs(ed_sequence& call, int root, int rows) {
  call.logits_from = root;
  const size_t vocab = (size_t)session_.model().vocab();
  top_ = session_.drafting() ? std::min<int>(session_.drafting()->top(), (int)vocab) : 0;
  if (!chooser_) top_ = std::max(top_, 1);
  if (top_) {
    top_ids_.resize((size_t)(rows * top_)), top_scores_.resize((size_t)(rows * top_));
    call.top = top_, call.top_ids = top_ids_.data(), call.top_scores = top_scores_.data();
  }
  if (chooser_) {
    logits_.resize((size_t)rows * vocab);
    call.logits = logits_.data();
  }
}

void Generation::done(int rows) {
  forward_seconds_ = seconds_now() - forward_began_;
  counts_.forward_seconds += forward_seconds_;
  if (piece_) {
    session_.commit(nullptr, n_rows_);
    const auto& ids = session_.ids();
    if (options_.on_progress && options_.on_progress(options_.progress_user, (uint64_t)session_.cached(), ids.size()))
      throw Failure(EDGEDEC_CANCELLED, "cancelled");
    return;
  }
  counts_.calls++;
  const Pcg64 before = session_.rng;
  verify();
  session_.commit(nullptr, root_ + 1);
  if (!read_) read_ = seconds_now() - began_;
  if (Drafting* drafting = session_.drafting())
    drafting->observe(session_.row_tokens(), parents_.data(), n_rows_, root_, path_, picked_, top_ ? top_ids_.data() : nullptr,
                      top_scores_.data(), top_, rows, forward_seconds_);
  counts_.drafted += (int32_t)draft_.tokens.size(), counts_.accepted += (int32_t)path_.size() - 1;
  // A token's random number is drawn when the token is handed out, as plain decoding does.
  if (sampling_.temperature > 0) session_.rng = before;
  const size_t n = (size_t)std::min<int64_t>((int64_t)picked_.size(), left_);
  for (size_t at = 0; at < n; at++)
    if (emit(at) == ENDED) return;
  left_ -= left_ == std::numeric_limits<int64_t>::max() ? 0 : (int64_t)picked_.size();
}

// ---- verification ----------------------------------------------------------------------------------

// Follows the model's tokens down the draft tree.
void Generation::verify() {
  path_.assign(1, 0), picked_.clear(), tokens_of_path_.clear();
  const int drafted = (int)draft_.tokens.size();
  for (int row = 0;;) {
    const int32_t token = pick(row, tokens_of_path_);
    picked_.push_back(token);
    if (is_end(token)) return;  // what follows is never seen
    int child = -1;
    for (int i = row; i < drafted && child < 0; i++)
      if (draft_.parents[(size_t)i] == row - 1 && draft_.tokens[(size_t)i] == token) child = i + 1;
    if (child < 0) return;
    tokens_of_path_.push_back(token);
    path_.push_back(row = child);
  }
}

// The token after a row of the tree (0: the root), to which `path` leads.
int32_t Generation::pick(int row, const std::vector<int64_t>& path) {
  if (!chooser_) {
    const int32_t largest = top_ids_[(size_t)(row * top_)];
    if (largest < 0) check_finite(std::numeric_limits<float>::quiet_NaN());
    return largest;
  }
  const double u = sampling_.temperature > 0 ? session_.rng.next() : 0.0;
  chooser_->read(session_.ids(), session_.prompt());
  shape(row, path);
  return chooser_->choose(shaped_.empty() ? logits_.data() + (size_t)row * (size_t)session_.model().vocab() : shaped_.data(),
                          path, u);
}

// The logits of a row after the program's callback and min_tokens; `shaped_` stays empty if neither changes them.
void Generation::shape(int row, const std::vector<int64_t>& path) {
  const size_t vocab = (size_t)session_.model().vocab();
  const bool early = (int64_t)path.size() < min_left_ && !ends_.empty();
  if (!options_.on_logits && !early && !constraint_) return shaped_.clear();
  const float* logits = logits_.data() + (size_t)row * vocab;
  shaped_.assign(logits, logits + vocab);
  if (options_.on_logits) {
    std::vector<int32_t> text = session_.ids();
    text.insert(text.end(), path.begin(), path.end());
    if (const int wrong = options_.on_logits(options_.logits_user, text.data(), (int32_t)text.size(), shaped_.data()))
      throw Failure(EDGEDEC_STOP == wrong ? EDGEDEC_CANCELLED : wrong, "on_logits returned " + std::to_string(wrong));
  }
  if (constraint_) constraint_->mask(path, shaped_.data());
  constexpr float NONE = -std::numeric_limits<float>::infinity();
  bool more = !constraint_;  // else the text is complete where nothing but an end is left
  for (size_t token = 0; early && !more && token < vocab; token++) more = shaped_[token] > NONE && !is_end((int32_t)token);
  for (const int32_t token : ends_)
    if (early && more && token >= 0 && (size_t)token < vocab) shaped_[(size_t)token] = NONE;
}

// ---- tokens ----------------------------------------------------------------------------------------

Generation::Outcome Generation::emit(size_t at) {
  if (at) {
    const int64_t row = root_ + path_[at];
    session_.commit(&row, 1);
  }
  if (sampling_.temperature > 0) session_.rng.next();
  const int32_t token = picked_[at];
  if (is_end(token)) return finish(EDGEDEC_EOS), ENDED;
  session_.push(token);
  counts_.generated++, min_left_--;
  if (constraint_) constraint_->accept(token);
  if (hand_out(token, path_[at], at + 1 < path_.size()) == ENDED) return ENDED;
  if (constraint_ && constraint_->done()) return finish(EDGEDEC_EOS), ENDED;
  return GOES_ON;
}

Generation::Outcome Generation::hand_out(int32_t id, int row, bool drafted) {
  edgedec_token token{};
  token.size = sizeof token, token.id = id, token.drafted = drafted, token.text = "";
  std::string text;
  const bool stopped = text_ && text_->push(id, text);
  token.text = text.c_str(), token.text_bytes = text.size();
  if (options_.logprobs >= 0) fill_logprobs(token, row);
  const bool enough = options_.on_token && options_.on_token(options_.token_user, &token);
  if (stopped) return ended_ = true, counts_.finish = EDGEDEC_STOP, ENDED;
  if (enough) return ended_ = true, counts_.finish = EDGEDEC_STOPPED, ENDED;
  if (session_.cancelled.load(std::memory_order_relaxed)) throw Failure(EDGEDEC_CANCELLED, "cancelled");
  return GOES_ON;
}

void Generation::fill_logprobs(edgedec_token& token, int row) {
  const int vocab = session_.model().vocab(), n = std::min(options_.logprobs, vocab);
  const float* logits = logits_.data() + (size_t)row * (size_t)vocab;
  const double total = log_total(logits, vocab);
  token.logprob = (double)logits[token.id] - total;
  logprob_ids_.resize((size_t)vocab);
  std::iota(logprob_ids_.begin(), logprob_ids_.end(), 0);
  std::partial_sort(logprob_ids_.begin(), logprob_ids_.begin() + n, logprob_ids_.end(), [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  logprobs_.clear();
  for (int i = 0; i < n; i++) logprobs_.push_back((double)logits[logprob_ids_[(size_t)i]] - total);
  token.n_top = n, token.top_tokens = logprob_ids_.data(), token.top_logprobs = logprobs_.data();
}

void Generation::finish(int how) {
  ended_ = true, counts_.finish = how;
  flush_text();
}

// Emits held-back text at the end.
void Generation::flush_text() {
  if (!text_) return;
  std::string text;
  if (text_->flush(text)) counts_.finish = EDGEDEC_STOP;
  if (text.empty() || !options_.on_token) return;
  edgedec_token token{};
  token.size = sizeof token, token.id = -1, token.text = text.c_str(), token.text_bytes = text.size();
  options_.on_token(options_.token_user, &token);
}

void Generation::end() {
  session_.rollback();
  counts_.prompt_seconds = read_, counts_.seconds = seconds_now() - began_;
  if (result_) {
    size_t known;
    std::memcpy(&known, &result_->size, sizeof known);
    std::memcpy((char*)result_ + sizeof known, (const char*)&counts_ + sizeof known,
                std::min(known, sizeof counts_) - sizeof known);
  }
  session_.keep_prefix();
}

// ---- several of them -------------------------------------------------------------------------------

namespace {

// Does `work` for one generation; false, its status and message set, if it failed.
template <class Work>
bool tried(Work work, int& status, std::string& message) {
  try {
    work();
    return true;
  } catch (const Failure& failure) {
    status = failure.status, message = failure.message;
  } catch (const std::bad_alloc&) {
    status = EDGEDEC_MEMORY, message = "not enough memory";
  }
  return false;
}

}  // namespace

void grant_rows(const std::vector<Generation*>& texts) {
  std::vector<Governing*> governed;
  OtherRows others;
  for (const Generation* text : texts) {
    if (text->governing()) {
      governed.push_back(text->governing());
      continue;
    }
    others.rows += text->pending(), others.cells += (int64_t)text->cached() * (3 + text->pending()) / 4;
    others.decoding++, others.tokens++;
  }
  allocate(governed, others);
}

void run_generations(const std::vector<Generation*>& all, std::vector<int>& statuses, std::vector<std::string>& messages) {
  std::vector<size_t> live(all.size());
  std::iota(live.begin(), live.end(), 0);
  while (!live.empty()) {
    std::vector<Generation*> texts;
    for (const size_t i : live) texts.push_back(all[i]);
    std::vector<ed_sequence> calls;
    std::vector<size_t> of = make_calls(texts, calls, [&](size_t n, auto work) {
      return tried(work, statuses[live[n]], messages[live[n]]);
    });
    for (size_t& i : of) i = live[i];
    live.clear();
    if (calls.empty()) break;
    int status = EDGEDEC_OK;
    std::string message;
    const int rows = rows_of(calls);
    const bool ran = tried([&] { all[of[0]]->session().model().run(calls.data(), (int)calls.size()); }, status, message);
    for (const size_t i : of) {
      if (!ran) statuses[i] = status, messages[i] = message;
      else if (tried([&] { all[i]->done(rows); }, statuses[i], messages[i])) live.push_back(i);
    }
  }
  for (size_t i = 0; i < all.size(); i++) tried([&] { all[i]->end(); }, statuses[i], messages[i]);
}

}  // namespace edgedec::lib
