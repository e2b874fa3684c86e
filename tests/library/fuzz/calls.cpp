#include "calls.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <limits>
#include <memory>

namespace fuzz {

namespace {

const double ODD[] = {0, 0.5, 1, 2, -1, 1e300, 1e-300, std::numeric_limits<double>::infinity(),
                      std::numeric_limits<double>::quiet_NaN(), 0.9};
const int32_t EDGES[] = {-1, 0, 1, 100, 101, INT32_MAX, INT32_MIN, 384};
const char* const DRAFTERS[] = {nullptr, "off", "auto", "copy", "copy+suffix", "trigram", "x", "", "+", "recycling"};
const char* const STOPS[] = {"e", "", "the", "\xC3"};

// One run of calls on some sessions of a model.
class Calls {
 public:
  Calls(edgedec_model* model, Input& input, const std::string& file) : model_(model), in_(input), file_(file) {
    edgedec_info(model, &info_, sizeof info_);
  }
  ~Calls() {
    for (edgedec_session* each : all_) edgedec_session_free(each);
  }
  int run() {
    int done = 0;
    for (int i = 0; i < 40 && in_.more(); i++) {
      done += one() == 0;
      if (float* logits = edgedec_logits(some())) logits[in_.below((size_t)info_.vocab_size)] += 1;
      while (all_.size() > 5) edgedec_session_free(all_[0]), all_.erase(all_.begin());
    }
    return done;
  }

 private:
  int32_t number() { return in_.below(3) ? (int32_t)in_.below((size_t)info_.vocab_size) : in_.of(EDGES); }
  edgedec_session* some() { return all_.empty() || !in_.below(50) ? nullptr : all_[in_.below(all_.size())]; }
  void read_tokens() {
    ids_.resize(in_.below(24));
    for (int32_t& id : ids_) id = in_.below(30) ? (int32_t)in_.below((size_t)info_.vocab_size) : number();
    n_ = in_.below(20) ? (int32_t)ids_.size() : std::min<int32_t>(number(), 0);
    given_ = in_.below(20) ? ids_.data() : nullptr;
  }
  void read_sampling() {
    edgedec_sampling_init(&sampling_, sizeof sampling_);
    if (in_.below(2)) return;
    sampling_.temperature = in_.of(ODD), sampling_.top_p = in_.of(ODD), sampling_.min_p = in_.of(ODD);
    sampling_.typical_p = in_.of(ODD), sampling_.repetition_penalty = in_.of(ODD), sampling_.top_k = number();
    bias_tokens_[0] = number(), bias_tokens_[1] = number();
    if (!in_.below(3)) sampling_.n_bias = 2, sampling_.bias_tokens = bias_tokens_, sampling_.bias = bias_;
    sampling_.seed = in_.byte(), sampling_.seeded = (int32_t)in_.below(2);
  }
  void read_options() {
    edgedec_generate_options_init(&options_, in_.below(10) ? sizeof options_ : odd_size());
    if (options_.size < 2 * sizeof(size_t)) return;
    options_.max_tokens = (int32_t)in_.below(8);  // a context that slides has no other end
    if (options_.size < sizeof options_) return;
    options_.min_tokens = in_.below(9) ? 0 : number();
    options_.text = (int32_t)in_.below(2), options_.logprobs = in_.below(4) ? -1 : number() % 50;
    options_.sampling = &sampling_, options_.ignore_eos = (int32_t)in_.below(2);
    stops_[0] = in_.of(STOPS), stops_[1] = in_.of(STOPS);
    if (!in_.below(4)) options_.stop = stops_, options_.n_stop = 2;
    if (!in_.below(30)) options_.constraint = "{}", options_.constraint_kind = in_.below(2) ? "json_schema" : "x";
  }
  // Of a structure: none, or one that an older header may have.
  size_t odd_size() { return in_.below(2) ? in_.below(sizeof(size_t)) : 2 * sizeof(size_t) + in_.below(sizeof options_ - 2 * sizeof(size_t)); }
  int keep(int status, edgedec_session* fresh) {
    if (fresh) all_.push_back(fresh);
    return status;
  }
  int fresh_session() {
    edgedec_session_options made;
    edgedec_session_options_init(&made, sizeof made);
    made.context = in_.below(3) ? (int32_t)in_.below(90) : number(), made.sinks = in_.below(2) ? -1 : (int32_t)in_.below(60);
    made.speculate = in_.of(DRAFTERS), made.draft = in_.below(4) ? (int32_t)in_.below(10) : number();
    edgedec_session* fresh = nullptr;
    const int status = edgedec_session_new(model_, &made, &fresh);
    return keep(status, fresh);
  }
  int fork() {
    edgedec_session* fresh = nullptr;
    const int status = edgedec_session_fork(some(), &fresh);
    return keep(status, fresh);
  }
  int many() {
    std::vector<edgedec_request> requests(in_.below(4));
    for (edgedec_request& r : requests) {
      r = {sizeof r, some(), ids_.data(), (int32_t)ids_.size(), 0, &options_, nullptr};
      if (!in_.below(4)) r.prompt = nullptr;
    }
    return edgedec_generate_many(requests.data(), (int32_t)requests.size());
  }
  int speak() {
    std::string text;
    for (size_t k = in_.below(30); k; k--) text += (char)in_.byte();
    int32_t out[8];
    char shown[16];
    edgedec_decode(model_, ids_.data(), (int32_t)ids_.size(), (int32_t)in_.below(4), shown, (int64_t)in_.below(17));
    return edgedec_encode(model_, text.data(), (int64_t)text.size(), (int32_t)in_.below(4), out, (int32_t)in_.below(9)) < 0;
  }
  int speak_on() {
    const char* const prompts[] = {"", "The ", "\xC3\xA9 <|endoftext|>", "\xFF\xFE", nullptr};
    return edgedec_generate_text(some(), in_.of(prompts), &options_, nullptr);
  }
  // What a program asks of a session or of a model, with room enough or not.
  int ask() {
    edgedec_session* session = some();
    edgedec_memory_use use;
    edgedec_model_info info;
    edgedec_sampling suggested;
    int32_t out[8];
    const auto length = edgedec_session_length(session), cached = edgedec_session_cached(session);
    if (cached > length || cached > edgedec_session_context(session) || cached < 0) std::abort();
    const int32_t room = in_.below(10) ? (int32_t)in_.below(9) : std::min(number(), 8), from = in_.below(9) ? (int32_t)in_.below(20) : number();
    if (edgedec_session_tokens(session, from, out, room) > std::max(room, 0)) std::abort();
    edgedec_eos(model_, out, (int32_t)in_.below(3));
    use.size = in_.below(9) ? sizeof use : in_.below(sizeof use);
    edgedec_info(model_, &info, in_.below(9) ? sizeof info : in_.below(sizeof info));
    return edgedec_memory(model_, &use, use.size) | edgedec_suggested_sampling(model_, &suggested, in_.below(9) ? sizeof suggested : in_.below(sizeof suggested));
  }
  // Saves a session and loads it into another, which may have another context.
  int store() {
    if (in_.below(8)) return ask();  // files are slow
    if (const int status = edgedec_session_save(some(), file_.c_str())) return status;
    return edgedec_session_load(some(), file_.c_str());
  }
  int one() {
    read_tokens(), read_sampling(), read_options();
    int32_t token = 0;
    switch (in_.below(18)) {
      case 0: return fresh_session();
      case 1: return fork();
      case 2: return edgedec_prefill(some(), given_, n_);
      case 3: return edgedec_step(some(), number());
      case 4: return edgedec_step_many(all_.data(), ids_.data(), std::min<int32_t>((int32_t)all_.size(), (int32_t)ids_.size()));
      case 5: return edgedec_sample(some(), &sampling_, &token);
      case 6: return edgedec_score(some(), given_, n_, std::vector<double>(ids_.size() + 1).data());
      case 7: return edgedec_session_append(some(), given_, n_);
      case 8: return edgedec_session_truncate(some(), (int32_t)in_.below(60) - 1);
      case 9: return many();
      case 10: return speak();
      case 11: return edgedec_cancel(some()), edgedec_session_seed(some(), in_.byte());
      case 12: return edgedec_trim(model_);
      case 13: return speak_on();
      case 14: return ask();
      case 15: return store();
      default: {
        edgedec_result result;
        result.size = in_.below(20) ? sizeof result : in_.below(200);
        return edgedec_generate(some(), given_, n_, &options_, &result);
      }
    }
  }

  edgedec_model* const model_;
  Input& in_;
  const std::string& file_;
  edgedec_model_info info_;
  std::vector<edgedec_session*> all_;
  std::vector<int32_t> ids_;
  const int32_t* given_ = nullptr;
  int32_t n_ = 0, bias_tokens_[2] = {0, 0};
  const float bias_[2] = {1, -2};
  const char* stops_[2] = {"e", "e"};
  edgedec_sampling sampling_;
  edgedec_generate_options options_;
};

}  // namespace

void converse(edgedec_model* model) {
  int32_t ids[64];
  char text[64];
  const int32_t n = edgedec_encode(model, "Once <|endoftext|> \xC3\xA9 12 it's", -1, EDGEDEC_AROUND | EDGEDEC_SPECIAL, ids, 64);
  edgedec_decode(model, ids, n < 0 ? 0 : std::min(n, 64), 0, text, sizeof text);
  for (int what = -1; what < 10; what++) (void)*edgedec_model_string(model, what);
  edgedec_session_options options;
  edgedec_session_options_init(&options, sizeof options);
  options.context = 16;
  edgedec_session* session = nullptr;
  const int32_t some[] = {3, 1, 4};
  if (!edgedec_session_new(model, &options, &session)) edgedec_prefill(session, some, 3), edgedec_step(session, 3);
  edgedec_session_free(session);
}

int call_anything(edgedec_model* model, Input& input, const std::string& file) { return Calls(model, input, file).run(); }

}  // namespace fuzz
