#include "arrays.h"

#include <cstring>

#include "failure.h"
#include "sha256.h"

namespace edgedec::lib {

namespace {

constexpr uint64_t PREFIX = 8 + 32 + 8, HEADER_LIMIT = 64 << 20;
constexpr int64_t LARGEST = (int64_t)1 << 32;

int size_of_type(const std::string& type) {
  if (type == "int8" || type == "uint8") return 1;
  if (type == "float16") return 2;
  if (type == "int32" || type == "float32") return 4;
  return type == "int64" || type == "float64" ? 8 : 0;
}

}  // namespace

ArrayFile read_arrays(const std::string& path, const char* magic, const char* what, int status) {
  const auto fail = [&](const std::string& why) { throw Failure(status, path + ": " + why); };
  if (kind_of(path) != FileKind::FILE) fail("no such file");
  ArrayFile file;
  file.content = map_file(path);
  const uint8_t* p = file.content->data;
  const uint64_t all = file.content->size;
  uint64_t header = 0;
  for (int i = 7; all >= PREFIX && i >= 0; i--) header = header << 8 | p[40 + i];
  if (all < PREFIX || std::memcmp(p, magic, 8) || header > HEADER_LIMIT || header > all - PREFIX)
    fail(std::string("not ") + what + ", or cut short");
  uint8_t digest[32];
  Sha256 hash;
  hash.add(p + 40, all - 40);
  Sha256 again = hash;
  hash.digest(digest);
  if (std::memcmp(digest, p + 8, 32)) fail("damaged (its hash differs)");
  file.digest = again.hex();
  const Json contents = parse_json({(const char*)p + PREFIX, (size_t)header}, status, path);
  Fields f(contents, path, status);
  const Json& listed = f.need("arrays");
  file.header = f.need("header");
  f.done();
  uint64_t at = PREFIX + header;
  for (const Json& item : to_list(listed, path + ": arrays", status)) {
    Fields a(item, path + ": arrays", status);
    SavedArray array;
    const std::string name = a.string("name");
    array.type = a.string("dtype");
    array.bytes = (uint64_t)size_of_type(array.type);
    bool good = array.bytes > 0;
    for (const Json& size : to_list(a.need("shape"), a.path("shape"), status)) {
      array.shape.push_back(to_integer(size, a.path("shape"), status));
      good = good && array.shape.back() >= 0 && array.shape.back() <= LARGEST;
      if (good && array.shape.back() && array.bytes > all / (uint64_t)array.shape.back()) good = false;
      array.bytes *= good ? (uint64_t)array.shape.back() : 0;
    }
    a.done();
    if (!good || array.shape.size() > 8 || array.bytes > all - at) fail("damaged header (an array that cannot be)");
    array.data = p + at, at += array.bytes;
    if (!file.arrays.emplace(name, std::move(array)).second) fail("damaged header (an array twice)");
  }
  if (at != all) fail("what is in it has another size than its header says");
  return file;
}

void write_arrays(const std::string& path, const char* magic, const std::string& header, const std::vector<NewArray>& arrays) {
  std::string text = "{\"arrays\": [";
  for (size_t i = 0; i < arrays.size(); i++) {
    text += (i ? ", " : "") + ("{\"name\": " + json_string(arrays[i].name)) + ", \"dtype\": " + json_string(arrays[i].type) +
            ", \"shape\": [";
    for (size_t j = 0; j < arrays[i].shape.size(); j++) text += (j ? ", " : "") + std::to_string(arrays[i].shape[j]);
    text += "]}";
  }
  text += "], \"header\": " + header + "}";
  std::string size(8, '\0'), content;
  for (int i = 0; i < 8; i++) size[(size_t)i] = (char)((uint64_t)text.size() >> 8 * i);
  for (const NewArray& array : arrays) content += array.bytes;
  Sha256 hash;
  for (const std::string* part : {&size, &text, &content}) hash.add(part->data(), part->size());
  std::string digest(32, '\0');
  hash.digest((uint8_t*)digest.data());
  write_whole(path, {{magic, 8}, digest, size, text, content});
}

}  // namespace edgedec::lib
