// JSON, strictly: UTF-8, no duplicate keys, no NaN. Numbers stay as they are written, so that none loses digits.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace edgedec::lib {

struct Json {
  enum Kind { NIL, BOOLEAN, NUMBER, STRING, LIST, OBJECT };
  Kind kind = NIL;
  bool boolean = false;
  std::string text;  // of a string its characters, of a number its spelling
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;  // in the order of the file

  const Json* find(std::string_view key) const;  // a member, or null
  bool is_integer() const;                       // a number without point and exponent
  const char* name() const;                      // of its kind, for messages
};

// Throws Failure(`status`): "WHERE: why, at byte N".
Json parse_json(std::string_view text, int status, const std::string& where);
// With the quotes, non-ASCII characters as they are.
std::string json_string(std::string_view text);

// The members of an object, each taken once by its name and type; what is left at the end is an unknown key.
class Fields {
 public:
  Fields(const Json& value, std::string where, int status);
  const std::string& where() const { return where_; }
  std::string path(std::string_view key) const { return where_ + "." + std::string(key); }
  bool has(std::string_view key) const { return value_.find(key); }
  const Json* any(std::string_view key);   // null: not there
  const Json* peek(std::string_view key) const { return value_.find(key); }  // the same, not taken
  const Json& need(std::string_view key);  // fails if it is not there
  int64_t integer(std::string_view key);
  int64_t integer(std::string_view key, int64_t otherwise);
  double number(std::string_view key);
  double number(std::string_view key, double otherwise);
  bool boolean(std::string_view key, bool otherwise);
  bool boolean(std::string_view key);
  std::string string(std::string_view key);
  std::string string(std::string_view key, std::string_view otherwise);
  // The index of a string among `words`, separated by blanks.
  int choice(std::string_view key, const char* words);
  int choice(std::string_view key, const char* words, int otherwise);
  void done() const;  // fails if a key was never taken
  [[noreturn]] void fail(const std::string& why) const;

 private:
  const Json& value_;
  const std::string where_;
  const int status_;
  std::vector<std::string_view> taken_;
};

int64_t to_integer(const Json& value, const std::string& where, int status);
double to_number(const Json& value, const std::string& where, int status);  // finite
const std::string& to_string(const Json& value, const std::string& where, int status);
const std::vector<Json>& to_list(const Json& value, const std::string& where, int status);

bool is_utf8(std::string_view text);
void put_utf8(std::string& out, uint32_t code);
// The character that begins at `at`, which moves past it; of broken UTF-8 one byte, as 0xFFFFFFFF.
uint32_t next_utf8(std::string_view text, size_t& at);

}  // namespace edgedec::lib
