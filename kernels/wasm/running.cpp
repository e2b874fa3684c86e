// Generations a forward call at a time, so that the host stays responsive between them.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "failure.h"
#include "generation.h"
#include "session.h"
#include "wasm.h"

using namespace edgedec::lib;

// Host function: a token of generation `number`. Anything but 0 ends it.
extern "C" __attribute__((import_module("edgedec"), import_name("token"))) int host_token(int number, const edgedec_token* token);

struct edgedec_running {
  edgedec_running(Session& session, int number) : use(session), number(number) {}
  const Use use;
  const int number;
  int status = -1;
  std::string message;
  std::unique_ptr<Generation> generation;

  template <class Work>
  bool tried(Work work) {
    const int code = guarded(work);
    if (code) status = code, message = edgedec_last_error();
    return !code;
  }
  void end() {
    const int before = status;
    status = EDGEDEC_OK;
    tried([&] { generation->end(); });
    if (before > 0) status = before;
  }
};

namespace {

int on_token(void* user, const edgedec_token* token) { return host_token(((edgedec_running*)user)->number, token); }

// Runs what all of them have to run next, in one forward call.
void advance(const std::vector<edgedec_running*>& all) {
  std::vector<Generation*> texts;
  for (edgedec_running* each : all) texts.push_back(each->generation.get());
  std::vector<ed_sequence> calls;
  const std::vector<size_t> of = make_calls(texts, calls, [&](size_t n, auto work) { return all[n]->tried(work); });
  for (size_t n = 0; n < all.size(); n++)
    if (std::find(of.begin(), of.end(), n) == of.end()) all[n]->end();
  if (of.empty()) return;
  Model& model = texts[of[0]]->session().model();
  const int rows = rows_of(calls), code = guarded([&] { model.run(calls.data(), (int)calls.size()); });
  const std::string message = edgedec_last_error();
  for (const size_t n : of) {
    edgedec_running* each = all[n];
    if (code) each->status = code, each->message = message;
    if (code || !each->tried([&] { each->generation->done(rows); })) each->end();
  }
}

}  // namespace

int edgedec_running_new(edgedec_session* session, const int32_t* prompt, int32_t n, const edgedec_generate_options* options,
                        edgedec_result* result, int32_t number, edgedec_running** out) {
  return guarded([&] {
    if (!session || !options || !out) throw Failure(EDGEDEC_USAGE, "session, options or out: is NULL");
    *out = nullptr;
    auto made = std::make_unique<edgedec_running>(session->session, number);
    edgedec_generate_options own = given(options, edgedec_generate_options_init);
    own.on_token = on_token, own.token_user = made.get();
    made->generation = std::make_unique<Generation>(session->session, prompt, n, &own, result);
    *out = made.release();
  });
}

int edgedec_running_advance(edgedec_running* const* all, int32_t n, int32_t* live) {
  return guarded([&] {
    std::vector<edgedec_running*> on;
    for (int32_t i = 0; i < n; i++) {
      if (all[i]->status != -1) continue;
      on.push_back(all[i]);
      if (&on[0]->generation->session().model() != &all[i]->generation->session().model())
        throw Failure(EDGEDEC_USAGE, "sessions of several models in one generation");
    }
    advance(on);
    *live = 0;
    for (const edgedec_running* each : on) *live += each->status == -1;
  });
}

int edgedec_running_status(const edgedec_running* running) { return running->status; }
const char* edgedec_running_message(const edgedec_running* running) { return running->message.c_str(); }

void edgedec_running_free(edgedec_running* running) {
  if (!running) return;
  if (running->status == -1) running->end();
  delete running;
}
