// Files: mapped to be read, written whole or not at all. Names are UTF-8.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

namespace edgedec::lib {

// Bytes with an owner: a mapped file, or memory of the program.
class Bytes {
 public:
  virtual ~Bytes() = default;
  const uint8_t* data = nullptr;
  uint64_t size = 0;
  std::string_view text() const { return {(const char*)data, (size_t)size}; }
};

using SharedBytes = std::shared_ptr<const Bytes>;

enum class FileKind { NONE, FILE, FOLDER, OTHER };

FileKind kind_of(const std::string& path);
bool is_link(const std::string& path);
// Whether a link leads to a file in this very folder.
bool stays_inside(const std::string& folder, const std::string& path);
uint64_t size_of(const std::string& path);  // 0 if there is none

SharedBytes map_file(const std::string& path);
// `size` bytes of an open file from `offset` on.
SharedBytes map_descriptor(int fd, uint64_t offset, uint64_t size);
SharedBytes bytes_of(const void* data, uint64_t size);

// Writes the parts, one after another, to a temporary file in the same folder, then renames it to `path`.
void write_whole(const std::string& path, std::initializer_list<std::string_view> parts);

}  // namespace edgedec::lib
