// The steps of a tokenizer.json before its model: normalizers, pre-tokenizers, added tokens.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"
#include "regex.h"

namespace edgedec::lib {

// GPT-2's alphabet: every byte as a character that can be printed.
uint32_t shown_byte(uint8_t byte);
int hidden_byte(uint32_t shown);  // -1: none

using Normalize = std::function<std::string(const std::string&)>;
// Throws Failure(EDGEDEC_TEXT) for an unsupported part; empty: nothing to do.
Normalize read_normalizer(const Json* value, const std::string& where);

// Pieces of a text; first: of pieces, whether it stands at the beginning of the whole text.
struct Piece {
  std::string text;
  bool first;
};
using PreTokenize = std::function<std::vector<Piece>(std::vector<Piece>)>;
// bytewise: set if pieces are spelt in shown bytes at the end.
PreTokenize read_pre_tokenizer(const Json* value, const std::string& where, bool& bytewise);

struct AddedToken {
  std::string content;
  int32_t id;
  bool special, normalized, strips_left, strips_right;
};

// Finds added tokens in texts, the longest of those that begin first.
class AddedTokens {
 public:
  void add(const AddedToken& token);
  struct Part {
    std::string_view text;
    const AddedToken* token;  // null: text between
  };
  std::vector<Part> split(std::string_view text, bool special) const;

 private:
  std::vector<std::vector<AddedToken>> by_byte_ = std::vector<std::vector<AddedToken>>(256);  // longest first
  bool any_ = false;
};

}  // namespace edgedec::lib
