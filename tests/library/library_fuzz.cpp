// Random input for every entry of libedgedec: packed bundles whose manifest or tokenizer was changed (hashes made right
// again, so that what lies deeper is reached), saved sessions, and calls in any order with any arguments.
//
//     library_fuzz MODE FILE COUNT SEED    MODE: manifest, tokenizer, index, session, calls; FILE: a packed bundle
//
// Prints how many there were and how many of them were accepted. Sanitizers say what is wrong.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "edgedec.h"
#include "json.h"
#include "sha256.h"

namespace {

std::mt19937_64 rng;
size_t below(size_t n) { return n ? rng() % n : 0; }

const char* const WORDS[] = {"null", "-1", "0", "1e999", "18446744073709551616", "\"\"", "[]", "{}", "true", "16777217",
                             "2147483648", "1.5", "[[[[[[[[", "\"\\ud800\"", "\"<0xE2>\"", "4503599627370496"};

std::string changed(std::string text) {
  for (size_t i = 0, n = 1 + below(3); i < n && !text.empty(); i++) {
    const size_t at = below(text.size()), size = below(std::min<size_t>(24, text.size() - at)) + 1;
    switch (below(6)) {
      case 0: text[at] = (char)rng(); break;
      case 1: text.erase(at, size); break;
      case 2: text.insert(at, text.substr(below(text.size()), size)); break;
      case 3: text.insert(at, WORDS[below(16)]); break;
      case 4: {  // a number or a word becomes another
        size_t from = text.find_first_of(":,[", at);
        if (from == std::string::npos) break;
        const size_t to = text.find_first_of(",]}", ++from);
        if (to != std::string::npos && to - from < 200) text.replace(from, to - from, WORDS[below(16)]);
        break;
      }
      default: text[at] ^= (char)(1 << below(8));
    }
  }
  return text;
}

void put(std::string& out, size_t at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) out[at + i] = (char)(value >> 8 * i);
}

uint64_t get(const std::string& in, size_t at) {
  uint64_t value = 0;
  for (int i = 8; i-- > 0;) value = value << 8 | (unsigned char)in[at + i];
  return value;
}

struct File {
  std::string name, content;
};

std::vector<File> unpacked(const std::string& raw) {
  using namespace edgedec::lib;
  std::vector<File> out;
  const Json index = parse_json(std::string_view(raw).substr(64, get(raw, 16)), 0, "index");
  for (const auto& [name, place] : index.find("files")->members)
    out.push_back({name, raw.substr(std::stoull(place.items[0].text), std::stoull(place.items[1].text))});
  return out;
}

// A packed bundle of these files with right hashes of the index and the manifest.
std::string packed(const std::vector<File>& files, bool spoil_index) {
  using namespace edgedec::lib;
  std::string index, digest;
  for (const File& file : files)
    if (file.name == "edgedec.json") digest = sha256_hex(file.content.data(), file.content.size());
  std::vector<size_t> places(files.size());
  size_t total = 0;
  for (int round = 0; round < 3; round++) {
    size_t at = 64 + std::max<size_t>(index.size(), 4096);
    std::string text = "{\"manifest\": \"" + digest + "\", \"files\": {";
    for (size_t i = 0; i < files.size(); i++) {
      places[i] = at = (at + 63) / 64 * 64;
      text += (i ? ", \"" : "\"") + files[i].name + "\": [" + std::to_string(at) + ", " + std::to_string(files[i].content.size()) + "]";
      at += files[i].content.size();
    }
    index = text + "}}", total = at;
  }
  if (spoil_index) index = changed(index);
  index.resize(std::max<size_t>(index.size(), 4096), ' ');
  std::string out(total, '\0');
  if (out.size() < 64 + index.size()) out.resize(64 + index.size());
  std::memcpy(out.data(), "EDGEPACK", 8);
  put(out, 8, 1, 4), put(out, 16, index.size(), 8), put(out, 24, out.size(), 8);
  Sha256 hash;
  hash.add(index.data(), index.size());
  hash.digest((uint8_t*)out.data() + 32);
  for (size_t i = 0; i < files.size(); i++) std::memcpy(out.data() + places[i], files[i].content.data(), files[i].content.size());
  std::memcpy(out.data() + 64, index.data(), index.size());
  return out;
}

File& named(std::vector<File>& files, const std::string& name) {
  for (File& file : files)
    if (file.name == name) return file;
  std::abort();
}

// Opens it from memory, says something and generates a little.
bool opened(const std::string& raw) {
  auto* memory = (char*)std::aligned_alloc(64, (raw.size() + 63) / 64 * 64);
  std::memcpy(memory, raw.data(), raw.size());
  edgedec_model* model = nullptr;
  const bool good = !edgedec_open_memory(memory, raw.size(), nullptr, &model);
  if (good == (model == nullptr)) std::abort();
  if (!good && !*edgedec_last_error()) std::abort();
  if (good) {
    edgedec_session* session = nullptr;
    edgedec_session_options options;
    edgedec_session_options_init(&options, sizeof options);
    options.context = 16;
    int32_t ids[64];
    const int32_t n = edgedec_encode(model, "Once <|endoftext|> \xC3\xA9 12 it's", -1, (int32_t)below(4), ids, 64);
    char text[64];
    edgedec_decode(model, ids, n < 0 ? 0 : std::min(n, 64), 0, text, sizeof text);
    if (!edgedec_session_new(model, below(2) ? &options : nullptr, &session)) {
      edgedec_prefill(session, ids, n < 0 ? 0 : std::min(n, 8));
      edgedec_step(session, 3);
    }
    edgedec_session_free(session);
    edgedec_close(model);
  }
  std::free(memory);
  return good;
}

long bundles(const std::string& mode, const std::string& raw, long count) {
  using namespace edgedec::lib;
  std::vector<File> all = unpacked(raw), files;
  for (File& file : all)
    if (file.name == "edgedec.json" || file.name == "weights.bin" || file.name == "tokenizer.json") files.push_back(file);
  // Of the manifest only what these files need.
  std::string& manifest = named(files, "edgedec.json").content;
  const std::string whole = manifest;
  long accepted = 0;
  for (long i = 0; i < count; i++) {
    std::vector<File> now = files;
    if (mode == "manifest") named(now, "edgedec.json").content = changed(whole);
    if (mode == "tokenizer") {
      std::string& json = named(now, "tokenizer.json").content;
      const std::string before = sha256_hex(json.data(), json.size()), size = std::to_string(json.size());
      // Most of it is vocabulary: what stands before and behind is more of interest.
      const size_t edge = json.find("\"vocab\"");
      json = below(2) && edge != std::string::npos ? changed(json.substr(0, edge)) + json.substr(edge) : changed(json);
      std::string& facts = named(now, "edgedec.json").content;
      const size_t at = facts.find(before);
      if (at == std::string::npos) std::abort();
      facts.replace(at, 64, sha256_hex(json.data(), json.size()));
      const size_t from = facts.rfind(size, at);
      facts.replace(from, size.size(), std::to_string(json.size()));
    }
    std::string bytes = packed(now, mode == "index");
    if (mode == "index" && below(3) == 0) bytes = changed(bytes.substr(0, 64)).substr(0, 64) + bytes.substr(64);
    accepted += opened(bytes);
  }
  return accepted;
}

long sessions(const std::string& path, long count) {
  edgedec_model* model;
  edgedec_session *session, *other;
  if (edgedec_open(path.c_str(), nullptr, &model) || edgedec_session_new(model, nullptr, &session)) std::abort();
  if (edgedec_session_new(model, nullptr, &other)) std::abort();
  const int32_t prompt[] = {12, 375, 278};
  edgedec_generate_options options;
  edgedec_generate_options_init(&options, sizeof options);
  options.max_tokens = 6;
  if (edgedec_generate(session, prompt, 3, &options, nullptr)) std::abort();
  const std::string file = path + ".fuzzed-session";
  if (edgedec_session_save(session, file.c_str())) std::abort();
  std::ifstream in(file, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  long accepted = 0;
  for (long i = 0; i < count; i++) {
    std::string bad = good;
    const size_t head = 48 + get(good, 40);
    if (below(2)) {
      const std::string header = changed(good.substr(48, head - 48));
      bad = good.substr(0, 48) + header + good.substr(head), put(bad, 40, header.size(), 8);
    } else {
      bad = good.substr(0, head) + changed(good.substr(head));
    }
    edgedec::lib::Sha256 hash;
    hash.add(bad.data() + 40, bad.size() - 40);
    hash.digest((uint8_t*)bad.data() + 8);
    std::ofstream(file, std::ios::binary) << bad;
    if (!edgedec_session_load(other, file.c_str())) accepted++, edgedec_step(other, 5);
  }
  std::remove(file.c_str());
  edgedec_session_free(session), edgedec_session_free(other), edgedec_close(model);
  return accepted;
}

long calls(const std::string& path, long count) {
  edgedec_model* model;
  if (edgedec_open(path.c_str(), nullptr, &model)) std::abort();
  std::vector<edgedec_session*> all;
  long accepted = 0;
  const auto number = [&]() -> int32_t {
    static const int32_t ODD[] = {-1, 0, 1, 4095, 4096, INT32_MAX, INT32_MIN, 1024};
    return below(3) ? (int32_t)below(4096) : ODD[below(8)];
  };
  for (long i = 0; i < count; i++) {
    edgedec_session* s = all.empty() || !below(50) ? nullptr : all[below(all.size())];
    std::vector<int32_t> ids(below(40));
    for (int32_t& id : ids) id = below(30) ? (int32_t)below(4096) : number();
    const int32_t n = below(20) ? (int32_t)ids.size() : std::min<int32_t>(number(), 0);
    const int32_t* given = below(20) ? ids.data() : nullptr;
    edgedec_sampling sampling;
    edgedec_sampling_init(&sampling, sizeof sampling);
    const double odd[] = {0, 0.5, 1, 2, -1, 1e300, 0.0 / 1, 1e-300};
    sampling.temperature = odd[below(8)], sampling.top_p = odd[below(8)], sampling.min_p = odd[below(8)];
    sampling.typical_p = odd[below(8)], sampling.repetition_penalty = odd[below(8)], sampling.top_k = number();
    const float bias[] = {1, -2};
    const int32_t tokens[] = {number(), number()};
    if (below(3) == 0) sampling.n_bias = 2, sampling.bias_tokens = tokens, sampling.bias = bias;
    edgedec_generate_options options;
    edgedec_generate_options_init(&options, below(10) ? sizeof options : below(sizeof options + 1));
    if (options.size >= sizeof options) {
      options.max_tokens = (int32_t)below(12), options.min_tokens = below(9) ? 0 : number(), options.text = (int32_t)below(2);
      options.logprobs = below(4) ? -1 : number() % 50, options.sampling = &sampling;
    }
    edgedec_result result;
    result.size = below(20) ? sizeof result : below(200);
    int status = 0;
    int32_t token = 0;
    switch (below(16)) {
      case 0: {
        edgedec_session_options made;
        edgedec_session_options_init(&made, sizeof made);
        made.context = below(3) ? (int32_t)below(200) : number(), made.sinks = below(2) ? -1 : (int32_t)below(60);
        static const char* const NAMES[] = {nullptr, "off", "auto", "copy", "copy+suffix", "trigram", "x", "", "+", "recycling"};
        made.speculate = NAMES[below(10)], made.draft = below(4) ? (int32_t)below(10) : number();
        edgedec_session* fresh = nullptr;
        status = edgedec_session_new(model, &made, &fresh);
        if (fresh) all.push_back(fresh);
        break;
      }
      case 1: {
        edgedec_session* fresh = nullptr;
        status = edgedec_session_fork(s, &fresh);
        if (fresh) all.push_back(fresh);
        break;
      }
      case 2: status = edgedec_prefill(s, given, n); break;
      case 3: status = edgedec_step(s, number()); break;
      case 4: status = edgedec_step_many(all.data(), ids.data(), std::min<int32_t>((int32_t)all.size(), (int32_t)ids.size())); break;
      case 5: status = edgedec_sample(s, &sampling, &token); break;
      case 6: {
        std::vector<double> out(ids.size() + 1);
        status = edgedec_score(s, given, n, out.data());
        break;
      }
      case 7: status = edgedec_session_append(s, given, n); break;
      case 8: status = edgedec_session_truncate(s, (int32_t)below(60) - 1); break;
      case 9: {
        std::vector<edgedec_request> many(below(4));
        for (edgedec_request& r : many) {
          r = {sizeof r, all.empty() ? nullptr : all[below(all.size())], ids.data(), (int32_t)ids.size(), 0, &options, nullptr};
          if (below(4) == 0) r.prompt = nullptr;
        }
        status = edgedec_generate_many(many.data(), (int32_t)many.size());
        break;
      }
      case 10: {
        std::string text;
        for (size_t k = below(30); k; k--) text += below(5) ? (char)(32 + below(95)) : (char)rng();
        int32_t out[8];
        status = edgedec_encode(model, text.data(), (int64_t)text.size(), (int32_t)below(4), out, (int32_t)below(9)) < 0;
        char shown[16];
        edgedec_decode(model, ids.data(), (int32_t)ids.size(), (int32_t)below(4), shown, (int64_t)below(17));
        break;
      }
      case 11: edgedec_cancel(s); break;
      default: status = edgedec_generate(s, given, n, &options, &result);
    }
    accepted += status == 0;
    if (float* logits = edgedec_logits(s)) logits[below(4096)] += 1;
    while (all.size() > 6) edgedec_session_free(all[0]), all.erase(all.begin());
  }
  for (edgedec_session* each : all) edgedec_session_free(each);
  edgedec_close(model);
  return accepted;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string mode = argv[1], path = argv[2];
  const long count = std::atol(argv[3]);
  rng.seed(std::strtoull(argv[4], nullptr, 10));
  std::ifstream in(path, std::ios::binary);
  const std::string raw((std::istreambuf_iterator<char>(in)), {});
  const long accepted = mode == "session" ? sessions(path, count) : mode == "calls" ? calls(path, count) : bundles(mode, raw, count);
  std::printf("%ld %ld\n", count, accepted);
}
