// Saved sessions: the files of edgedec/cache/snapshot.py, which Python reads and writes too.
#include <cstring>

#include "adapter.h"
#include "drafting.h"
#include "failure.h"
#include "session.h"

namespace edgedec::lib {

namespace {

constexpr const char* MAGIC = "EDGESESS";

std::string random_state(const Pcg64& rng) {
  return "{\"bit_generator\": \"PCG64\", \"state\": {\"state\": " + to_decimal(rng.state()) +
         ", \"inc\": " + to_decimal(rng.increment()) + "}, \"has_uint32\": 0, \"uinteger\": 0}";
}

Pcg64 read_random(const Json& value, const std::string& path) {
  const auto fail = [&] { throw Failure(EDGEDEC_SESSION, path + ": damaged header (random state)"); };
  Fields f(value, path + ": rng", EDGEDEC_SESSION);
  if (f.string("bit_generator") != "PCG64") fail();
  Fields inner(f.need("state"), path + ": rng.state", EDGEDEC_SESSION);
  Wide state, increment;
  const Json &s = inner.need("state"), &i = inner.need("inc");
  if (s.kind != Json::NUMBER || i.kind != Json::NUMBER || !from_decimal(s.text, state) || !from_decimal(i.text, increment)) fail();
  return {state, increment};
}

}  // namespace

void Session::save(const std::string& path) {
  std::string ids;
  for (const int32_t id : ids_) ids += (ids.empty() ? "" : ", ") + std::to_string(id);
  std::string header = "{\"bundle\": " + json_string(model_->bundle().origin()) + ", \"ids\": [" + ids +
                       "], \"n_prompt\": " + std::to_string(prompt_) + ", \"kv\": " + json_string("native-" + model_->kv()) +
                       ", \"rng\": " + random_state(rng) + ", \"length\": " + std::to_string(cached());
  if (adapter_) header += ", \"adapter\": " + json_string(adapter_->digest());
  header += "}";
  std::string state(ed_cache_save_bytes(cache_.get()), '\0'), length(8, '\0');
  ed_cache_save(cache_.get(), (uint8_t*)state.data());
  const int64_t held = cached();
  std::memcpy(length.data(), &held, 8);
  write_arrays(path, MAGIC, header,
               {{"cache.length", "int64", {1}, length}, {"cache.state", "uint8", {(int64_t)state.size()}, state}});
}

void Session::load(const std::string& path) {
  const ArrayFile file = read_arrays(path, MAGIC, "a saved session", EDGEDEC_SESSION);
  const auto fail = [&](const std::string& why) { throw Failure(EDGEDEC_SESSION, path + ": " + why); };
  Fields f(file.header, path, EDGEDEC_SESSION);
  const std::string bundle = f.string("bundle"), kv = f.string("kv"), adapter = f.string("adapter", "");
  const int64_t n_prompt = f.integer("n_prompt"), length = f.integer("length");
  const Json &ids = f.need("ids"), &rng_state = f.need("rng");
  f.done();
  if (bundle != model_->bundle().origin()) fail("saved from another model; open that one, or start anew");
  if (adapter != (adapter_ ? adapter_->digest() : ""))
    fail("saved with another adapter than this session's; open the session with the same one");
  if (kv != "native-" + model_->kv())
    fail("saved with a " + kv.substr(0, 40) + " cache, this session has native-" + model_->kv() +
         "; open the model with the cache format and engine it was saved with");
  std::vector<int32_t> text;
  for (const Json& id : to_list(ids, path + ": ids", EDGEDEC_SESSION)) {
    const int64_t token = to_integer(id, path + ": ids", EDGEDEC_SESSION);
    if (token < 0 || token >= model_->vocab()) fail("damaged header (a token outside the vocabulary)");
    text.push_back((int32_t)token);
  }
  const int64_t n = (int64_t)text.size();
  if (n > capacity_ + 1 || length > capacity_)
    fail(std::to_string(n) + " tokens do not fit this session's context of " + std::to_string(capacity_));
  if (length < 0 || length > n || n_prompt < 0 || n_prompt > n) fail("damaged header (lengths do not fit)");
  const Pcg64 random = read_random(rng_state, path);
  const auto state = file.arrays.find("cache.state"), held = file.arrays.find("cache.length");
  int64_t inside = -1;
  if (held != file.arrays.end() && held->second.type == "int64" && held->second.bytes == 8)
    std::memcpy(&inside, held->second.data, 8);
  if (state == file.arrays.end() || state->second.type != "uint8" || state->second.shape.size() != 1 || inside != length)
    fail("damaged header (lengths do not fit)");
  CachePtr cache = model_->new_cache(capacity_);
  std::vector<uint8_t> aligned(state->second.data, state->second.data + state->second.bytes);
  const int code = ed_cache_load(cache.get(), aligned.data(), aligned.size());
  if (code == -1) throw std::bad_alloc();
  if (code || ed_cache_length(cache.get()) != length)
    fail("cached values are not of a native-" + model_->kv() + " cache of this model");
  cache_ = std::move(cache);
  long_ = cached_long();
  ids_.assign(text.begin(), text.end());
  prompt_ = (int)n_prompt, rng = random, has_logits_ = false;
  if (drafting_) drafting_->reset();
}

}  // namespace edgedec::lib
