// One text, its cache, its random numbers: edgedec.Session in Python.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "distribution.h"
#include "model.h"
#include "random.h"

namespace edgedec::lib {

class Adapter;
class Drafting;

struct SamplerFree {
  void operator()(ed_sampler* sampler) const { ed_sampler_free(sampler); }
};

// Chooses the tokens of one text by its settings.
class Chooser {
 public:
  Chooser(const Sampling& sampling, int32_t vocab);
  const Sampling& sampling() const { return sampling_; }
  // Reads the text `ids`, of which the first `prompt` were given, as far as it is new.
  void read(const std::vector<int32_t>& ids, int prompt);
  // The token after the text and `path`, at `u` of the distribution; logits [vocab].
  int32_t choose(const float* logits, const std::vector<int64_t>& path, double u);

 private:
  int32_t decide(const float* logits, const std::vector<int64_t>& path, double u) const;

  const Sampling sampling_;
  const int32_t vocab_;
  std::unique_ptr<ed_sampler, SamplerFree> sampler_;  // null: typical sampling, which it does not support
  std::vector<int32_t> ids_;                          // of penalties: the text
  size_t length_ = 0;
  int prompt_ = -1;
  bool adjusts_;
};

class Session {
 public:
  Session(std::shared_ptr<Model> model, const edgedec_session_options& options);
  Session(const Session& other);  // a fork
  ~Session();

  Model& model() { return *model_; }
  const std::vector<int32_t>& ids() const { return ids_; }
  int prompt() const { return prompt_; }
  int capacity() const { return capacity_; }
  int cached() const { return ed_cache_length(cache_.get()); }
  int pending() const { return (int)ids_.size() - cached(); }
  bool slides() const { return sinks_ >= 0; }
  float* logits() { return has_logits_ ? logits_.data() : nullptr; }
  ed_cache* cache() { return cache_.get(); }
  const ed_adapter* engine_adapter() const;
  Drafting* drafting() { return drafting_.get(); }
  Pcg64 rng;
  std::atomic<bool> cancelled{false}, busy{false};

  // Tokens of the vocabulary; throws Failure(EDGEDEC_USAGE).
  void check_tokens(const int32_t* tokens, int32_t n) const;
  // Makes these the text; the cache keeps what they share with the text before.
  void read(const int32_t* tokens, int32_t n);
  void append(const int32_t* tokens, int32_t n);
  void truncate(int length);
  void push(int32_t token);  // a generated one
  // For a full context: keeps the first tokens and the latest, to be read again; throws Failure(EDGEDEC_FULL) if it may not.
  void make_room();
  // Gives the text the ropes of one of this length; a cache with others forgets everything (runtime/long_ropes.py).
  void suit(int length);
  // How many tokens the text may grow before it has other ropes.
  int rope_room() const;
  // Before a generation: at least the last token is to be run.
  void uncache_last();
  void commit(const int64_t* rows, int n);
  void rollback() { ed_cache_rollback(cache_.get()); }
  void keep_prefix();

  // The rows of the next `count` pending tokens, as a call; `room`: rows that may be added after them.
  void rows(ed_sequence& call, int count, int room = 0);
  int64_t* row_tokens() { return tokens_.data(); }
  int64_t* row_positions() { return positions_.data(); }

  // Computes the text as it is; logits() are then of the token after it.
  void prefill(edgedec_progress progress, void* user, int more = 0);
  // A step of one token: `done` is set after the call; otherwise the token is removed again.
  void begin_step(int32_t token, ed_sequence& call);
  void end_step(bool done);
  int32_t sample(const Sampling& sampling);
  void score(const int32_t* tokens, int32_t n, double* out);

  void save(const std::string& path);
  void load(const std::string& path);

  static constexpr int CHUNK = 256;  // rows of a prompt that are run at once

 private:
  void check_cancelled() const;
  bool cached_long();

  const std::shared_ptr<Model> model_;
  const int capacity_, sinks_;
  std::shared_ptr<const Adapter> adapter_;
  CachePtr cache_;
  std::vector<int32_t> ids_;
  int prompt_ = 0;
  bool long_ = false;  // whether the text has the ropes of a long one
  std::vector<float> logits_;
  bool has_logits_ = false;
  std::vector<int64_t> tokens_, positions_;
  std::unique_ptr<Chooser> chooser_;  // of sample()
  std::unique_ptr<Drafting> drafting_;
};

// The session for as long as it lives; throws Failure(EDGEDEC_BUSY) if it is in use.
class Use {
 public:
  explicit Use(Session& session);
  ~Use() { session_.busy.store(false, std::memory_order_release); }
  Use(const Use&) = delete;

 private:
  Session& session_;
};

}  // namespace edgedec::lib

struct edgedec_model {
  std::shared_ptr<edgedec::lib::Model> model;
};

struct edgedec_adapter {
  std::shared_ptr<const edgedec::lib::Adapter> adapter;
};

struct edgedec_session {
  edgedec::lib::Session session;
};
