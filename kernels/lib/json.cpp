#include "json.h"

#include <charconv>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <unordered_set>

#include "failure.h"

namespace edgedec::lib {

namespace {

constexpr int DEEPEST = 64;

class Parser {
 public:
  Parser(std::string_view text, int status, const std::string& where) : text_(text), status_(status), where_(where) {}

  Json whole() {
    if (!is_utf8(text_)) fail("not UTF-8");
    Json value = any(0);
    blanks();
    if (at_ != text_.size()) fail("something after the end");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* why) const {
    throw Failure(status_, where_ + ": not JSON (" + why + ", at byte " + std::to_string(at_) + ")");
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void blanks() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) && text_[at_]) at_++;
  }
  void expect(char c) {
    if (peek() != c || at_ >= text_.size()) fail("unexpected character");
    at_++;
  }
  void word(const char* w) {
    const size_t n = std::strlen(w);
    if (text_.substr(at_, n) != w) fail("unexpected character");
    at_ += n;
  }

  Json any(int depth) {
    if (depth > DEEPEST) fail("nested too deeply");
    blanks();
    Json value;
    switch (peek()) {
      case '{': object(value, depth); break;
      case '[': list(value, depth); break;
      case '"': value.kind = Json::STRING, value.text = string(); break;
      case 't': word("true"), value.kind = Json::BOOLEAN, value.boolean = true; break;
      case 'f': word("false"), value.kind = Json::BOOLEAN; break;
      case 'n': word("null"); break;
      default: number(value);
    }
    return value;
  }

  void object(Json& value, int depth) {
    value.kind = Json::OBJECT;
    expect('{');
    blanks();
    if (peek() == '}') return void(at_++);
    std::unordered_set<std::string> known;
    for (;;) {
      blanks();
      std::string key = string();
      if (!known.insert(key).second) fail("a key twice");
      blanks();
      expect(':');
      Json member = any(depth + 1);
      value.members.emplace_back(std::move(key), std::move(member));
      blanks();
      if (peek() == '}') return void(at_++);
      expect(',');
    }
  }

  void list(Json& value, int depth) {
    value.kind = Json::LIST;
    expect('[');
    blanks();
    if (peek() == ']') return void(at_++);
    for (;;) {
      value.items.push_back(any(depth + 1));
      blanks();
      if (peek() == ']') return void(at_++);
      expect(',');
    }
  }

  bool digits() {
    const size_t from = at_;
    while (peek() >= '0' && peek() <= '9') at_++;
    return at_ > from;
  }

  void number(Json& value) {
    const size_t from = at_;
    value.kind = Json::NUMBER;
    if (peek() == '-') at_++;
    if (peek() == '0') at_++;
    else if (!digits()) fail("unexpected character");
    if (peek() == '.') {
      at_++;
      if (!digits()) fail("a number without digits");
    }
    if (peek() == 'e' || peek() == 'E') {
      at_++;
      if (peek() == '+' || peek() == '-') at_++;
      if (!digits()) fail("a number without digits");
    }
    value.text = text_.substr(from, at_ - from);
  }

  uint32_t hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; i++, at_++) {
      const char c = peek();
      if (c >= '0' && c <= '9') code = code * 16 + (c - '0');
      else if (c >= 'a' && c <= 'f') code = code * 16 + (c - 'a' + 10);
      else if (c >= 'A' && c <= 'F') code = code * 16 + (c - 'A' + 10);
      else fail("a broken escape");
    }
    return code;
  }

  void escape(std::string& out) {
    const char c = peek();
    at_++;
    if (const char* found = c ? std::strchr("\"\\/bfnrt", c) : nullptr) {
      out += "\"\\/\b\f\n\r\t"[found - "\"\\/bfnrt"];
      return;
    }
    if (c != 'u') fail("a broken escape");
    uint32_t code = hex4();
    if (code >= 0xD800 && code < 0xDC00) {
      if (peek() != '\\') fail("half of a surrogate pair");
      at_++;
      if (peek() != 'u') fail("half of a surrogate pair");
      at_++;
      const uint32_t low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      fail("half of a surrogate pair");
    }
    put_utf8(out, code);
  }

  std::string string() {
    expect('"');
    std::string out;
    for (;;) {
      if (at_ >= text_.size()) fail("a string without end");
      const char c = text_[at_];
      if ((unsigned char)c < 0x20) fail("a control character in a string");
      at_++;
      if (c == '"') return out;
      if (c == '\\') escape(out);
      else out += c;
    }
  }

  const std::string_view text_;
  const int status_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace

const Json* Json::find(std::string_view key) const {
  for (const auto& [name, value] : members)
    if (name == key) return &value;
  return nullptr;
}

bool Json::is_integer() const { return kind == NUMBER && text.find_first_of(".eE") == std::string::npos; }

const char* Json::name() const {
  static const char* const NAMES[] = {"null", "a boolean", "a number", "a string", "a list", "an object"};
  return NAMES[kind];
}

Json parse_json(std::string_view text, int status, const std::string& where) {
  return Parser(text, status, where).whole();
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\', out += c;
    else if ((unsigned char)c < 0x20) {
      static const char HEX[] = "0123456789abcdef";
      out += "\\u00", out += HEX[c >> 4 & 15], out += HEX[c & 15];
    } else out += c;
  }
  return out += '"';
}

// ---- values ----------------------------------------------------------------------------------------

int64_t to_integer(const Json& value, const std::string& where, int status) {
  if (!value.is_integer()) throw Failure(status, where + ": expected a whole number, found " + value.name());
  int64_t found = 0;
  const char* end = value.text.data() + value.text.size();
  const auto [at, error] = std::from_chars(value.text.data(), end, found);
  if (error != std::errc() || at != end) throw Failure(status, where + ": " + value.text.substr(0, 40) + " is out of range");
  return found;
}

double to_number(const Json& value, const std::string& where, int status) {
  if (value.kind != Json::NUMBER) throw Failure(status, where + ": expected a number, found " + value.name());
  std::string text = value.text;
  // strtod uses the decimal point of the program's locale.
  const char* point = std::localeconv()->decimal_point;
  const size_t dot = text.find('.');
  if (dot != std::string::npos && point && *point) text.replace(dot, 1, point);
  const double found = std::strtod(text.c_str(), nullptr);
  if (!std::isfinite(found)) throw Failure(status, where + ": " + value.text.substr(0, 40) + " is not a finite number");
  return found;
}

const std::string& to_string(const Json& value, const std::string& where, int status) {
  if (value.kind != Json::STRING) throw Failure(status, where + ": expected a string, found " + value.name());
  return value.text;
}

const std::vector<Json>& to_list(const Json& value, const std::string& where, int status) {
  if (value.kind != Json::LIST) throw Failure(status, where + ": expected a list, found " + value.name());
  return value.items;
}

// ---- objects ---------------------------------------------------------------------------------------

Fields::Fields(const Json& value, std::string where, int status)
    : value_(value), where_(std::move(where)), status_(status) {
  if (value.kind != Json::OBJECT) fail(std::string("expected an object, found ") + value.name());
}

void Fields::fail(const std::string& why) const { throw Failure(status_, where_ + ": " + why); }

const Json* Fields::any(std::string_view key) {
  taken_.push_back(key);
  return value_.find(key);
}

const Json& Fields::need(std::string_view key) {
  const Json* found = any(key);
  if (!found) fail("missing key '" + std::string(key) + "'");
  return *found;
}

int64_t Fields::integer(std::string_view key) { return to_integer(need(key), path(key), status_); }

int64_t Fields::integer(std::string_view key, int64_t otherwise) {
  const Json* found = any(key);
  return found ? to_integer(*found, path(key), status_) : otherwise;
}

double Fields::number(std::string_view key) { return to_number(need(key), path(key), status_); }

double Fields::number(std::string_view key, double otherwise) {
  const Json* found = any(key);
  return found ? to_number(*found, path(key), status_) : otherwise;
}

bool Fields::boolean(std::string_view key) {
  const Json& found = need(key);
  if (found.kind != Json::BOOLEAN) fail("expected " + std::string(key) + " to be a boolean, found " + found.name());
  return found.boolean;
}

bool Fields::boolean(std::string_view key, bool otherwise) {
  if (has(key)) return boolean(key);
  any(key);
  return otherwise;
}

std::string Fields::string(std::string_view key) { return to_string(need(key), path(key), status_); }

std::string Fields::string(std::string_view key, std::string_view otherwise) {
  const Json* found = any(key);
  return found ? to_string(*found, path(key), status_) : std::string(otherwise);
}

int Fields::choice(std::string_view key, const char* words) {
  const std::string found = string(key);
  std::string_view rest = words;
  for (int i = 0; !rest.empty(); i++) {
    const size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, end) == found) return i;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  throw Failure(status_, path(key) + ": '" + found.substr(0, 60) + "' is not one of " + words);
}

int Fields::choice(std::string_view key, const char* words, int otherwise) {
  if (has(key)) return choice(key, words);
  any(key);
  return otherwise;
}

void Fields::done() const {
  for (const auto& [key, value] : value_.members) {
    bool known = false;
    for (const std::string_view name : taken_) known = known || name == key;
    if (!known) fail("unknown key '" + key.substr(0, 60) + "'");
  }
}

// ---- UTF-8 -----------------------------------------------------------------------------------------

uint32_t next_utf8(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return i < text.size() ? (uint32_t)(unsigned char)text[i] : 0u; };
  const uint32_t first = byte(at);
  const int more = first < 0x80 ? 0 : first >= 0xC2 && first < 0xE0 ? 1 : first >= 0xE0 && first < 0xF0 ? 2
                   : first >= 0xF0 && first < 0xF5 ? 3 : -1;
  uint32_t code = more <= 0 ? first : first & (0x3Fu >> more);
  bool broken = more < 0;
  for (int i = 1; i <= more && !broken; i++) {
    broken = (byte(at + i) & 0xC0) != 0x80;
    code = code << 6 | (byte(at + i) & 0x3F);
  }
  static const uint32_t LEAST[] = {0, 0x80, 0x800, 0x10000};
  if (broken || (more > 0 && code < LEAST[more]) || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF) {
    at++;
    return 0xFFFFFFFFu;
  }
  at += 1 + more;
  return code;
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();)
    if (next_utf8(text, at) == 0xFFFFFFFFu) return false;
  return true;
}

void put_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) out += (char)code;
  else if (code < 0x800) out += (char)(0xC0 | code >> 6), out += (char)(0x80 | (code & 63));
  else if (code < 0x10000)
    out += (char)(0xE0 | code >> 12), out += (char)(0x80 | (code >> 6 & 63)), out += (char)(0x80 | (code & 63));
  else
    out += (char)(0xF0 | code >> 18), out += (char)(0x80 | (code >> 12 & 63)), out += (char)(0x80 | (code >> 6 & 63)),
        out += (char)(0x80 | (code & 63));
}

}  // namespace edgedec::lib
