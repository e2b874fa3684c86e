// An open bundle: the engine, the pages of its caches, its tokenizer; shared by sessions.
#pragma once
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bundle.h"
#include "edgedec.h"

namespace edgedec::lib {

class Tokenizer;

struct CacheFree {
  void operator()(ed_cache* cache) const { ed_cache_free(cache); }
};
using CachePtr = std::unique_ptr<ed_cache, CacheFree>;

// Options from an interface structure: the fields of the caller's header, the others by default.
template <class T>
T given(const T* options, void (*init)(T*, size_t));

class Model {
 public:
  Model(std::unique_ptr<Container> from, const edgedec_open_options& options);
  ~Model();
  Model(const Model&) = delete;

  const Bundle& bundle() const { return bundle_; }
  const ModelSpec& spec() const { return bundle_.manifest.spec; }
  int32_t vocab() const { return (int32_t)spec().vocab; }
  int threads() const { return threads_; }
  const std::string& kv() const { return kv_name_; }
  const char* isa() const { return ed_engine_isa(engine_.get()); }
  uint64_t row_bytes() const { return row_bytes_; }

  // The tokens in the form of constraints, made at first use.
  mutable std::mutex constraint_lock;
  mutable std::shared_ptr<const void> constraint_vocabulary;
  // The tokenizer, read at first use; throws Failure(EDGEDEC_TEXT).
  const Tokenizer& tokenizer() const;
  const std::string& why_no_text() const;  // "": there is one

  CachePtr new_cache(int capacity) const;
  // Runs a call; throws Failure.
  void run(const ed_sequence* sequences, int n);

  // Frees working memory, prefixes and unused pages.
  void trim();
  uint64_t cache_bytes() const;
  uint64_t limit() const { return options_.memory_limit; }
  bool keeps_prefixes() const { return options_.prefix_tokens > 0; }
  // Prefix caching: makes the cache begin with the longest common prefix of `ids` and the kept texts, if that
  // has more than `have` tokens; returns its length, or `have`.
  int find_prefix(ed_cache* cache, const std::vector<int32_t>& ids, int have, bool longer);
  void keep_prefix(const ed_cache* cache, const std::vector<int32_t>& ids, bool longer);
  void prefix_use(uint64_t& bytes, int32_t& count) const;
  std::atomic<int32_t> sessions{0};

 private:
  struct EngineClose {
    void operator()(ed_engine* engine) const { ed_close(engine); }
  };
  struct PoolFree {
    void operator()(ed_cache_pool* pool) const { ed_cache_pool_free(pool); }
  };
  struct Prefix {
    std::vector<int32_t> ids;
    CachePtr cache;
    bool longer;  // whether it has the ropes of a long text
  };
  ed_engine* start() const;
  void make_room(const ed_sequence* sequences, int n);
  bool drop_prefix();
  uint64_t needed(const ed_sequence* sequences, int n) const;

  const edgedec_open_options options_;
  const std::string isa_name_;
  Bundle bundle_;
  EngineModel engine_model_;
  int kv_, threads_;
  std::string kv_name_;
  uint64_t row_bytes_ = 0, page_bytes_ = 0;  // of a token in all blocks; of a page on average
  int paged_blocks_ = 0;
  std::unique_ptr<ed_cache_pool, PoolFree> pool_;
  std::unique_ptr<ed_engine, EngineClose> engine_;
  mutable std::mutex prefix_mutex_, text_mutex_;
  std::list<Prefix> prefixes_;  // the latest used first
  mutable std::shared_ptr<const Tokenizer> tokenizer_;
  mutable std::string no_text_;
  mutable bool text_tried_ = false;
};

template <class T>
T given(const T* options, void (*init)(T*, size_t)) {
  extern void copy_options(void* to, size_t size, const void* from);
  T made;
  init(&made, sizeof made);
  if (options) copy_options(&made, sizeof made, options);
  return made;
}

}  // namespace edgedec::lib
