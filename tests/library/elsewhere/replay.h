// Models and sessions of libedgedec for the programs of this folder.
#pragma once
#include <edgedec.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace replay {

inline void check(int status) {
  if (status) throw std::runtime_error(std::string(edgedec_status_name(status)) + ": " + edgedec_last_error());
}

class Model {
 public:
  Model(const std::string& path, const char* kv) {
    edgedec_open_options options;
    edgedec_open_options_init(&options, sizeof options);
    options.kv = kv, options.threads = 1;
    check(edgedec_open(path.c_str(), &options, &model_));
  }
  Model(const std::string& path, const edgedec_open_options& options) { check(edgedec_open(path.c_str(), &options, &model_)); }
  explicit Model(edgedec_model* made) : model_(made) {}
  Model(Model&& other) noexcept : model_(std::exchange(other.model_, nullptr)) {}
  ~Model() { edgedec_close(model_); }
  edgedec_model* get() const { return model_; }
  int32_t vocabulary() const {
    edgedec_model_info info{};
    check(edgedec_info(model_, &info, sizeof info));
    return info.vocab_size;
  }
  std::vector<int32_t> encode(const std::string& text) const {
    std::vector<int32_t> out(text.size() + 8);
    const int32_t n = edgedec_encode(model_, text.data(), (int64_t)text.size(), EDGEDEC_AROUND | EDGEDEC_SPECIAL, out.data(),
                                     (int32_t)out.size());
    check(n < 0 ? -n : 0);
    out.resize((size_t)n);
    return out;
  }

 private:
  edgedec_model* model_ = nullptr;
};

class Session {
 public:
  Session(const Model& model, const char* drafts) {
    edgedec_session_options options;
    edgedec_session_options_init(&options, sizeof options);
    options.speculate = drafts;
    check(edgedec_session_new(model.get(), &options, &session_));
  }
  Session(Session&& other) noexcept : session_(std::exchange(other.session_, nullptr)) {}
  ~Session() { edgedec_session_free(session_); }
  edgedec_session* get() const { return session_; }
  Session fork() const {
    edgedec_session* made = nullptr;
    check(edgedec_session_fork(session_, &made));
    return Session(made);
  }
  std::vector<int32_t> ids() const {
    std::vector<int32_t> out((size_t)edgedec_session_length(session_));
    edgedec_session_tokens(session_, 0, out.data(), (int32_t)out.size());
    return out;
  }

 private:
  explicit Session(edgedec_session* made) : session_(made) {}
  edgedec_session* session_ = nullptr;
};

inline edgedec_generate_options plain(int32_t max_tokens) {
  edgedec_generate_options options;
  edgedec_generate_options_init(&options, sizeof options);
  options.max_tokens = max_tokens;
  return options;
}

inline edgedec_result blank() {
  edgedec_result result = {};
  result.size = sizeof result;
  return result;
}

// The tokens that follow a text; null: that of the session.
inline std::vector<int32_t> generated(const Session& session, const std::vector<int32_t>* prompt, edgedec_generate_options options,
                                      edgedec_result* result) {
  std::vector<int32_t> out;
  options.token_user = &out;
  options.on_token = [](void* into, const edgedec_token* token) {
    if (token->id >= 0) static_cast<std::vector<int32_t>*>(into)->push_back(token->id);
    return 0;
  };
  check(edgedec_generate(session.get(), prompt ? prompt->data() : nullptr, prompt ? (int32_t)prompt->size() : 0, &options, result));
  return out;
}

// The main cases of the tests in Python; prints the name of each that is well, and returns how many are not.
int cases(const std::string& bundle, const std::string& packed, const std::string& scratch);

}  // namespace replay
