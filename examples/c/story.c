/* A story by the bundled model:  cc story.c $(pkg-config --cflags --libs edgedec) -o story && ./story models/nano/bundle */
#include <edgedec.h>
#include <stdio.h>

static int show(void* user, const edgedec_token* token) {
  (void)user;
  fwrite(token->text, 1, token->text_bytes, stdout);
  return fflush(stdout); /* anything but 0 ends the story */
}

int main(int argc, char** argv) {
  const char* prompt = argc > 2 ? argv[2] : "Once upon a time";
  edgedec_model* model = NULL;
  edgedec_session* session = NULL;
  edgedec_generate_options options;
  edgedec_result result = {.size = sizeof result};
  edgedec_generate_options_init(&options, sizeof options);
  options.max_tokens = 150, options.text = 1, options.on_token = show;

  int failed = edgedec_open(argc > 1 ? argv[1] : "nano.edb", NULL, &model);
  if (!failed) failed = edgedec_session_new(model, NULL, &session);
  if (!failed) {
    printf("%s", prompt);
    failed = edgedec_generate_text(session, prompt, &options, &result);
  }
  if (failed) fprintf(stderr, "story: %s\n", edgedec_last_error());
  else printf("\n[%d tokens in %.0f ms]\n", result.generated, result.seconds * 1e3);
  edgedec_session_free(session);
  edgedec_close(model);
  return failed != 0;
}
