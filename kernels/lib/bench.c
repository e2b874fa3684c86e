/* Start-up and speed of libedgedec, for `edgedec bench c`:  bench BUNDLE TOKENS THREADS KV
 *
 * Writes "." as soon as there is a token, then one line of JSON. */
#include <edgedec.h>
#include <stdlib.h>

#include "bench.h"

static int first(void* user, const edgedec_token* token) {
  (void)token;
  if (!*(int*)user) begun();
  *(int*)user = 1;
  return 0;
}

int main(int argc, char** argv) {
  edgedec_model* model = NULL;
  edgedec_session* session = NULL;
  edgedec_open_options open;
  edgedec_generate_options options;
  edgedec_result result = {.size = sizeof result};
  int seen = 0;
  if (argc != 5) return 2;
  edgedec_open_options_init(&open, sizeof open);
  open.threads = atoi(argv[3]), open.kv = argv[4];
  edgedec_generate_options_init(&options, sizeof options);
  options.max_tokens = atoi(argv[2]), options.ignore_eos = 1, options.on_token = first, options.token_user = &seen;
  if (edgedec_open(argv[1], &open, &model) || edgedec_session_new(model, NULL, &session) ||
      edgedec_generate(session, PROMPT, PROMPT_TOKENS, &options, &result))
    return fprintf(stderr, "%s\n", edgedec_last_error()), 1;
  printf("{\"tokens\": %d, \"seconds\": %f, \"overhead\": %f, \"peak_kb\": %ld}\n", result.generated - 1,
         result.seconds - result.prompt_seconds, 1 - result.forward_seconds / result.seconds, peak());
  return 0;
}
