// The part of llguidance's C interface that kernels/lib/constraint.cpp uses, implemented by a module of its
// own (src/lib.rs) that the host connects with this one.
#pragma once
#include <cstddef>
#include <cstdint>

struct LlgTokenizer;
struct LlgMatcher;
typedef size_t (*LlgTokenizeFn)(const void* user, const uint8_t* bytes, size_t size, uint32_t* out, size_t room);

struct LlgTokenizerInitV2 {
  size_t struct_size;
  uint32_t vocab_size, tok_eos;
  const char* tokenizer_json;
  bool tokenize_assumes_string;
  LlgTokenizeFn tokenize_fn;
  const void* tokenize_user_data;
  const uint32_t* tok_eos_extra;
  uint32_t tok_eos_extra_count;
};

struct LlgConstraintInit {
  const LlgTokenizer* tokenizer;
  uint32_t log_buffer_level, log_stderr_level;
  struct {
    uint64_t initial_lexer_fuel, step_lexer_fuel;
  } limits;
};

LlgTokenizer* llg_new_tokenizer_v2(const LlgTokenizerInitV2* init, char* why, size_t room);
void llg_free_tokenizer(LlgTokenizer* tokenizer);
void llg_constraint_init_set_defaults(LlgConstraintInit* init, const LlgTokenizer* tokenizer);
LlgMatcher* llg_new_matcher(const LlgConstraintInit* init, const char* kind, const char* text);
void llg_free_matcher(LlgMatcher* matcher);
bool llg_matcher_is_error(const LlgMatcher* matcher);
const char* llg_matcher_get_error(LlgMatcher* matcher);
int llg_matcher_compute_mask(LlgMatcher* matcher);
const uint32_t* llg_matcher_get_mask(LlgMatcher* matcher);
bool llg_matcher_is_stopped(const LlgMatcher* matcher);
bool llg_matcher_is_accepting(LlgMatcher* matcher);
int llg_matcher_rollback(LlgMatcher* matcher, size_t n);
int llg_matcher_validate_tokens(LlgMatcher* matcher, const uint32_t* tokens, size_t n);
int llg_matcher_consume_token(LlgMatcher* matcher, uint32_t token);
