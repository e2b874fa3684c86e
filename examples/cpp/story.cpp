// Two stories at once by forks of one session, in C++: handles in unique_ptr, a lambda as callback.
#include <edgedec.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct Close {
  void operator()(edgedec_model* model) const { edgedec_close(model); }
  void operator()(edgedec_session* session) const { edgedec_session_free(session); }
};

static void check(int status) {
  if (status) throw std::runtime_error(std::string(edgedec_status_name(status)) + ": " + edgedec_last_error());
}

static void run(const char* path) {
  edgedec_model* opened = nullptr;
  check(edgedec_open(path, nullptr, &opened));
  const std::unique_ptr<edgedec_model, Close> model(opened);
  edgedec_session *first = nullptr, *second = nullptr;
  check(edgedec_session_new(model.get(), nullptr, &first));
  const std::unique_ptr<edgedec_session, Close> one(first);

  std::vector<int32_t> prompt(64);
  const int32_t n = edgedec_encode(model.get(), "Once upon a time", -1, EDGEDEC_AROUND, prompt.data(), 64);
  if (n < 0) check(-n);
  check(edgedec_prefill(one.get(), prompt.data(), n));
  check(edgedec_session_fork(one.get(), &second));  // shares the prompt's cache
  const std::unique_ptr<edgedec_session, Close> two(second);

  edgedec_sampling sampling;
  check(edgedec_suggested_sampling(model.get(), &sampling, sizeof sampling));
  std::string texts[2];
  edgedec_generate_options options[2];
  edgedec_request requests[2] = {};
  for (int i = 0; i < 2; i++) {
    check(edgedec_session_seed(i ? two.get() : one.get(), 7 + i));
    edgedec_generate_options_init(&options[i], sizeof options[i]);
    options[i].max_tokens = 60, options[i].text = 1, options[i].sampling = &sampling, options[i].token_user = &texts[i];
    options[i].on_token = [](void* text, const edgedec_token* token) {
      static_cast<std::string*>(text)->append(token->text, token->text_bytes);
      return 0;
    };
    requests[i].size = sizeof requests[i], requests[i].session = i ? two.get() : one.get();
    requests[i].options = &options[i];
  }
  check(edgedec_generate_many(requests, 2));
  for (int i = 0; i < 2; i++) {
    check(requests[i].status);
    std::printf("Once upon a time%s\n\n", texts[i].c_str());
  }
}

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "nano.edb");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "story: %s\n", error.what());
    return 1;
  }
}
