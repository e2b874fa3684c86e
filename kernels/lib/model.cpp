#include "model.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "cores.h"
#include "failure.h"
#include "tokenizer.h"

namespace edgedec::lib {

namespace {

// Below this many bytes of weights per thread, synchronization costs more than another thread saves.
constexpr uint64_t BYTES_PER_THREAD = 2 << 20;

const char* refusal(int code) {
  switch (code) {
    case 1: return "a number of rows that cannot be";
    case 2: return "a token outside the vocabulary";
    case 3: return "a position outside the model's context";
    case 4: return "a block that the model does not have";
    case 8: return "a cache of another model or format";
    case 11: return "one session twice in a call";
    default: return "a call that cannot be";
  }
}

[[noreturn]] void refuse(int code) {
  if (code == -1) throw Failure(EDGEDEC_MEMORY, "not enough memory for this call");
  if (code == 6) throw Failure(EDGEDEC_FULL, "rows that do not fit the context");
  throw Failure(EDGEDEC_USAGE, std::string("the engine refuses the call: ") + refusal(code));
}

}  // namespace

// Reads a structure that begins with its size, up to the size in the caller's header.
void copy_options(void* to, size_t size, const void* from) {
  size_t known;
  std::memcpy(&known, from, sizeof known);
  if (known < sizeof known || known > 1 << 16)
    throw Failure(EDGEDEC_USAGE, "options without a size: begin with edgedec_..._init(&options, sizeof options)");
  std::memcpy((char*)to + sizeof size, (const char*)from + sizeof size, std::min(size, known) - sizeof size);
}

Model::Model(std::unique_ptr<Container> from, const edgedec_open_options& options)
    : options_(options), isa_name_(options.isa ? options.isa : ""), bundle_(std::move(from)), engine_model_(bundle_) {
  kv_ = options.kv ? kv_format(options.kv) : bundle_.manifest.kv_formats[0];
  if (!kv_) throw Failure(EDGEDEC_USAGE, std::string("kv: '") + std::string(options.kv).substr(0, 40) + "' is not one of " + KV_FORMATS);
  kv_name_ = std::string("f32 f16 int8int4").substr((kv_ - 1) * 4, kv_ < 3 ? 3 : 4);
  if (options.threads < 0 || options.threads > 1024) throw Failure(EDGEDEC_USAGE, "threads: must be 0 (all cores) to 1024");
  if (options.prefix_tokens < 0) throw Failure(EDGEDEC_USAGE, "prefix_tokens: must be 0 (none) or more");
  if (options.priority < -20 || options.priority > 19) throw Failure(EDGEDEC_USAGE, "priority: must be -20 to 19");
  const int cores = options.big_cores ? (int)big_cores().size() : available_cores();
  const uint64_t useful = std::max<uint64_t>(1, bundle_.weights->size / BYTES_PER_THREAD);
  threads_ = options.threads ? options.threads : (int)std::min<uint64_t>((uint64_t)cores, useful);
  if (options.verify) bundle_.verify(options.on_progress, options.progress_user);
  for (const BlockSpec& b : spec().blocks) {
    if (b.kind != KIND_ATTENTION) continue;
    row_bytes_ += 2 * (uint64_t)b.kv_heads * ed_kv_row_bytes((int)b.head_dim, kv_);
    paged_blocks_++;
  }
  if (paged_blocks_) page_bytes_ = row_bytes_ * (uint64_t)ed_cache_page_slots() / (uint64_t)paged_blocks_;
  pool_.reset(ed_cache_pool_new(&engine_model_.model, kv_));
  if (!pool_) throw Failure(EDGEDEC_MEMORY, "no memory for caches");
  engine_.reset(start());
}

Model::~Model() = default;

// The engine's threads inherit cores and priority from the thread that starts them.
ed_engine* Model::start() const {
  ed_engine* made = nullptr;
  const char* isa = isa_name_.empty() ? nullptr : isa_name_.c_str();
  const auto open = [&] { made = ed_open(&engine_model_.model, threads_, isa); };
  if (options_.big_cores || options_.priority) {
    std::thread maker([&] {
      if (options_.big_cores) stay_on(big_cores());
      if (options_.priority) set_priority(options_.priority);
      open();
    });
    maker.join();
  } else {
    open();
  }
  if (!made && isa) throw Failure(EDGEDEC_UNAVAILABLE, "instruction set " + isa_name_ + ": not for this processor");
  if (!made) throw Failure(EDGEDEC_MEMORY, "no memory for the engine");
  return made;
}

const Tokenizer& Model::tokenizer() const {
  const std::string& why = why_no_text();
  if (!why.empty()) throw Failure(EDGEDEC_TEXT, why);
  return *tokenizer_;
}

const std::string& Model::why_no_text() const {
  std::lock_guard<std::mutex> lock(text_mutex_);
  if (text_tried_) return no_text_;
  const std::string& name = bundle_.manifest.text.tokenizer;
  const std::string where = bundle_.container().path(name.empty() ? MANIFEST : name);
  try {
    if (name.empty()) throw Failure(EDGEDEC_TEXT, where + ": the bundle has no tokenizer; give tokens");
    const SharedBytes content = bundle_.file(name);
    tokenizer_ = Tokenizer::load(content->text(), where);
  } catch (const Failure& failure) {
    no_text_ = failure.message;
  }
  text_tried_ = true;
  return no_text_;
}

CachePtr Model::new_cache(int capacity) const {
  CachePtr made(ed_cache_new(pool_.get(), capacity));
  if (!made) throw Failure(EDGEDEC_MEMORY, "no memory for a cache");
  return made;
}

void Model::run(const ed_sequence* sequences, int n) {
  if (limit()) make_room(sequences, n);
  if (const int code = ed_run(engine_.get(), sequences, n)) refuse(code);
}

void Model::trim() {
  {
    std::lock_guard<std::mutex> lock(prefix_mutex_);
    prefixes_.clear();
  }
  ed_trim(engine_.get());
  ed_cache_pool_trim(pool_.get());
}

// ---- memory ----------------------------------------------------------------------------------------

uint64_t Model::cache_bytes() const { return (uint64_t)ed_cache_pool_pages(pool_.get()) * page_bytes_; }

// Of the pages that the rows of a call add.
uint64_t Model::needed(const ed_sequence* sequences, int n) const {
  const uint64_t slots = (uint64_t)ed_cache_page_slots();
  uint64_t pages = 0;
  for (int i = 0; i < n; i++) {
    const uint64_t length = (uint64_t)ed_cache_length(sequences[i].cache), rows = (uint64_t)sequences[i].rows;
    pages += (length + rows + slots - 1) / slots - (length + slots - 1) / slots;
  }
  return pages * (uint64_t)paged_blocks_ * page_bytes_;
}

void Model::make_room(const ed_sequence* sequences, int n) {
  const uint64_t more = needed(sequences, n);
  while (more && cache_bytes() + more > limit()) {
    if (drop_prefix()) continue;
    const uint64_t missing = cache_bytes() + more - limit();
    if (options_.on_pressure && options_.on_pressure(options_.pressure_user, missing)) continue;
    throw Failure(EDGEDEC_MEMORY, "caches: " + std::to_string(missing) + " bytes more than the limit of " +
                                      std::to_string(limit()) + "; free sessions, or open with a larger memory_limit");
  }
}

// ---- prefixes --------------------------------------------------------------------------------------

namespace {

int common(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const size_t most = std::min(a.size(), b.size());
  return (int)(std::mismatch(a.begin(), a.begin() + (ptrdiff_t)most, b.begin()).first - a.begin());
}

}  // namespace

int Model::find_prefix(ed_cache* cache, const std::vector<int32_t>& ids, int have, bool longer) {
  std::lock_guard<std::mutex> lock(prefix_mutex_);
  auto best = prefixes_.end();
  int most = have;
  for (auto at = prefixes_.begin(); at != prefixes_.end(); ++at) {
    if (at->longer != longer) continue;
    const int same = std::min(common(at->ids, ids), ed_cache_length(at->cache.get()));
    if (same > most) most = same, best = at;
  }
  if (best == prefixes_.end() || ed_cache_adopt(cache, best->cache.get(), most)) return have;
  prefixes_.splice(prefixes_.begin(), prefixes_, best);
  return ed_cache_length(cache);
}

void Model::keep_prefix(const ed_cache* cache, const std::vector<int32_t>& ids, bool longer) {
  const int length = ed_cache_length(cache);
  if (!keeps_prefixes() || !length) return;
  std::lock_guard<std::mutex> lock(prefix_mutex_);
  const std::vector<int32_t> held(ids.begin(), ids.begin() + length);
  for (const Prefix& prefix : prefixes_)
    if (prefix.longer == longer && common(prefix.ids, held) == length) return;
  prefixes_.remove_if([&](const Prefix& p) { return p.longer == longer && common(p.ids, held) == (int)p.ids.size(); });
  CachePtr fork(ed_cache_fork(cache, length, length));
  if (!fork) return;
  prefixes_.push_front({held, std::move(fork), longer});
  int tokens = 0;
  for (auto at = prefixes_.begin(); at != prefixes_.end();) {
    tokens += (int)at->ids.size();
    at = tokens > options_.prefix_tokens ? prefixes_.erase(at) : std::next(at);
  }
}

bool Model::drop_prefix() {
  std::lock_guard<std::mutex> lock(prefix_mutex_);
  if (prefixes_.empty()) return false;
  prefixes_.pop_back();
  return true;
}

void Model::prefix_use(uint64_t& bytes, int32_t& count) const {
  std::lock_guard<std::mutex> lock(prefix_mutex_);
  int64_t own = 0;
  for (const Prefix& prefix : prefixes_) {
    int64_t held = 0, shared = 0;
    ed_cache_pages(prefix.cache.get(), &held, &shared);
    own += held - shared;
  }
  bytes = (uint64_t)own * page_bytes_, count = (int32_t)prefixes_.size();
}

}  // namespace edgedec::lib
