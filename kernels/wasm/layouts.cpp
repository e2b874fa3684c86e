// Memory layouts of the structures in edgedec.h, from the compiler.
#include <cstddef>
#include <string>
#include <type_traits>

#include "wasm.h"

namespace {

template <class T>
constexpr const char* kind() {
  if (std::is_same_v<T, double>) return "f64";
  if (std::is_same_v<T, uint64_t>) return "u64";
  static_assert(sizeof(T) == 4 || std::is_same_v<T, double> || std::is_same_v<T, uint64_t>);
  return std::is_same_v<T, int32_t> ? "i32" : "u32";
}

std::string made;

struct Of {
  explicit Of(const char* name, size_t size) {
    made += made.empty() ? "{" : "},";
    made += std::string("\"") + name + "\":{\"\":[" + std::to_string(size) + ",\"size\"]";
  }
  template <class T>
  Of& field(const char* name, size_t offset) {
    made += std::string(",\"") + name + "\":[" + std::to_string(offset) + ",\"" + kind<T>() + "\"]";
    return *this;
  }
};

}  // namespace

#define S(name) { using Struct = edgedec_##name; Of of(#name, sizeof(Struct)); (void)of
#define F(name) of.field<decltype(Struct::name)>(#name, offsetof(Struct, name))
#define E }

const char* edgedec_layouts(void) {
  if (!made.empty()) return made.c_str();
  // clang-format off
  S(open_options); F(size); F(threads); F(verify); F(kv); F(isa); F(memory_limit); F(prefix_tokens); E
  S(model_info); F(vocab_size); F(hidden_size); F(context_length); F(n_layers); F(n_blocks); F(threads); F(bos); F(n_eos);
    F(has_text); F(weights_bytes); F(cache_row_bytes); E
  S(memory_use); F(weights_bytes); F(cache_bytes); F(prefix_bytes); F(limit); F(sessions); F(prefixes); E
  S(session_options); F(size); F(context); F(sinks); F(speculate); F(draft); F(adapter); E
  S(sampling); F(size); F(temperature); F(top_p); F(min_p); F(typical_p); F(repetition_penalty); F(presence_penalty);
    F(frequency_penalty); F(top_k); F(n_bias); F(bias_tokens); F(bias); F(seed); F(seeded); E
  S(token); F(id); F(drafted); F(text); F(text_bytes); F(logprob); F(top_tokens); F(top_logprobs); F(n_top); E
  S(generate_options); F(size); F(max_tokens); F(min_tokens); F(ignore_eos); F(logprobs); F(stop_tokens); F(n_stop_tokens);
    F(n_stop); F(stop); F(text); F(sampling); F(constraint); F(constraint_kind); E
  S(result); F(size); F(finish); F(prompt); F(cached); F(generated); F(calls); F(drafted); F(accepted); F(prompt_seconds);
    F(seconds); E
  // clang-format on
  made += "}}";
  return made.c_str();
}
