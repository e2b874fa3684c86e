// The C interface: checks arguments, and turns errors into a status and a message.
#include <cstring>

#include "adapter.h"
#include "failure.h"
#include "generation.h"
#include "session.h"
#include "tokenizer.h"

using namespace edgedec::lib;

namespace edgedec::lib {

namespace {

void need(const void* pointer, const char* what) {
  if (!pointer) throw Failure(EDGEDEC_USAGE, std::string(what) + ": is NULL");
}

// Fills a structure that begins with its size, up to the size in the caller's header.
template <class T>
void give(T* to, size_t size, T from) {
  need(to, "result");
  if (size < sizeof(size_t)) throw Failure(EDGEDEC_USAGE, "size: smaller than the field that holds it");
  std::memset(to, 0, size);
  from.size = size;
  std::memcpy(to, &from, size < sizeof(T) ? size : sizeof(T));
}

template <class T>
void init(T* to, size_t size, T from) {
  if (!to || size < sizeof(size_t)) return;
  give(to, size, from);
}

int open(std::unique_ptr<Container> (*find)(const void*, uint64_t), const void* what, uint64_t size,
         const edgedec_open_options* options, edgedec_model** out) {
  return guarded([&] {
    need(out, "out");
    *out = nullptr;
    const edgedec_open_options o = given(options, edgedec_open_options_init);
    auto model = std::make_shared<Model>(find(what, size), o);
    *out = new edgedec_model{std::move(model)};
  });
}

// Runs `work` with exclusive access to a session.
template <class Work>
int with(edgedec_session* session, Work work) {
  return guarded([&] {
    need(session, "session");
    const Use use(session->session);
    work(session->session);
  });
}

}  // namespace

}  // namespace edgedec::lib

uint32_t edgedec_abi(void) { return EDGEDEC_ABI; }
const char* edgedec_version(void) { return EDGEDEC_VERSION_TEXT; }
const char* edgedec_isa(void) { return ed_isa(); }

const char* edgedec_status_name(int status) {
  static const char* const NAMES[] = {"ok",          "usage", "not_found", "version", "corrupt", "unsafe", "unavailable",
                                      "full",        "session", "text",    "memory",  "io",      "cancelled", "busy"};
  return status >= 0 && status < (int)(sizeof NAMES / sizeof *NAMES) ? NAMES[status] : "unknown";
}

// ---- models ----------------------------------------------------------------------------------------

void edgedec_open_options_init(edgedec_open_options* options, size_t size) { init(options, size, edgedec_open_options{}); }

int edgedec_open(const char* path, const edgedec_open_options* options, edgedec_model** out) {
  const auto find = [](const void* what, uint64_t) {
    need(what, "path");
    return open_container((const char*)what);
  };
  return edgedec::lib::open(find, path, 0, options, out);
}

int edgedec_open_memory(const void* data, uint64_t size, const edgedec_open_options* options, edgedec_model** out) {
  const auto find = [](const void* what, uint64_t bytes) {
    need(what, "data");
    return open_packed(bytes_of(what, bytes), "memory");
  };
  return edgedec::lib::open(find, data, size, options, out);
}

int edgedec_open_fd(int fd, uint64_t offset, uint64_t size, const edgedec_open_options* options, edgedec_model** out) {
  struct Place {
    int fd;
    uint64_t offset;
  } place{fd, offset};
  const auto find = [](const void* what, uint64_t bytes) {
    const Place& p = *(const Place*)what;
    return open_packed(map_descriptor(p.fd, p.offset, bytes), "the open file");
  };
  return edgedec::lib::open(find, &place, size, options, out);
}

void edgedec_close(edgedec_model* model) { delete model; }

int edgedec_info(const edgedec_model* model, edgedec_model_info* info, size_t size) {
  return guarded([&] {
    need(model, "model");
    const Model& m = *model->model;
    edgedec_model_info found{};
    found.vocab_size = m.vocab(), found.hidden_size = (int32_t)m.spec().hidden;
    found.context_length = (int32_t)m.spec().context, found.n_layers = (int32_t)m.spec().n_layers;
    found.n_blocks = (int32_t)m.spec().blocks.size(), found.threads = m.threads();
    found.bos = m.bundle().manifest.text.bos, found.n_eos = (int32_t)m.bundle().manifest.text.eos.size();
    found.has_text = m.why_no_text().empty();
    found.weights_bytes = m.bundle().weights->size, found.cache_row_bytes = m.row_bytes();
    give(info, size, found);
  });
}

int edgedec_eos(const edgedec_model* model, int32_t* out, int32_t room) {
  if (!model) return 0;
  const auto& eos = model->model->bundle().manifest.text.eos;
  for (int32_t i = 0; out && i < room && i < (int32_t)eos.size(); i++) out[i] = eos[(size_t)i];
  return (int)eos.size();
}

const char* edgedec_model_string(const edgedec_model* model, int what) {
  if (!model) return "";
  const Model& m = *model->model;
  const TextFacts& text = m.bundle().manifest.text;
  switch (what) {
    case EDGEDEC_NAME: return m.bundle().manifest.name.c_str();
    case EDGEDEC_ARCHITECTURE: return m.spec().architecture.c_str();
    case EDGEDEC_KV: return m.kv().c_str();
    case EDGEDEC_MODEL_ISA: return m.isa();
    case EDGEDEC_DIGEST: return m.bundle().digest.c_str();
    case EDGEDEC_CHAT_TEMPLATE: return text.chat_template.c_str();
    case EDGEDEC_BOS_TOKEN: return text.bos_token.c_str();
    case EDGEDEC_EOS_TOKEN: return text.eos_token.c_str();
    case EDGEDEC_NO_TEXT: return m.why_no_text().c_str();
    default: return "";
  }
}

int edgedec_memory(const edgedec_model* model, edgedec_memory_use* use, size_t size) {
  return guarded([&] {
    need(model, "model");
    const Model& m = *model->model;
    edgedec_memory_use found{};
    found.weights_bytes = m.bundle().weights->size, found.cache_bytes = m.cache_bytes(), found.limit = m.limit();
    found.sessions = m.sessions;
    m.prefix_use(found.prefix_bytes, found.prefixes);
    give(use, size, found);
  });
}

int edgedec_trim(edgedec_model* model) {
  return guarded([&] {
    need(model, "model");
    model->model->trim();
  });
}

int edgedec_adapter_open(edgedec_model* model, const char* path, edgedec_adapter** out) {
  return guarded([&] {
    need(model, "model"), need(path, "path"), need(out, "out");
    *out = nullptr;
    *out = new edgedec_adapter{std::make_shared<const Adapter>(model->model, path)};
  });
}

void edgedec_adapter_close(edgedec_adapter* adapter) { delete adapter; }

// ---- sessions --------------------------------------------------------------------------------------

void edgedec_session_options_init(edgedec_session_options* options, size_t size) {
  edgedec_session_options made{};
  made.sinks = -1;
  init(options, size, made);
}

int edgedec_session_new(edgedec_model* model, const edgedec_session_options* options, edgedec_session** out) {
  return guarded([&] {
    need(model, "model"), need(out, "out");
    *out = nullptr;
    *out = new edgedec_session{{model->model, given(options, edgedec_session_options_init)}};
  });
}

void edgedec_session_free(edgedec_session* session) { delete session; }

int edgedec_session_fork(edgedec_session* session, edgedec_session** out) {
  return with(session, [&](Session& s) {
    need(out, "out");
    *out = nullptr;
    *out = new edgedec_session{Session(s)};
  });
}

int edgedec_session_save(edgedec_session* session, const char* path) {
  return with(session, [&](Session& s) {
    need(path, "path");
    s.save(path);
  });
}

int edgedec_session_load(edgedec_session* session, const char* path) {
  return with(session, [&](Session& s) {
    need(path, "path");
    s.load(path);
  });
}

int32_t edgedec_session_length(const edgedec_session* session) {
  return session ? (int32_t)session->session.ids().size() : 0;
}

int32_t edgedec_session_cached(const edgedec_session* session) { return session ? session->session.cached() : 0; }
int32_t edgedec_session_context(const edgedec_session* session) { return session ? session->session.capacity() : 0; }

int32_t edgedec_session_tokens(const edgedec_session* session, int32_t from, int32_t* out, int32_t room) {
  if (!session || !out || from < 0) return 0;
  const auto& ids = session->session.ids();
  int32_t n = 0;
  for (size_t i = (size_t)from; i < ids.size() && n < room; i++) out[n++] = ids[i];
  return n;
}

int edgedec_session_seed(edgedec_session* session, uint64_t seed) {
  return with(session, [&](Session& s) { s.rng = Pcg64(seed); });
}

int edgedec_session_append(edgedec_session* session, const int32_t* tokens, int32_t n) {
  return with(session, [&](Session& s) { s.append(tokens, n); });
}

int edgedec_session_truncate(edgedec_session* session, int32_t length) {
  return with(session, [&](Session& s) { s.truncate(length); });
}

void edgedec_cancel(edgedec_session* session) {
  if (session) session->session.cancelled.store(true, std::memory_order_relaxed);
}

// ---- token by token --------------------------------------------------------------------------------

int edgedec_prefill(edgedec_session* session, const int32_t* tokens, int32_t n) {
  return with(session, [&](Session& s) {
    if (tokens) s.read(tokens, n);
    s.prefill(nullptr, nullptr);
  });
}

int edgedec_step(edgedec_session* session, int32_t token) { return edgedec_step_many(&session, &token, 1); }

int edgedec_step_many(edgedec_session* const* sessions, const int32_t* tokens, int32_t n) {
  return guarded([&] {
    constexpr int32_t FEW = 16;
    need(sessions, "sessions"), need(tokens, "tokens");
    if (n < 1 || n > 4096) throw Failure(EDGEDEC_USAGE, "n: must be from 1 to 4096 sessions");
    struct Taken {  // freed in any case
      ~Taken() {
        for (int32_t i = 0; i < begun; i++) each[i]->session.end_step(done);
        for (int32_t i = 0; i < used; i++) each[i]->session.busy.store(false, std::memory_order_release);
      }
      edgedec_session* const* each;
      int32_t used = 0, begun = 0;
      bool done = false;
    };
    ed_sequence few[FEW];
    std::vector<ed_sequence> many(n > FEW ? (size_t)n : 0);
    ed_sequence* calls = n > FEW ? many.data() : few;
    Taken taken{sessions};
    for (int32_t i = 0; i < n; i++) {
      need(sessions[i], "session");
      Session& s = sessions[i]->session;
      if (&s.model() != &sessions[0]->session.model()) throw Failure(EDGEDEC_USAGE, "sessions of several models in one step");
      if (s.busy.exchange(true, std::memory_order_acquire))
        throw Failure(EDGEDEC_BUSY, "a session is in use by another thread, or twice in this step");
      taken.used++;
    }
    for (int32_t i = 0; i < n; i++) {
      sessions[i]->session.begin_step(tokens[i], calls[i]);
      taken.begun++;
    }
    sessions[0]->session.model().run(calls, n);
    taken.done = true;
  });
}

float* edgedec_logits(edgedec_session* session) { return session ? session->session.logits() : nullptr; }

void edgedec_sampling_init(edgedec_sampling* sampling, size_t size) {
  edgedec_sampling made{};
  made.top_p = made.typical_p = made.repetition_penalty = 1;
  init(sampling, size, made);
}

int edgedec_suggested_sampling(const edgedec_model* model, edgedec_sampling* sampling, size_t size) {
  return guarded([&] {
    need(model, "model");
    edgedec_sampling made;
    edgedec_sampling_init(&made, sizeof made);
    for (const auto& [name, value] : model->model->bundle().manifest.text.sampling) {
      if (name == "temperature") made.temperature = value;
      if (name == "top_p") made.top_p = value;
      if (name == "min_p") made.min_p = value;
      if (name == "typical_p") made.typical_p = value;
      if (name == "repetition_penalty") made.repetition_penalty = value;
      if (name == "top_k" && value >= 0 && value < 1e9) made.top_k = (int32_t)value;
    }
    give(sampling, size, made);
  });
}

int edgedec_sample(edgedec_session* session, const edgedec_sampling* sampling, int32_t* token) {
  return with(session, [&](Session& s) {
    need(token, "token");
    *token = s.sample(read_sampling(given(sampling, edgedec_sampling_init), s.model().vocab()));
  });
}

int edgedec_score(edgedec_session* session, const int32_t* tokens, int32_t n, double* out) {
  return with(session, [&](Session& s) {
    need(out, "out");
    s.score(tokens, n, out);
  });
}

// ---- generate --------------------------------------------------------------------------------------

void edgedec_generate_options_init(edgedec_generate_options* options, size_t size) {
  edgedec_generate_options made{};
  made.max_tokens = made.logprobs = -1;
  init(options, size, made);
}

namespace {

void check_result(const edgedec_result* result) {
  if (result && (result->size < sizeof(size_t) || result->size > 1 << 16))
    throw Failure(EDGEDEC_USAGE, "result: set its size first: result.size = sizeof result");
}

}  // namespace

int edgedec_generate(edgedec_session* session, const int32_t* prompt, int32_t n, const edgedec_generate_options* options,
                     edgedec_result* result) {
  return with(session, [&](Session& s) {
    check_result(result);
    Generation generation(s, prompt, n, options, result);
    std::vector<int> statuses(1, EDGEDEC_OK);
    std::vector<std::string> messages(1);
    run_generations({&generation}, statuses, messages);
    if (statuses[0]) throw Failure(statuses[0], messages[0]);
  });
}

int edgedec_generate_text(edgedec_session* session, const char* prompt, const edgedec_generate_options* options,
                          edgedec_result* result) {
  std::vector<int32_t> ids;
  const int status = guarded([&] {
    need(session, "session"), need(prompt, "prompt");
    ids = session->session.model().tokenizer().encode(prompt, true, true);
  });
  return status ? status : edgedec_generate(session, ids.data(), (int32_t)ids.size(), options, result);
}

int edgedec_generate_many(edgedec_request* requests, int32_t n) {
  return guarded([&] {
    if (n < 0 || (n && !requests)) throw Failure(EDGEDEC_USAGE, "requests: none are there");
    for (int32_t i = 0; i < n; i++) {
      if (requests[i].size != sizeof(edgedec_request))
        throw Failure(EDGEDEC_USAGE, "requests: each begins with its size: request.size = sizeof request");
      need(requests[i].session, "session"), check_result(requests[i].result);
      if (&requests[i].session->session.model() != &requests[0].session->session.model())
        throw Failure(EDGEDEC_USAGE, "requests: sessions of several models");
      requests[i].status = EDGEDEC_OK;
    }
    std::vector<std::unique_ptr<Use>> uses;
    for (int32_t i = 0; i < n; i++) uses.push_back(std::make_unique<Use>(requests[i].session->session));
    std::vector<std::unique_ptr<Generation>> made;
    std::vector<Generation*> all;
    std::vector<int32_t> of;
    std::string first;
    for (int32_t i = 0; i < n; i++) {
      const edgedec_request& r = requests[i];
      try {
        made.push_back(std::make_unique<Generation>(r.session->session, r.prompt, r.n, r.options, r.result));
        all.push_back(made.back().get()), of.push_back(i);
      } catch (const Failure& failure) {
        requests[i].status = failure.status;
        if (first.empty()) first = failure.message;
      }
    }
    std::vector<int> statuses(all.size(), EDGEDEC_OK);
    std::vector<std::string> messages(all.size());
    run_generations(all, statuses, messages);
    for (size_t i = 0; i < all.size(); i++) requests[of[i]].status = statuses[i];
  });
}

// ---- text ------------------------------------------------------------------------------------------

int32_t edgedec_encode(const edgedec_model* model, const char* text, int64_t bytes, int32_t flags, int32_t* out, int32_t room) {
  int32_t count = 0;
  const int status = guarded([&] {
    need(model, "model"), need(text, "text");
    const std::string_view view = bytes < 0 ? std::string_view(text) : std::string_view(text, (size_t)bytes);
    const auto ids = model->model->tokenizer().encode(view, flags & EDGEDEC_SPECIAL, flags & EDGEDEC_AROUND);
    count = (int32_t)ids.size();
    for (int32_t i = 0; out && i < count && i < room; i++) out[i] = ids[(size_t)i];
  });
  return status ? -status : count;
}

int64_t edgedec_decode(const edgedec_model* model, const int32_t* tokens, int32_t n, int32_t flags, char* out, int64_t room) {
  int64_t count = 0;
  const int status = guarded([&] {
    need(model, "model");
    if (n < 0 || (n && !tokens)) throw Failure(EDGEDEC_USAGE, "tokens: no tokens, or less than none");
    const std::string text = model->model->tokenizer().decode(tokens, (size_t)n, flags & EDGEDEC_SPECIAL);
    count = (int64_t)text.size();
    if (!out || room < 1) return;
    const size_t kept = std::min((size_t)room - 1, text.size());
    std::memcpy(out, text.data(), kept);
    out[kept] = '\0';
  });
  return status ? -status : count;
}
