// Named arrays in one file, checked by hash: the format of saved sessions and adapters (edgedec/storage/arrays.py).
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "files.h"
#include "json.h"

namespace edgedec::lib {

struct SavedArray {
  std::string type;  // as numpy names it
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;
  uint64_t bytes = 0;
};

struct ArrayFile {
  SharedBytes content;
  Json header;
  std::map<std::string, SavedArray> arrays;
  std::string digest;
};

ArrayFile read_arrays(const std::string& path, const char* magic, const char* what, int status);

struct NewArray {
  std::string name, type;
  std::vector<int64_t> shape;
  std::string_view bytes;
};

// header: JSON.
void write_arrays(const std::string& path, const char* magic, const std::string& header, const std::vector<NewArray>& arrays);

}  // namespace edgedec::lib
