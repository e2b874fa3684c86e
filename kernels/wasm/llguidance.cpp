// llguidance in another module: calls go through the host, which copies their data.
#include "llguidance/llguidance.h"

#include <cstring>
#include <string>
#include <vector>

#include "wasm.h"

#define HOST(name) extern "C" __attribute__((import_module("edgedec"), import_name(#name)))

// Handles are addresses in the other module; 0 and negative numbers: it failed, with the message in `constraint_why`.
HOST(constraint_vocabulary) uint32_t host_vocabulary(const char* json, size_t size, uint32_t n, const uint32_t* ends, size_t n_ends);
HOST(constraint_matcher) uint32_t host_matcher(uint32_t vocabulary, const char* kind, const char* text, uint64_t first, uint64_t step);
HOST(constraint_mask) int host_mask(uint32_t matcher, uint32_t* out, size_t words);
HOST(constraint_ask) int host_ask(uint32_t matcher, int what, uint32_t argument);
HOST(constraint_why) size_t host_why(uint32_t matcher, char* out, size_t room);
HOST(constraint_free) void host_free(uint32_t vocabulary, uint32_t matcher);

struct LlgTokenizer {
  uint32_t handle;
  size_t words;  // of a mask
};

struct LlgMatcher {
  uint32_t handle;
  std::vector<uint32_t> mask;
  std::string why;
};

namespace {

enum Question { IS_ERROR = 0, IS_STOPPED = 1, IS_ACCEPTING = 2, ROLL_BACK = 3, MAY_FOLLOW = 4, CONSUME = 5 };

// The tokenizer of the current call: only one calls back at a time.
LlgTokenizeFn tokenize;
const void* tokenize_user;

int ask(const LlgMatcher* matcher, Question what, size_t argument = 0) { return host_ask(matcher->handle, what, (uint32_t)argument); }

}  // namespace

size_t edgedec_constraint_tokens(const uint8_t* bytes, size_t size, uint32_t* out, size_t room) {
  return tokenize(tokenize_user, bytes, size, out, room);
}

LlgTokenizer* llg_new_tokenizer_v2(const LlgTokenizerInitV2* init, char* why, size_t room) {
  tokenize = init->tokenize_fn, tokenize_user = init->tokenize_user_data;
  std::vector<uint32_t> ends{init->tok_eos};
  ends.insert(ends.end(), init->tok_eos_extra, init->tok_eos_extra + init->tok_eos_extra_count);
  const uint32_t handle =
      host_vocabulary(init->tokenizer_json, std::strlen(init->tokenizer_json), init->vocab_size, ends.data(), ends.size());
  if (handle) return new LlgTokenizer{handle, (init->vocab_size + 31) / 32};
  why[host_why(0, why, room - 1)] = 0;
  return nullptr;
}

void llg_free_tokenizer(LlgTokenizer* tokenizer) {
  if (tokenizer) host_free(tokenizer->handle, 0);
  delete tokenizer;
}

void llg_constraint_init_set_defaults(LlgConstraintInit* init, const LlgTokenizer* tokenizer) {
  *init = {};
  init->tokenizer = tokenizer;
}

LlgMatcher* llg_new_matcher(const LlgConstraintInit* init, const char* kind, const char* text) {
  const uint32_t handle =
      host_matcher(init->tokenizer->handle, kind, text, init->limits.initial_lexer_fuel, init->limits.step_lexer_fuel);
  return handle ? new LlgMatcher{handle, std::vector<uint32_t>(init->tokenizer->words), {}} : nullptr;
}

void llg_free_matcher(LlgMatcher* matcher) {
  if (matcher) host_free(0, matcher->handle);
  delete matcher;
}

bool llg_matcher_is_error(const LlgMatcher* matcher) { return ask(matcher, IS_ERROR); }

const char* llg_matcher_get_error(LlgMatcher* matcher) {
  char why[512];
  matcher->why.assign(why, host_why(matcher->handle, why, sizeof why));
  return matcher->why.c_str();
}

int llg_matcher_compute_mask(LlgMatcher* matcher) { return host_mask(matcher->handle, matcher->mask.data(), matcher->mask.size()); }
const uint32_t* llg_matcher_get_mask(LlgMatcher* matcher) { return matcher->mask.data(); }
bool llg_matcher_is_stopped(const LlgMatcher* matcher) { return ask(matcher, IS_STOPPED) == 1; }
bool llg_matcher_is_accepting(LlgMatcher* matcher) { return ask(matcher, IS_ACCEPTING) == 1; }
int llg_matcher_rollback(LlgMatcher* matcher, size_t n) { return ask(matcher, ROLL_BACK, n); }
int llg_matcher_consume_token(LlgMatcher* matcher, uint32_t token) { return ask(matcher, CONSUME, token); }

// Enough for the only caller, which passes one token.
int llg_matcher_validate_tokens(LlgMatcher* matcher, const uint32_t* tokens, size_t) { return ask(matcher, MAY_FOLLOW, tokens[0]); }
