// Replays what Python generated, where Python itself does not load libedgedec: on Windows, on ARM, with musl.
//
//     replay requests BUNDLE FILE OUT SCRATCH     a line of tokens a request
//     replay golden BUNDLE KV OUT                 logits and tokens, as tests/golden/test_nano.py hashes them
//     replay cases BUNDLE PACKED SCRATCH          the cases of cases.cpp
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "replay.h"

namespace replay {

namespace {

struct Request {
  std::string kv, drafts, then;
  std::vector<int32_t> ids;
  edgedec_sampling sampling;
};

// A double by its bits: no C library between here and Python rounds it.
double real(std::istream& in) {
  uint64_t bits = 0;
  double value;
  in >> bits;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

bool read(std::istream& in, Request& out) {
  size_t n = 0;
  if (!(in >> out.kv >> out.drafts >> out.then >> n)) return false;
  out.ids.resize(n);
  for (int32_t& id : out.ids) in >> id;
  edgedec_sampling& s = out.sampling;
  edgedec_sampling_init(&s, sizeof s);
  for (double* field : {&s.temperature, &s.top_p, &s.min_p, &s.typical_p, &s.repetition_penalty, &s.presence_penalty,
                        &s.frequency_penalty})
    *field = real(in);
  in >> s.top_k >> s.seed, s.seeded = 1;
  return (bool)in;
}

void write(std::ostream& out, const std::vector<int32_t>& tokens) {
  for (const int32_t token : tokens) out << token << ' ';
}

void replay(const Model& model, Request& request, const std::string& scratch, std::ostream& out) {
  Session session(model, request.drafts.c_str());
  edgedec_generate_options options = plain(16);
  options.sampling = &request.sampling;
  edgedec_result result = blank();
  write(out, generated(session, &request.ids, options, &result));
  Session other = request.then == "fork" ? session.fork() : Session(model, request.drafts.c_str());
  std::vector<int32_t> text = session.ids();
  if (request.then == "saved") {
    check(edgedec_session_save(session.get(), (scratch + "/s").c_str()));
    check(edgedec_session_load(other.get(), (scratch + "/s").c_str()));
  }
  text.resize(text.size() - std::min<size_t>(3, text.size()));
  const bool same = request.then == "on" || request.then == "cut";
  options.max_tokens = 10, request.sampling.seeded = 0;
  out << "| ";
  write(out, generated(same ? session : other, request.then == "cut" ? &text : nullptr, options, nullptr));
  out << "| " << result.accepted << '\n';
}

int requests(const std::string& bundle, const char* file, const char* into, const std::string& scratch) {
  std::ifstream in(file);
  std::ofstream out(into, std::ios::binary);
  std::map<std::string, Model> models;
  for (Request request; read(in, request);) {
    const auto found = models.find(request.kv);
    replay(found == models.end() ? models.emplace(request.kv, Model(bundle, request.kv.c_str())).first->second : found->second,
           request, scratch, out);
  }
  return out.flush() ? 0 : 1;
}

int golden(const std::string& bundle, const char* kv, const char* into) {
  const Model model(bundle, kv);
  Session session(model, "off"), other(model, "off");
  std::ofstream out(into, std::ios::binary);
  const std::vector<int32_t> prompt = model.encode("Once upon a time");
  for (size_t i = 0; i < prompt.size(); i++) {
    check(i ? edgedec_step(session.get(), prompt[i]) : edgedec_prefill(session.get(), prompt.data(), 1));
    out.write((const char*)edgedec_logits(session.get()), model.vocabulary() * (std::streamsize)sizeof(float));
  }
  const std::vector<int32_t> told = generated(other, &prompt, plain(30), nullptr);
  out.write((const char*)told.data(), (std::streamsize)(told.size() * sizeof told[0]));
  return out.flush() ? 0 : 1;
}

int run(int argc, char** argv) {
  const std::string act = argc > 1 ? argv[1] : "";
  if (act == "requests" && argc == 6) return requests(argv[2], argv[3], argv[4], argv[5]);
  if (act == "golden" && argc == 5) return golden(argv[2], argv[3], argv[4]);
  if (act == "cases" && argc == 5) return cases(argv[2], argv[3], argv[4]);
  return std::fprintf(stderr, "replay: no such act\n"), 2;
}

}  // namespace

}  // namespace replay

int main(int argc, char** argv) {
  try {
    return replay::run(argc, argv);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "replay: %s\n", error.what()), 1;
  }
}
