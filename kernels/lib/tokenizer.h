// Text to tokens and back by a bundle's tokenizer.json, and streaming detokenization.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace edgedec::lib {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Throws Failure(EDGEDEC_TEXT) for a file that needs unsupported features.
  static std::shared_ptr<const Tokenizer> load(std::string_view json, const std::string& where);
  // special: special tokens in the text are read as such; around: adds the model's special tokens around a text.
  virtual std::vector<int32_t> encode(std::string_view text, bool special, bool around) const = 0;
  virtual std::string decode(const int32_t* ids, size_t n, bool special) const = 0;
  // A token's own spelling; "" for one without text.
  virtual std::string_view piece(int32_t id) const = 0;
  virtual bool hidden(int32_t id) const = 0;       // a special token, which is left out
  virtual bool bytewise() const = 0;               // text is the bytes of its tokens, joined
  virtual std::string_view bytes(int32_t id) const = 0;  // of a bytewise one
  virtual bool is_byte(int32_t id) const = 0;      // one of the others' <0xE2>
};

class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops, const std::vector<int32_t>& prompt);
  // Appends the text that this token completes; returns whether a stop string was hit.
  bool push(int32_t token, std::string& out);
  bool flush(std::string& out);

 private:
  std::string read(int32_t token);
  std::string settle();
  std::string untold(std::string text);
  bool cut(std::string text, bool last, std::string& out);

  const Tokenizer& tokenizer_;
  const std::vector<std::string> stops_;
  std::string bytes_;                  // an unfinished character
  std::vector<int32_t> anchor_, held_;  // of tokenizers that are not bytewise: as Detokenizer in Python
  std::string told_, buffer_;
  bool hit_ = false;
};

}  // namespace edgedec::lib
