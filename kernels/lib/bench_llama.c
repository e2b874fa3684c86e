/* The same as bench.c of llama.cpp's library:  bench_llama FILE.gguf TOKENS THREADS
 *
 * Its own loop: a batch of one token, the likeliest of the logits. */
#define _POSIX_C_SOURCE 199309L
#include <llama.h>
#include <stdint.h>
#include <stdlib.h>

#include "bench.h"

static void silent(enum ggml_log_level level, const char* text, void* user) { (void)level, (void)text, (void)user; }

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* The token after some; -1: it failed. */
static llama_token next(struct llama_context* context, llama_token* tokens, int n, int vocab) {
  if (llama_decode(context, llama_batch_get_one(tokens, n))) return -1;
  const float* logits = llama_get_logits_ith(context, -1);
  llama_token best = 0;
  for (int i = 1; i < vocab; i++)
    if (logits[i] > logits[best]) best = i;
  return best;
}

int main(int argc, char** argv) {
  llama_token tokens[PROMPT_TOKENS];
  if (argc != 4) return 2;
  memcpy(tokens, PROMPT, sizeof tokens);
  const int count = atoi(argv[2]);
  llama_log_set(silent, NULL);
  llama_backend_init();
  struct llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = (uint32_t)count + 16, params.n_threads = params.n_threads_batch = atoi(argv[3]), params.no_perf = true;
  struct llama_context* context = model ? llama_init_from_model(model, params) : NULL;
  if (!context) return fprintf(stderr, "%s: not read\n", argv[1]), 1;
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  llama_token token = next(context, tokens, PROMPT_TOKENS, vocab);
  begun();
  const double began = now();
  for (int i = 1; i < count && token >= 0; i++) token = next(context, &token, 1, vocab);
  printf("{\"tokens\": %d, \"seconds\": %f, \"peak_kb\": %ld}\n", count - 1, now() - began, peak());
  return token < 0;
}
