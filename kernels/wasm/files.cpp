// In-memory files from the host, by name: a program in a browser has no other files. Instead of kernels/lib/files.cpp.
#include "files.h"

#include <cstring>
#include <map>
#include <new>

#include "failure.h"
#include "wasm.h"

namespace edgedec::lib {

namespace {

class Owned : public Bytes {
 public:
  Owned(uint8_t* memory, uint64_t bytes) : memory_(memory) { data = memory, size = bytes; }
  ~Owned() override { edgedec_free(memory_); }

 private:
  uint8_t* const memory_;
};

class Given : public Bytes {
 public:
  Given(const void* from, uint64_t bytes) { data = (const uint8_t*)from, size = bytes; }
};

std::map<std::string, SharedBytes>& files() {
  static std::map<std::string, SharedBytes> all;
  return all;
}

const SharedBytes& file(const std::string& path) {
  const auto found = files().find(path);
  if (found == files().end()) throw Failure(EDGEDEC_IO, path + ": cannot be read: no such file");
  return found->second;
}

}  // namespace

SharedBytes bytes_of(const void* data, uint64_t size) { return std::make_shared<Given>(data, size); }

FileKind kind_of(const std::string& path) {
  if (files().count(path)) return FileKind::FILE;
  const std::string folder = path + "/";
  const auto next = files().lower_bound(folder);
  return next != files().end() && !next->first.compare(0, folder.size(), folder) ? FileKind::FOLDER : FileKind::NONE;
}

bool is_link(const std::string&) { return false; }
bool stays_inside(const std::string&, const std::string&) { return false; }

uint64_t size_of(const std::string& path) { return files().count(path) ? file(path)->size : 0; }
SharedBytes map_file(const std::string& path) { return file(path); }

SharedBytes map_descriptor(int, uint64_t, uint64_t) { throw Failure(EDGEDEC_IO, "not an open file: none are there"); }

void write_whole(const std::string& path, std::initializer_list<std::string_view> parts) {
  size_t size = 0;
  for (std::string_view part : parts) size += part.size();
  uint8_t* memory = edgedec_alloc(size);
  if (!memory) throw std::bad_alloc();
  size_t at = 0;
  for (std::string_view part : parts) std::memcpy(memory + at, part.data(), part.size()), at += part.size();
  edgedec_file_put(path.c_str(), memory, size);
}

}  // namespace edgedec::lib

using namespace edgedec::lib;

int edgedec_file_put(const char* path, uint8_t* memory, size_t size) {
  return guarded([&] { files()[path] = std::make_shared<Owned>(memory, size); });
}

const uint8_t* edgedec_file_data(const char* path) { return files().count(path) ? file(path)->data : nullptr; }
size_t edgedec_file_size(const char* path) { return (size_t)size_of(path); }
void edgedec_file_remove(const char* path) { files().erase(path); }
