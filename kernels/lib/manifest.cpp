// The manifest edgedec.json: what edgedec/bundle/manifest.py and folder.py read and refuse, in C++.
#include <cstring>

#include "bundle.h"
#include "failure.h"
#include "sha256.h"

namespace edgedec::lib {

namespace {

constexpr uint64_t ALIGN = 64;
constexpr int VERSION = 9, OLDEST = 4;
constexpr int64_t LANES = 16;
constexpr int64_t SUPER = 256;
enum { F32 = 1, F16 = 2, INT8 = 3, INT4 = 4, INT3 = 5, INT2 = 6, INT5 = 7, INT6 = 8, NL4 = 9, UINT2 = 10, MX4 = 11 };
constexpr int BITS[] = {0, 0, 0, 8, 4, 3, 2, 5, 6, 4, 2, 4};

[[noreturn]] void corrupt(const std::string& why) { throw Failure(EDGEDEC_CORRUPT, why); }

uint64_t offset_of(const Json& value, const std::string& where) {
  const int64_t found = to_integer(value, where, EDGEDEC_CORRUPT);
  if (found < 0) corrupt(where + ": " + std::to_string(found) + " is out of range");
  return (uint64_t)found;
}

Tensor read_tensor(const Json& value, const std::string& where) {
  Fields f(value, where, EDGEDEC_CORRUPT);
  Tensor t;
  t.format = 1 + f.choice("format", WEIGHT_FORMATS);
  for (const Json& size : to_list(f.need("shape"), f.path("shape"), EDGEDEC_CORRUPT))
    t.shape.push_back(to_integer(size, f.path("shape"), EDGEDEC_CORRUPT));
  t.data = offset_of(f.need("data"), f.path("data"));
  if (const Json* scales = f.any("scales")) t.scales = offset_of(*scales, f.path("scales"));
  if (const Json* zeros = f.any("zeros")) t.zeros = offset_of(*zeros, f.path("zeros"));
  if (const Json* offsets = f.any("offsets")) t.offsets = offset_of(*offsets, f.path("offsets"));
  if (const Json* parts = f.any("parts")) t.parts = offset_of(*parts, f.path("parts"));
  t.block = f.integer("block", 0);
  t.row_scales = f.boolean("row_scales", false);
  t.layout = f.choice("layout", "rows interleave16", 0);
  f.done();
  return t;
}

// ---- where weights lie -----------------------------------------------------------------------------

// Shapes are those of the spec by now: their sizes are above 0 and below 2^51.
uint64_t elements(const Shape& shape) {
  constexpr int64_t MOST = (int64_t)1 << 48;
  int64_t n = 1;
  for (const int64_t size : shape) {
    if (size > INT32_MAX || size > MOST / n) corrupt("tensors: one is larger than any weights");
    n *= size;
  }
  return (uint64_t)n;
}

class Extents {
 public:
  Extents(uint64_t size, const std::string& where) : size_(size), where_(where) {}
  void check(const std::string& name, uint64_t offset, uint64_t bytes) const {
    if (offset % ALIGN || offset > size_ || bytes > size_ - offset)
      corrupt(where_ + ": " + name + " lies outside the weights or is not aligned");
  }

 private:
  const uint64_t size_;
  const std::string& where_;
};

constexpr int64_t LONGEST_ROW = 131072;  // inputs whose integer sums of products 32 bits hold

// Whether the format has blocks of this size, with parts of scales or without.
bool has_blocks(const Tensor& t) {
  const int64_t block = t.block;
  if (t.parts) {
    const bool format = t.format == INT3 || t.format == INT6 || t.format == UINT2;
    return format && block == 16 && t.shape.back() % SUPER == 0 && !t.zeros && !t.offsets;
  }
  if (t.format == INT5 || t.format == NL4 || t.format == MX4) return block == 32;
  if (t.format == INT6 || t.format == UINT2) return false;
  if (block != 16 && block != 32 && block != 64 && block != 128 && block != 256) return false;
  return block % 32 == 0 || (t.format != INT3 && t.format != INT2);
}

void check_tensor(const std::string& name, const Tensor& t, const ModelSpec& spec, const Extents& extents) {
  uint64_t rows = elements(t.shape) / (uint64_t)t.shape.back();
  const std::string what = "tensor " + name;
  if (t.format == F32 || t.format == F16) {
    if (t.format == F16 && !spec.is_matrix(name)) corrupt(what + ": f16, and no matrix");
    if (t.zeros || t.offsets || t.parts || t.row_scales || t.layout)
      corrupt(what + ": a float weight with zero points, offsets, parts, scales of rows or packed");
    return extents.check(name, t.data, elements(t.shape) * (t.format == F32 ? 4 : 2));
  }
  const int64_t block = t.block;
  if (!has_blocks(t) || !spec.is_matrix(name)) corrupt(what + ": block " + std::to_string(block));
  const bool usual = t.format == INT8 || t.format == INT4;
  if (t.zeros && (!usual || block < 32 || name == "embed"))
    corrupt(what + ": zero points in blocks of " + std::to_string(block));
  if (t.offsets && ((!usual && t.format != INT5) || block != 32 || t.zeros))
    corrupt(what + ": offsets in blocks of " + std::to_string(block));
  if (t.row_scales && (t.format != INT8 || block != 32 || t.zeros || t.offsets || t.shape.back() > LONGEST_ROW))
    corrupt(what + ": scales of rows in blocks of " + std::to_string(block));
  if (t.layout) rows = (rows + LANES - 1) / LANES * LANES;
  const uint64_t blocks = ((uint64_t)t.shape.back() + block - 1) / block;
  const uint64_t two = t.format == INT8 ? 2 * blocks : t.layout ? blocks : 2 * ((blocks + 1) / 2);
  const uint64_t scales = t.parts ? (uint64_t)(t.shape.back() / SUPER) * (t.format == UINT2 ? 2 : 1) : blocks;
  extents.check(name, t.data, rows * (blocks * block * BITS[t.format] / 8));
  extents.check(name + " (scales)", t.scales, rows * scales * 2);
  if (t.zeros) extents.check(name + " (zeros)", t.zeros, rows * two / 2);
  if (t.offsets) extents.check(name + " (offsets)", t.offsets, rows * blocks * 2);
  if (t.parts) extents.check(name + " (parts)", t.parts, rows * blocks);
}

// ---- parts of the manifest -------------------------------------------------------------------------

std::vector<std::string> names_in(const Json& value, const std::string& where) {
  std::vector<std::string> out;
  for (const Json& item : to_list(value, where, EDGEDEC_CORRUPT)) out.push_back(to_string(item, where, EDGEDEC_CORRUPT));
  return out;
}

int32_t token_of(const Json& value, const std::string& where) {
  const int64_t token = to_integer(value, where, EDGEDEC_CORRUPT);
  if (token < 0 || token > INT32_MAX) corrupt(where + ": " + std::to_string(token) + " is no token");
  return (int32_t)token;
}

TextFacts read_text(const Json& value, const std::string& where) {
  Fields f(value, where, EDGEDEC_CORRUPT);
  TextFacts text;
  const Json& tokenizer = f.need("tokenizer");
  if (tokenizer.kind != Json::NIL) text.tokenizer = to_string(tokenizer, f.path("tokenizer"), EDGEDEC_CORRUPT);
  const Json* bos = f.any("bos");
  if (bos && bos->kind != Json::NIL) text.bos = token_of(*bos, f.path("bos"));
  if (const Json* eos = f.any("eos"))
    for (const Json& token : to_list(*eos, f.path("eos"), EDGEDEC_CORRUPT))
      text.eos.push_back(token_of(token, f.path("eos")));
  text.bos_token = f.string("bos_token", ""), text.eos_token = f.string("eos_token", "");
  const Json* chat = f.any("chat_template");
  if (chat && chat->kind != Json::NIL) text.chat_template = to_string(*chat, f.path("chat_template"), EDGEDEC_CORRUPT);
  if (const Json* sampling = f.any("sampling")) {
    Fields inner(*sampling, f.path("sampling"), EDGEDEC_CORRUPT);
    for (const auto& [key, number] : sampling->members)
      text.sampling[key] = to_number(number, inner.path(key), EDGEDEC_CORRUPT);
  }
  f.done();
  return text;
}

// Names of files that heads, drafts and artifacts mention. Their contents are checked at use.
void read_others(Fields& f, const ModelSpec& spec, std::vector<std::string>& named) {
  const auto range = [&](const std::string& where, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) corrupt(where + ": " + std::to_string(value) + " is out of range");
  };
  if (const Json* heads = f.any("heads")) {
    Fields all(*heads, f.path("heads"), EDGEDEC_CORRUPT);
    for (const auto& [kind, value] : heads->members) {
      Fields head(value, all.path(kind), EDGEDEC_CORRUPT);
      named.push_back(head.string("file"));
      range(head.path("depth"), head.integer("depth"), 1, 64);
      range(head.path("layer"), head.integer("layer", 0), 0, spec.n_layers - 1);
      const int64_t vocab = head.integer("vocab", 0), top = head.integer("top", 0);
      range(head.path("vocab"), vocab, 0, spec.vocab), range(head.path("top"), top, 0, vocab);
      head.done();
    }
  }
  if (const Json* drafts = f.any("drafts")) {
    Fields all(*drafts, f.path("drafts"), EDGEDEC_CORRUPT);
    for (const auto& [kind, value] : drafts->members) {
      Fields draft(value, all.path(kind), EDGEDEC_CORRUPT);
      range(draft.path("depth"), draft.integer("depth"), 1, 64);
      for (const char* key : {"stack", "tokens", "embeddings"})
        if (const std::string name = draft.string(key, ""); !name.empty()) named.push_back(name);
      if (const Json* features = draft.any("features"))
        for (const Json& block : to_list(*features, draft.path("features"), EDGEDEC_CORRUPT))
          range(draft.path("features"), to_integer(block, draft.path("features"), EDGEDEC_CORRUPT), 0,
                (int64_t)spec.blocks.size() - 1);
      if (const Json* networks = draft.any("networks")) {
        Fields inner(*networks, draft.path("networks"), EDGEDEC_CORRUPT);
        for (const auto& [use, file] : networks->members)
          if (!to_string(file, inner.path(use), EDGEDEC_CORRUPT).empty()) named.push_back(file.text);
      }
      draft.boolean("normed", false);
      draft.choice("feeds", "state normed", 0);
      range(draft.path("block"), draft.integer("block", 1), 1, 64);
      draft.done();
    }
  }
  if (const Json* artifacts = f.any("artifacts")) {
    Fields all(*artifacts, f.path("artifacts"), EDGEDEC_CORRUPT);
    for (const auto& [runtime, value] : artifacts->members) {
      Fields artifact(value, all.path(runtime), EDGEDEC_CORRUPT);
      for (std::string& name : names_in(artifact.need("files"), artifact.path("files"))) named.push_back(std::move(name));
      if (const Json* facts = artifact.any("facts")) Fields(*facts, artifact.path("facts"), EDGEDEC_CORRUPT);
      artifact.done();
    }
  }
}

void read_parity(Fields& f) {
  const Json* parity = f.any("parity");
  if (!parity || parity->kind == Json::NIL) return;
  Fields p(*parity, f.path("parity"), EDGEDEC_CORRUPT);
  p.string("text"), p.integer("tokens"), p.number("reference_perplexity");
  for (const char* key : {"perplexity", "kl", "top1"}) {
    Fields by(p.need(key), p.path(key), EDGEDEC_CORRUPT);
    for (const auto& [format, value] : p.need(key).members) to_number(value, by.path(format), EDGEDEC_CORRUPT);
  }
  p.done();
}

std::map<std::string, FileFacts> read_files(const Json& value, const std::string& where) {
  Fields all(value, where, EDGEDEC_CORRUPT);
  std::map<std::string, FileFacts> out;
  for (const auto& [name, facts] : value.members) {
    Fields f(facts, all.path(name), EDGEDEC_CORRUPT);
    out[name] = {offset_of(f.need("size"), f.path("size")), f.string("sha256")};
    f.done();
  }
  return out;
}

void check_version(const Json& value, const std::string& where) {
  const Json* format = value.find("format");
  if (!format || format->kind != Json::STRING || format->text != "edgedec-bundle") corrupt(where + ": not a manifest of edgedec");
  const Json* found = value.find("version");
  if (!found || !found->is_integer() || found->text[0] == '-' || found->text == "0")
    corrupt(where + ": its version is not a version");
  const int64_t version = found->text.size() > 9 ? INT32_MAX : to_integer(*found, where, EDGEDEC_CORRUPT);
  const std::string what = where + ": format version " + found->text.substr(0, 20);
  if (version > VERSION) throw Failure(EDGEDEC_VERSION, what + ", this edgedec reads " + std::to_string(VERSION) + "; upgrade edgedec");
  if (version < OLDEST) throw Failure(EDGEDEC_VERSION, what + " of an older edgedec; export the model again");
}

void check_weights(const Manifest& m, const Json& scales, const std::string& where) {
  const auto shapes = m.spec.tensors();
  bool same = shapes.size() == m.tensors.size();
  for (const auto& [name, shape] : shapes) {
    const auto found = m.tensors.find(name);
    same = same && found != m.tensors.end() && found->second.shape == shape;
  }
  if (!same) corrupt(where + ": the weights are not those of the spec");
  const Extents extents(m.files.at(m.weights).size, where);
  for (const auto& [name, tensor] : m.tensors) check_tensor(name, tensor, m.spec, extents);
  if (m.ropes.size() != m.spec.ropes.size()) corrupt(where + ": ropes: not one table for each rope of the spec");
  for (size_t i = 0; i < m.ropes.size(); i++) {
    const uint64_t bytes = 4 * (uint64_t)m.spec.positions() * (uint64_t)m.spec.ropes[i].pairs;
    extents.check("a rope", m.ropes[i].first, bytes), extents.check("a rope", m.ropes[i].second, bytes);
  }
  Fields f(scales, where + ".kv_scales", EDGEDEC_CORRUPT);
  uint64_t bytes = 0;
  for (const BlockSpec& b : m.spec.blocks)
    if (b.kind == KIND_ATTENTION) bytes += 8 * (uint64_t)(b.kv_heads * b.head_dim);
  for (const int kv : {INT8, INT4}) {
    const char* name = kv == INT8 ? "int8" : "int4";
    const Json* offset = f.any(name);
    const bool given = offset && offset->kind != Json::NIL;
    if (given) to_integer(*offset, f.path(name), EDGEDEC_CORRUPT);
    bool listed = false;
    for (const int format : m.kv_formats) listed |= format == kv;
    if (listed && !given) corrupt(f.path(name) + ": missing");
    if (listed) extents.check(f.path(name), offset_of(*offset, f.path(name)), bytes);
  }
  f.done();
}

Manifest read_manifest(const Json& value, const std::string& where) {
  check_version(value, where);
  if (const Json* diffusion = value.find("diffusion"); diffusion && diffusion->kind != Json::NIL)
    throw Failure(EDGEDEC_UNAVAILABLE, where + ": a diffusion language model, which this library does not decode; use edgedec for Python");
  Fields f(value, where, EDGEDEC_CORRUPT);
  Manifest m;
  f.string("format"), f.integer("version"), f.string("producer");
  m.name = f.string("name");
  m.origin = f.string("origin", "");
  if (!m.origin.empty() && (m.origin.size() != 64 || m.origin.find_first_not_of("0123456789abcdef") != std::string::npos))
    corrupt(f.path("origin") + ": not a sha256");
  m.spec = read_spec(f.need("spec"), "spec");
  m.weights = f.string("weights");
  m.files = read_files(f.need("files"), f.path("files"));
  m.text = read_text(f.need("text"), f.path("text"));
  const Json& quantization = f.need("quantization");
  Fields words(quantization, f.path("quantization"), EDGEDEC_CORRUPT);
  for (const auto& [key, word] : quantization.members) to_string(word, words.path(key), EDGEDEC_CORRUPT);
  const Json& tensors = f.need("tensors");
  Fields by_name(tensors, f.path("tensors"), EDGEDEC_CORRUPT);
  for (const auto& [name, tensor] : tensors.members) m.tensors[name] = read_tensor(tensor, by_name.path(name));
  for (const Json& pair : to_list(f.need("ropes"), f.path("ropes"), EDGEDEC_CORRUPT)) {
    const auto& list = to_list(pair, f.path("ropes"), EDGEDEC_CORRUPT);
    if (list.size() != 2) corrupt(f.path("ropes") + ": expected a cos and a sin offset");
    m.ropes.push_back({offset_of(list[0], f.path("ropes")), offset_of(list[1], f.path("ropes"))});
  }
  for (const std::string& name : names_in(f.need("kv_formats"), f.path("kv_formats"))) {
    m.kv_formats.push_back(kv_format(name));
    if (!m.kv_formats.back()) corrupt(f.path("kv_formats") + ": '" + name + "' is not one of f32 f16 int8 int4");
  }
  if (m.kv_formats.empty()) corrupt(where + ": names no KV format");
  std::vector<std::string> named{m.weights};
  if (!m.text.tokenizer.empty()) named.push_back(m.text.tokenizer);
  read_others(f, m.spec, named);
  read_parity(f);
  if (const Json* source = f.any("source")) Fields(*source, f.path("source"), EDGEDEC_CORRUPT);
  const Json& scales = f.need("kv_scales");
  f.done();
  for (const std::string& name : named)
    if (!m.files.count(name)) corrupt(where + ": names '" + name.substr(0, 60) + "', which is not among its files");
  check_weights(m, scales, where);
  return m;
}

}  // namespace

int kv_format(const std::string& name) {
  return name == "f32" ? F32 : name == "f16" ? F16 : name == "int8" ? INT8 : name == "int4" ? INT4 : 0;
}

Bundle::Bundle(std::unique_ptr<Container> from) : container_(std::move(from)) {
  const SharedBytes raw = container_->manifest();
  const std::string where = container_->path(MANIFEST);
  manifest = read_manifest(parse_json(raw->text(), EDGEDEC_CORRUPT, where), where);
  digest = sha256_hex(raw->data, raw->size);
  for (const auto& [name, facts] : manifest.files) {
    if (!is_plain_name(name) || name == MANIFEST)
      throw Failure(EDGEDEC_UNSAFE, container_->name + ": the manifest lists '" + name.substr(0, 60) +
                                        "', which is not a plain file name");
    container_->check(name, facts.size);
  }
  weights = container_->open(manifest.weights);
  if (weights->size != manifest.files.at(manifest.weights).size)
    corrupt(container_->path(manifest.weights) + ": changed while it was opened");
}

SharedBytes Bundle::file(const std::string& name) const {
  const SharedBytes content = container_->open(name);
  if (sha256_hex(content->data, content->size) != manifest.files.at(name).sha256)
    corrupt(container_->path(name) + ": content differs from its hash; export or download it again");
  return content;
}

void Bundle::verify(edgedec_progress progress, void* user) const {
  uint64_t total = 0, done = 0;
  for (const auto& [name, facts] : manifest.files) total += facts.size;
  for (const auto& [name, facts] : manifest.files) {
    const SharedBytes content = container_->open(name);
    Sha256 hash;
    constexpr uint64_t PIECE = 4 << 20;
    for (uint64_t at = 0; at < content->size; at += PIECE) {
      const uint64_t n = std::min(PIECE, content->size - at);
      hash.add(content->data + at, n);
      done += n;
      if (progress && progress(user, done, total)) throw Failure(EDGEDEC_CANCELLED, "opening was cancelled");
    }
    if (hash.hex() != facts.sha256)
      corrupt(container_->path(name) + ": content differs from its hash; export or download it again");
  }
}

}  // namespace edgedec::lib
