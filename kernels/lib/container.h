// Where a bundle's files are: in a folder, or side by side in one packed file (docs/bundle-format.md, "Packed").
#pragma once
#include <map>
#include <string>

#include "files.h"

namespace edgedec::lib {

constexpr const char* MANIFEST = "edgedec.json";

// `text` is a plain file name, as bundles may list it.
bool is_plain_name(const std::string& text);

class Container {
 public:
  virtual ~Container() = default;
  const std::string name;  // for messages
  // "folder/file", for messages.
  std::string path(const std::string& file) const { return name + "/" + file; }
  virtual SharedBytes manifest() const = 0;
  // Fails unless the file is there, with this size, and inside.
  virtual void check(const std::string& file, uint64_t size) const = 0;
  virtual SharedBytes open(const std::string& file) const = 0;  // after check()

 protected:
  explicit Container(std::string name) : name(std::move(name)) {}
};

// A folder or a packed file.
std::unique_ptr<Container> open_container(const std::string& path);
// A packed bundle. `where`: for messages.
std::unique_ptr<Container> open_packed(SharedBytes bytes, const std::string& where);

}  // namespace edgedec::lib
