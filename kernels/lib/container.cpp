#include "container.h"

#include <cstring>

#include "failure.h"
#include "json.h"
#include "sha256.h"

namespace edgedec::lib {

namespace {

constexpr uint64_t MANIFEST_LIMIT = 8 << 20, INDEX_LIMIT = 8 << 20, ALIGN = 64, HEADER = 64;
constexpr uint32_t PACKED_VERSION = 1;

class Folder : public Container {
 public:
  explicit Folder(const std::string& path) : Container(path) {}

  SharedBytes manifest() const override {
    const std::string file = path(MANIFEST);
    if (kind_of(file) != FileKind::FILE)
      throw Failure(EDGEDEC_NOT_FOUND, name + ": no " + MANIFEST + " there; make a bundle with `edgedec export`");
    if (size_of(file) > MANIFEST_LIMIT) throw Failure(EDGEDEC_CORRUPT, file + ": larger than any manifest");
    return map_file(file);
  }

  void check(const std::string& file, uint64_t size) const override {
    const std::string where = path(file);
    if (is_link(where) && !stays_inside(name, where))
      throw Failure(EDGEDEC_UNSAFE, where + ": a link out of the bundle; copy the file in");
    if (kind_of(where) != FileKind::FILE)
      throw Failure(EDGEDEC_CORRUPT, where + ": missing; export or download the bundle again");
    if (size_of(where) != size)
      throw Failure(EDGEDEC_CORRUPT,
                    where + ": " + std::to_string(size_of(where)) + " bytes, the manifest says " + std::to_string(size));
  }

  SharedBytes open(const std::string& file) const override { return map_file(path(file)); }
};

// A part of other bytes, which it keeps alive.
class Part : public Bytes {
 public:
  Part(SharedBytes whole, uint64_t offset, uint64_t bytes) : whole_(std::move(whole)) {
    data = whole_->data + offset, size = bytes;
  }

 private:
  const SharedBytes whole_;
};

class Packed : public Container {
 public:
  Packed(SharedBytes bytes, const std::string& where) : Container(where), bytes_(std::move(bytes)) {
    const uint8_t* p = bytes_->data;
    if (bytes_->size < HEADER || std::memcmp(p, "EDGEPACK", 8))
      throw Failure(EDGEDEC_CORRUPT, where + ": not a packed bundle, or cut short");
    if ((uintptr_t)p % ALIGN) throw Failure(EDGEDEC_USAGE, where + ": must lie at a multiple of 64 bytes");
    const uint32_t version = (uint32_t)number(8, 4);
    if (version != PACKED_VERSION)
      throw Failure(EDGEDEC_VERSION, where + ": packed format version " + std::to_string(version) +
                                         ", this library reads 1; upgrade edgedec");
    const uint64_t index = number(16, 8), total = number(24, 8);
    if (total != bytes_->size)
      throw Failure(EDGEDEC_CORRUPT, where + ": " + std::to_string(bytes_->size) + " bytes, its header says " +
                                         std::to_string(total));
    if (index > INDEX_LIMIT || index > total - HEADER || number(12, 4))
      throw Failure(EDGEDEC_CORRUPT, where + ": damaged header");
    read_index({(const char*)p + HEADER, (size_t)index}, p + 32);
  }

  SharedBytes manifest() const override { return open(MANIFEST); }

  void check(const std::string& file, uint64_t size) const override {
    const auto found = places_.find(file);
    if (found == places_.end()) throw Failure(EDGEDEC_CORRUPT, path(file) + ": missing; pack the bundle again");
    if (found->second.second != size)
      throw Failure(EDGEDEC_CORRUPT, path(file) + ": " + std::to_string(found->second.second) +
                                         " bytes, the manifest says " + std::to_string(size));
  }

  SharedBytes open(const std::string& file) const override {
    const auto [offset, size] = places_.at(file);
    return std::make_shared<Part>(bytes_, offset, size);
  }

 private:
  uint64_t number(size_t at, int bytes) const {
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;) value = value << 8 | bytes_->data[at + i];
    return value;
  }

  void read_index(std::string_view text, const uint8_t* hash) {
    uint8_t digest[32];
    Sha256 sum;
    sum.add(text.data(), text.size());
    sum.digest(digest);
    if (std::memcmp(digest, hash, 32)) throw Failure(EDGEDEC_CORRUPT, name + ": damaged (the hash of its index differs)");
    const Json parsed = parse_json(text, EDGEDEC_CORRUPT, name);
    Fields fields(parsed, name, EDGEDEC_CORRUPT);
    const std::string digest_of_manifest = fields.string("manifest");
    const Json& files = fields.need("files");
    fields.done();
    if (files.kind != Json::OBJECT) fields.fail("files: expected an object");
    for (const auto& [file, place] : files.members) add(file, place, HEADER + text.size());
    const auto manifest = places_.find(MANIFEST);
    if (manifest == places_.end() || manifest->second.second > MANIFEST_LIMIT)
      throw Failure(EDGEDEC_CORRUPT, name + ": no manifest in it");
    if (sha256_hex(bytes_->data + manifest->second.first, manifest->second.second) != digest_of_manifest)
      throw Failure(EDGEDEC_CORRUPT, path(MANIFEST) + ": content differs from its hash; pack or download it again");
  }

  void add(const std::string& file, const Json& place, uint64_t least) {
    const std::string where = name + ": " + file.substr(0, 60);
    const auto& pair = to_list(place, where, EDGEDEC_CORRUPT);
    if (!is_plain_name(file)) throw Failure(EDGEDEC_UNSAFE, where + ": not a plain file name");
    if (pair.size() != 2) throw Failure(EDGEDEC_CORRUPT, where + ": expected an offset and a size");
    const int64_t offset = to_integer(pair[0], where, EDGEDEC_CORRUPT), size = to_integer(pair[1], where, EDGEDEC_CORRUPT);
    if (offset < (int64_t)least || size < 0 || offset % (int64_t)ALIGN || (uint64_t)offset > bytes_->size ||
        (uint64_t)size > bytes_->size - (uint64_t)offset)
      throw Failure(EDGEDEC_CORRUPT, where + ": lies outside the file, or is not aligned");
    places_[file] = {(uint64_t)offset, (uint64_t)size};
  }

  const SharedBytes bytes_;
  std::map<std::string, std::pair<uint64_t, uint64_t>> places_;
};

}  // namespace

bool is_plain_name(const std::string& text) {
  if (text.empty() || text.size() > 255) return false;
  for (size_t i = 0; i < text.size(); i++) {
    const char c = text[i];
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    if (!plain && !(i && (c == '.' || c == '+' || c == '-'))) return false;
  }
  return true;
}

std::unique_ptr<Container> open_container(const std::string& path) {
  switch (kind_of(path)) {
    case FileKind::FOLDER: return std::make_unique<Folder>(path);
    case FileKind::FILE: return open_packed(map_file(path), path);
    default: throw Failure(EDGEDEC_NOT_FOUND, path + ": no such bundle; a folder, or a file that `edgedec pack` made");
  }
}

std::unique_ptr<Container> open_packed(SharedBytes bytes, const std::string& where) {
  return std::make_unique<Packed>(std::move(bytes), where);
}

}  // namespace edgedec::lib
