// The main cases of the tests of libedgedec, for machines where those in Python cannot run: errors by name, text, saved files,
// threads, cancellation, memory limits, packed bundles.
#include <fcntl.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "replay.h"

#if defined(_WIN32)
#include <io.h>
#define OPEN_FLAGS (_O_RDONLY | _O_BINARY)
#else
#include <unistd.h>
#define OPEN_FLAGS O_RDONLY
#endif

namespace replay {

namespace {

struct Given {
  std::string bundle, packed, scratch;
};

void need(bool good, const std::string& what) {
  if (!good) throw std::runtime_error("not so: " + what + " (" + edgedec_last_error() + ")");
}

void refused(int status, int with) {
  need(status == with, std::string("refused as ") + edgedec_status_name(with) + ", was " + edgedec_status_name(status));
  need(*edgedec_last_error() && !std::strchr(edgedec_last_error(), '\n'), "one line says why");
}

edgedec_open_options options_of() {
  edgedec_open_options options;
  edgedec_open_options_init(&options, sizeof options);
  options.threads = 1;
  return options;
}

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void library(const Given&) {
  need(edgedec_abi() == EDGEDEC_ABI && *edgedec_version() && *edgedec_isa(), "version and instruction set");
}

void refusals(const Given& given) {
  edgedec_model* model = nullptr;
  refused(edgedec_open((given.scratch + "/none").c_str(), nullptr, &model), EDGEDEC_NOT_FOUND);
  std::ofstream(given.scratch + "/bad.edb", std::ios::binary) << std::string(5000, 'x');
  refused(edgedec_open((given.scratch + "/bad.edb").c_str(), nullptr, &model), EDGEDEC_CORRUPT);
  std::string raw = content(given.packed);
  raw[raw.size() - 1] ^= 1;
  std::ofstream(given.scratch + "/bad.edb", std::ios::binary) << raw;
  edgedec_open_options checked = options_of();
  checked.verify = 1;
  refused(edgedec_open((given.scratch + "/bad.edb").c_str(), &checked, &model), EDGEDEC_CORRUPT);
  checked.isa = "sse";
  refused(edgedec_open(given.bundle.c_str(), &checked, &model), EDGEDEC_UNAVAILABLE);
  need(!model, "no model of it");
  const Model opened(given.bundle, "f32");
  edgedec_adapter* adapter = nullptr;
  need(edgedec_adapter_open(opened.get(), (given.scratch + "/none.lora").c_str(), &adapter) && !adapter, "no adapter there");
  Session session(opened, "off");
  const int32_t outside = 4096;
  refused(edgedec_prefill(session.get(), &outside, 1), EDGEDEC_USAGE);
  edgedec_generate_options masked = plain(3);
  masked.constraint = "yes|no", masked.constraint_kind = "regex";
  refused(edgedec_generate(session.get(), nullptr, 0, &masked, nullptr), EDGEDEC_UNAVAILABLE);
}

void texts(const Given& given) {
  const Model model(given.bundle, "f32");
  const std::string text = "Gr\xC3\xBC\xC3\x9F dich, \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x99\x82 it's 12";
  const std::vector<int32_t> ids = model.encode(text);
  char back[200];
  const int64_t n = edgedec_decode(model.get(), ids.data(), (int32_t)ids.size(), 0, back, sizeof back);
  need(n > 0 && text == back, "decoded is what was encoded");
  Session session(model, "off");
  edgedec_generate_options options = plain(60);
  const char* stop[] = {"Lily"};
  std::string said;
  options.stop = stop, options.n_stop = 1, options.text = 1, options.token_user = &said;
  options.on_token = [](void* into, const edgedec_token* token) {
    static_cast<std::string*>(into)->append(token->text, token->text_bytes);
    return 0;
  };
  edgedec_result result = blank();
  check(edgedec_generate_text(session.get(), "Once upon a time", &options, &result));
  need(said == ", there was a little girl named " && result.finish == EDGEDEC_STOP, "a stop string ends it: " + said);
}

void files(const Given& given) {
  const Model model(given.bundle, "int8");
  const std::vector<int32_t> prompt = model.encode("One day, a dog");
  // A name that is not in the system's own alphabet; written twice, so that one is replaced.
  const std::string path = given.scratch + "/\xC3\x9C\x62\x65r \xE6\x97\xA5\xE6\x9C\xAC.session";
  Session session(model, "auto"), other(model, "off");
  generated(session, &prompt, plain(20), nullptr);
  for (int i = 0; i < 2; i++) check(edgedec_session_save(session.get(), path.c_str()));
  check(edgedec_session_load(other.get(), path.c_str()));
  need(other.ids() == session.ids(), "the text is there again");
  need(generated(session, nullptr, plain(20), nullptr) == generated(other, nullptr, plain(20), nullptr), "it goes on alike");
  const std::vector<int32_t> before = other.ids();
  std::ofstream(given.scratch + "/damaged", std::ios::binary) << std::string(900, 'y');
  refused(edgedec_session_load(other.get(), (given.scratch + "/damaged").c_str()), EDGEDEC_SESSION);
  refused(edgedec_session_save(other.get(), (given.scratch + "/no/s").c_str()), EDGEDEC_IO);
  need(other.ids() == before, "a refused file changes nothing");
}

void packed_bundles(const Given& given) {
  const std::vector<int32_t> prompt = {0, 392, 401, 259, 372};
  const Model folder(given.bundle, "f32"), file(given.packed, "f32");
  const std::vector<int32_t> want = generated(Session(folder, "off"), &prompt, plain(20), nullptr);
  need(want.size() == 20 && want == generated(Session(file, "off"), &prompt, plain(20), nullptr), "one file");
  const std::string raw = content(given.packed);
  std::vector<char> memory(raw.size() + 64);
  char* at = memory.data() + (64 - (uintptr_t)memory.data() % 64) % 64;
  std::memcpy(at, raw.data(), raw.size());
  edgedec_model* made = nullptr;
  check(edgedec_open_memory(at, raw.size(), nullptr, &made));
  const Model held(made);
  need(want == generated(Session(held, "off"), &prompt, plain(20), nullptr), "in memory");
  const std::string app = given.scratch + "/app.bin";
  std::ofstream(app, std::ios::binary) << std::string(70016, 'z') << raw << "more";
  const int fd = open(app.c_str(), OPEN_FLAGS);
  check(edgedec_open_fd(fd, 70016, raw.size(), nullptr, &made));
  close(fd);
  const Model inside(made);
  need(want == generated(Session(inside, "off"), &prompt, plain(20), nullptr), "inside of another file");
}

void together(const Given& given) {
  const Model model(given.bundle, "f16");
  const std::vector<int32_t> prompts[] = {model.encode("Once upon a time"), model.encode("The dog")};
  Session sessions[] = {Session(model, "auto"), Session(model, "off")};
  edgedec_session* both[] = {sessions[0].get(), sessions[1].get()};
  edgedec_generate_options options = plain(24);
  edgedec_request requests[2] = {};
  for (int i = 0; i < 2; i++)
    requests[i] = {sizeof requests[i], both[i], prompts[i].data(), (int32_t)prompts[i].size(), 0, &options, nullptr};
  check(edgedec_generate_many(requests, 2));
  for (int i = 0; i < 2; i++) {
    const Session alone(model, "off");
    generated(alone, &prompts[i], plain(24), nullptr);
    need(requests[i].status == 0 && alone.ids() == sessions[i].ids(), "each as alone");
  }
  const int32_t next[] = {14, 15};
  check(edgedec_step_many(both, next, 2));
  const Session alone(model, "off");
  const std::vector<int32_t> text = sessions[1].ids();
  check(edgedec_prefill(alone.get(), text.data(), (int32_t)text.size()));
  need(!std::memcmp(edgedec_logits(alone.get()), edgedec_logits(both[1]), sizeof(float) * 4096), "the bytes of each alone");
  double score = 0;
  check(edgedec_score(alone.get(), next, 1, &score));
  need(score < 0 && std::isfinite(score), "a log-probability");
}

void threads(const Given& given) {
  edgedec_open_options options = options_of();
  options.threads = 2, options.priority = 1, options.big_cores = 1;
  const Model model(given.bundle, options);
  const std::vector<int32_t> prompt = model.encode("Once upon a time");
  const std::vector<int32_t> want = generated(Session(model, "off"), &prompt, plain(40), nullptr);
  std::vector<int32_t> found[3];
  std::vector<std::thread> all;
  for (std::vector<int32_t>& each : found)
    all.emplace_back([&] { each = generated(Session(model, "off"), &prompt, plain(40), nullptr); });
  for (std::thread& each : all) each.join();
  for (const std::vector<int32_t>& each : found) need(each == want, "the same in every thread");
}

// What a callback of a running generation finds out.
struct Running {
  edgedec_session* session;
  std::atomic<int> seen{0};
  int busy = 0;
};

int interrupt(void* user, const edgedec_token*) {
  auto& running = *static_cast<Running*>(user);
  if (++running.seen == 5)
    std::thread([&] {
      running.busy = edgedec_step(running.session, 1);
      edgedec_cancel(running.session);
    }).join();
  return 0;
}

void cancelled(const Given& given) {
  const Model model(given.bundle, "f32");
  const Session session(model, "off");
  edgedec_generate_options options = plain(500);
  Running running{session.get()};
  options.ignore_eos = 1, options.on_token = interrupt, options.token_user = &running;
  refused(edgedec_generate_text(session.get(), "Once upon a time", &options, nullptr), EDGEDEC_CANCELLED);
  need(running.busy == EDGEDEC_BUSY, "another thread is refused");
  need(running.seen >= 5 && running.seen < 10, "it ends soon");
  need(edgedec_session_length(session.get()) == 5 + running.seen, "the text is as far as it has come");
}

void memory(const Given& given) {
  int asked = 0;
  edgedec_open_options options = options_of();
  options.memory_limit = 1500000, options.pressure_user = &asked;
  options.on_pressure = [](void* user, uint64_t) { return ++*static_cast<int*>(user), 0; };
  const Model model(given.bundle, options);
  const Session session(model, "off");
  const std::vector<int32_t> many(900, 5), few(9, 5);
  refused(edgedec_prefill(session.get(), many.data(), 900), EDGEDEC_MEMORY);
  need(asked > 0, "the program was asked for memory");
  check(edgedec_prefill(session.get(), few.data(), 9));
  edgedec_memory_use use{};
  check(edgedec_memory(model.get(), &use, sizeof use));
  need(use.cache_bytes > 0 && use.cache_bytes <= use.limit && use.sessions == 1, "what is in use");
  check(edgedec_trim(model.get()));
}

void progress(const Given& given) {
  uint64_t last[2] = {0, 1};
  edgedec_open_options options = options_of();
  options.verify = 1, options.progress_user = last;
  options.on_progress = [](void* user, uint64_t done, uint64_t total) {
    auto* seen = static_cast<uint64_t*>(user);
    return seen[0] = done, seen[1] = total, 0;
  };
  const Model model(given.bundle, options);
  need(last[0] == last[1] && last[0] > 1000000, "up to the end");
  options.on_progress = [](void*, uint64_t, uint64_t) { return 1; };
  edgedec_model* none = nullptr;
  refused(edgedec_open(given.bundle.c_str(), &options, &none), EDGEDEC_CANCELLED);
}

const struct {
  const char* name;
  void (*run)(const Given&);
} CASES[] = {{"library", library}, {"refusals", refusals}, {"texts", texts}, {"files", files},
             {"packed bundles", packed_bundles}, {"together", together}, {"threads", threads}, {"cancelled", cancelled},
             {"memory", memory}, {"progress", progress}};

}  // namespace

int cases(const std::string& bundle, const std::string& packed, const std::string& scratch) {
  int failed = 0;
  for (const auto& each : CASES) try {
      each.run({bundle, packed, scratch});
      std::printf("%s\n", each.name);
    } catch (const std::exception& error) {
      failed++;
      std::fprintf(stderr, "%s: %s\n", each.name, error.what());
    }
  return failed;
}

}  // namespace replay
