// What the fuzzers call, for libFuzzer and for driver.cpp: EDGEDEC_FUZZ_TARGET names one of TARGETS, EDGEDEC_FUZZ_BUNDLE a
// small packed bundle with a tokenizer. Sanitizers say what is wrong; what is refused must have a name and a line of text.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "calls.h"
#include "edgedec.h"
#include "failure.h"
#include "input.h"
#include "json.h"
#include "regex.h"
#include "targets.h"
#include "tokenizer.h"

namespace fuzz {

namespace {

using namespace edgedec::lib;

void need(bool good) {
  if (!good) std::abort();
}

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A refusal has a name and one line.
bool refused(int status) {
  if (status == EDGEDEC_OK) return false;
  const std::string why = edgedec_last_error();
  need(!why.empty() && why.find('\n') == std::string::npos && std::string(edgedec_status_name(status)) != "unknown");
  return true;
}

edgedec_open_options one_thread() {
  edgedec_open_options options;
  edgedec_open_options_init(&options, sizeof options);
  options.threads = 1;
  return options;
}

// Says something, computes a little, and closes it; whether there was a model.
bool conversed(int status, edgedec_model* model) {
  const bool good = !refused(status);
  need(good == (model != nullptr));
  if (good) converse(model);
  edgedec_close(model);
  return good;
}

// Opens what lies in memory.
bool used(const std::string& raw) {
  auto* memory = (char*)std::aligned_alloc(64, (raw.size() + 63) / 64 * 64 + 64);
  std::memcpy(memory, raw.data(), raw.size());
  const edgedec_open_options options = one_thread();
  edgedec_model* model = nullptr;
  const int status = edgedec_open_memory(memory, raw.size(), &options, &model);
  const bool good = conversed(status, model);
  std::free(memory);
  return good;
}

void write(const std::string& path, const std::string& content) {
  FILE* out = std::fopen(path.c_str(), "wb");
  need(out && std::fwrite(content.data(), 1, content.size(), out) == content.size());
  std::fclose(out);
}

// Opens it as a file, or at a place inside of one, with every hash checked.
bool used_as_file(const std::string& raw, const std::string& path, bool inside) {
  edgedec_open_options options = one_thread();
  options.verify = 1;
  edgedec_model* model = nullptr;
  write(path, inside ? std::string(4096, 'x') + raw + "more" : raw);
  if (!inside) return conversed(edgedec_open(path.c_str(), &options, &model), model);
  const int fd = ::open(path.c_str(), O_RDONLY);
  const int status = edgedec_open_fd(fd, 4096, raw.size(), &options, &model);
  ::close(fd);
  return conversed(status, model);
}

struct Toy {
  Toy() : raw(content_of(getenv("EDGEDEC_FUZZ_BUNDLE"))), files(unpacked(raw)) {
    edgedec_open_options options = one_thread();
    need(!edgedec_open_memory(aligned(), raw.size(), &options, &model));
    need(!edgedec_session_new(model, nullptr, &session));
    options.memory_limit = 60000, options.prefix_tokens = 40, options.on_pressure = [](void*, uint64_t needed) { return need(needed > 0), 0; };
    need(!edgedec_open_memory(memory, raw.size(), &options, &narrow));
    const char* folder = getenv("TMPDIR");
    file = std::string(folder ? folder : "/tmp") + "/edgedec-fuzz-" + std::to_string((unsigned long)(uintptr_t)this ^ (unsigned long)time(nullptr));
  }
  ~Toy() { edgedec_session_free(session), edgedec_close(model), edgedec_close(narrow), std::free(memory), std::remove(file.c_str()); }
  const void* aligned() {
    memory = std::aligned_alloc(64, (raw.size() + 63) / 64 * 64);
    return std::memcpy(memory, raw.data(), raw.size());
  }
  const std::string raw;
  const std::vector<File> files;
  void* memory = nullptr;
  edgedec_model* model = nullptr;
  edgedec_model* narrow = nullptr;  // one whose caches have a limit, and which keeps the beginnings of texts
  edgedec_session* session = nullptr;
  std::string file;  // a place for one
};

Toy& toy() {
  static Toy one;
  return one;
}

// ---- targets ---------------------------------------------------------------------------------------

bool json(std::string_view text) {
  try {
    const Json value = parse_json(text, EDGEDEC_CORRUPT, "input");
    need(value.kind != Json::STRING || parse_json(json_string(value.text), 0, "again").text == value.text);
    return true;
  } catch (const Failure& failure) {
    need(failure.status == EDGEDEC_CORRUPT);
    return false;
  }
}

bool pattern(std::string_view text) {
  const size_t end = std::min(text.find('\0'), text.size());
  std::vector<uint32_t> points;
  for (size_t at = end + 1; at < text.size() && points.size() < 60;) points.push_back(next_utf8(text, at));
  try {
    const Regex regex(text.substr(0, end), "input");
    for (size_t at = 0; at <= points.size(); at++) {
      const int64_t to = regex.match(points, at);
      need(to == -1 || (to >= (int64_t)at && to <= (int64_t)points.size()));
    }
    return true;
  } catch (const Failure& failure) {
    need(failure.status == EDGEDEC_TEXT);
    return false;
  }
}

void say(const Tokenizer& tokenizer, const char* text) {
  const auto ids = tokenizer.encode(text, true, true);
  tokenizer.decode(ids.data(), ids.size(), false);
  TextStream stream(tokenizer, {"n <"}, {});
  std::string out;
  for (const int32_t id : ids)
    if (stream.push(id, out)) break;
  stream.flush(out);
}

bool tokenizer(std::string_view text) {
  try {
    const auto made = Tokenizer::load(text, "input");
    for (const char* said : {"Once upon <s> \xC3\xA9 12 it's", "  \xE2\x96\x81\xF0\x9F\x99\x82\n\n"}) say(*made, said);
    return true;
  } catch (const Failure& failure) {
    need(failure.status == EDGEDEC_TEXT || failure.status == EDGEDEC_USAGE);
    return false;
  }
}

bool text(std::string_view given) {
  std::vector<int32_t> ids(given.size() + 8);
  const int32_t n = edgedec_encode(toy().model, given.data(), (int64_t)given.size(), EDGEDEC_SPECIAL, ids.data(), (int32_t)ids.size());
  if (n < 0) return !refused(-n);
  std::vector<char> back(given.size() * 4 + 64);
  need(edgedec_decode(toy().model, ids.data(), std::min(n, (int32_t)ids.size()), EDGEDEC_SPECIAL, back.data(), (int64_t)back.size()) >= 0);
  return true;
}

bool manifest(std::string_view text) {
  std::vector<File> files = toy().files;
  for (File& file : files)
    if (file.name == "edgedec.json") file.content = text;
  return used(packed(files));
}

bool index(std::string_view raw) {
  const std::string mended = mended_pack(std::string(raw));
  const size_t how = mended.size() % 16;  // files are slow
  return how < 2 ? used_as_file(mended, toy().file, how) : used(mended);
}

bool session(std::string_view text) {
  write(toy().file, array_file("EDGESESS", text));
  if (refused(edgedec_session_load(toy().session, toy().file.c_str()))) return false;
  edgedec_step(toy().session, 5);
  return true;
}

bool adapter(std::string_view text) {
  write(toy().file, array_file("EDGELORA", text));
  edgedec_adapter* made = nullptr;
  if (refused(edgedec_adapter_open(toy().model, toy().file.c_str(), &made))) return false;
  edgedec_session_options options;
  edgedec_session_options_init(&options, sizeof options);
  options.adapter = made;
  edgedec_session* fresh = nullptr;
  need(!edgedec_session_new(toy().model, &options, &fresh));
  edgedec_step(fresh, 5);
  edgedec_session_free(fresh), edgedec_adapter_close(made);
  return true;
}

bool calls(std::string_view text) {
  Input input((const uint8_t*)text.data(), text.size());
  return call_anything(input.below(2) ? toy().model : toy().narrow, input, toy().file) > 0;
}

const struct {
  const char* name;
  bool (*run)(std::string_view);
} TARGETS[] = {{"json", json}, {"pattern", pattern}, {"tokenizer", tokenizer}, {"text", text}, {"manifest", manifest},
               {"index", index}, {"session", session}, {"adapter", adapter}, {"calls", calls}};

}  // namespace

bool accepted(const uint8_t* data, size_t size) {
  static const auto* target = [] {
    const char* name = getenv("EDGEDEC_FUZZ_TARGET");
    for (const auto& each : TARGETS)
      if (name && !std::strcmp(each.name, name)) return &each;
    std::fprintf(stderr, "EDGEDEC_FUZZ_TARGET: none of the targets\n");
    std::exit(2);
  }();
  return target->run({(const char*)data, size});
}

void write_seeds(const std::string& folder) {
  for (const File& file : toy().files) {
    if (file.name == "edgedec.json") write(folder + "/manifest", file.content), write(folder + "/json", file.content);
    if (file.name == "tokenizer.json") write(folder + "/tokenizer", file.content);
  }
  write(folder + "/index", packed(toy().files));
  const int32_t prompt[] = {12, 37, 8};
  edgedec_generate_options options;
  edgedec_generate_options_init(&options, sizeof options);
  options.max_tokens = 2;
  need(!edgedec_generate(toy().session, prompt, 3, &options, nullptr));
  need(!edgedec_session_save(toy().session, toy().file.c_str()));
  write(folder + "/session", array_text(content_of(toy().file)));
}

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::accepted(data, size);
  return 0;
}
