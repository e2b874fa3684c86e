#include "pipeline.h"

#include <algorithm>

#include "failure.h"
#include "unicode.h"

namespace edgedec::lib {

namespace {

constexpr const char* GPT2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

[[noreturn]] void unknown(const std::string& where, const std::string& what) {
  throw Failure(EDGEDEC_TEXT, where + ": " + what + " is not known to this library; give tokens instead of text");
}

bool is_nothing(const Json* value) { return !value || value->kind == Json::NIL; }

bool stands_for_itself(int b) { return (b >= 0x21 && b < 0x7F) || (b >= 0xA1 && b < 0xAD) || b >= 0xAE; }

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t found = text.find(from, at);
    out.append(text, at, found - at);
    if (found == std::string::npos) return out;
    out += to, at = found + from.size();
  }
}

// {"String": text} of a pattern.
std::string literal_pattern(Fields& f, const std::string& where) {
  const Json& pattern = f.need("pattern");
  const Json* text = pattern.find("String");
  if (!text || text->kind != Json::STRING || text->text.empty()) unknown(where, "a pattern that is no string");
  return text->text;
}

// ---- pre-tokenizers --------------------------------------------------------------------------------

// Splits every piece by `next`: [begin, end) of a match at or after `at`; `keep_rest`: what lies between is a piece.
template <class Match>
std::vector<Piece> cut(const std::vector<Piece>& pieces, bool keep_rest, Match match) {
  std::vector<Piece> out;
  for (const Piece& piece : pieces) {
    const std::vector<uint32_t> text = to_points(piece.text);
    size_t rest = 0;
    const auto put = [&](size_t from, size_t to) {
      if (to > from) out.push_back({to_utf8(text.data() + from, to - from), piece.first && from == 0});
    };
    for (size_t at = 0; at < text.size();) {
      const int64_t end = match(text, at);
      if (end <= (int64_t)at) {
        at++;
        continue;
      }
      if (keep_rest) put(rest, at);
      put(at, (size_t)end);
      rest = at = (size_t)end;
    }
    if (keep_rest) put(rest, text.size());
  }
  return out;
}

PreTokenize split_by(std::shared_ptr<const Regex> regex, bool keep_rest) {
  return [regex, keep_rest](std::vector<Piece> pieces) {
    return cut(pieces, keep_rest, [&](const std::vector<uint32_t>& text, size_t at) { return regex->match(text, at); });
  };
}

PreTokenize read_split(Fields& f) {
  const Json& pattern = f.need("pattern");
  const std::string behavior = f.string("behavior");
  const bool inverted = f.boolean("invert", false);
  const Json *expression = pattern.find("Regex"), *text = pattern.find("String");
  if (!(behavior == "Isolated" && !inverted) && !(behavior == "Removed" && inverted)) unknown(f.where(), "Split " + behavior);
  if (expression && expression->kind == Json::STRING)
    return split_by(std::make_shared<Regex>(expression->text, f.where()), !inverted);
  if (!text || text->kind != Json::STRING || text->text.empty()) unknown(f.where(), "a pattern of this kind");
  const std::vector<uint32_t> word = to_points(text->text);
  return [word, inverted](std::vector<Piece> pieces) {
    return cut(pieces, !inverted, [&](const std::vector<uint32_t>& in, size_t at) -> int64_t {
      const bool here = at + word.size() <= in.size() && std::equal(word.begin(), word.end(), in.begin() + (ptrdiff_t)at);
      return here ? (int64_t)(at + word.size()) : -1;
    });
  };
}

PreTokenize read_digits(Fields& f) {
  const bool alone = f.boolean("individual_digits", false);
  const uint32_t numbers = categories_of("N");
  return [alone, numbers](std::vector<Piece> pieces) {
    return cut(pieces, true, [&](const std::vector<uint32_t>& text, size_t at) {
      size_t end = at;
      while (end < text.size() && (numbers & 1u << category(text[end])) && !(alone && end > at)) end++;
      return (int64_t)end;
    });
  };
}

PreTokenize read_byte_level(Fields& f, bool& bytewise) {
  const bool prefix = f.boolean("add_prefix_space", true), splits = f.boolean("use_regex", true);
  f.boolean("trim_offsets", true);
  bytewise = true;
  const PreTokenize split = splits ? split_by(std::make_shared<Regex>(GPT2, f.where()), true) : PreTokenize();
  return [prefix, split](std::vector<Piece> pieces) {
    for (Piece& piece : pieces)
      if (prefix && piece.text.compare(0, 1, " ")) piece.text.insert(0, 1, ' ');
    if (split) pieces = split(std::move(pieces));
    for (Piece& piece : pieces) {
      std::string shown;
      for (const char c : piece.text) put_utf8(shown, shown_byte((uint8_t)c));
      piece.text = std::move(shown);
    }
    return pieces;
  };
}

PreTokenize read_metaspace(Fields& f) {
  const std::string mark = f.string("replacement", "\xE2\x96\x81");
  const int scheme = f.choice("prepend_scheme", "always first never", 0);
  const bool splits = f.boolean("split", true);
  if (to_points(mark).size() != 1) unknown(f.where(), "a replacement of several characters");
  return [mark, scheme, splits](std::vector<Piece> pieces) {
    std::vector<Piece> out;
    for (Piece& piece : pieces) {
      std::string text = replaced(piece.text, " ", mark);
      const bool prepends = scheme == 0 || (scheme == 1 && piece.first);
      if (prepends && text.compare(0, mark.size(), mark)) text = mark + text;
      if (!splits) {
        out.push_back({std::move(text), piece.first});
        continue;
      }
      for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(mark, at + 1), text.size());
        out.push_back({text.substr(at, end - at), piece.first && at == 0});
        at = end;
      }
    }
    return out;
  };
}

}  // namespace

uint32_t shown_byte(uint8_t byte) {
  static const std::vector<uint32_t> SHOWN = [] {
    std::vector<uint32_t> table;
    uint32_t next = 0x100;
    for (int b = 0; b < 256; b++) table.push_back(stands_for_itself(b) ? (uint32_t)b : next++);
    return table;
  }();
  return SHOWN[byte];
}

int hidden_byte(uint32_t shown) {
  static const std::vector<int> HIDDEN = [] {
    std::vector<int> table(0x180, -1);
    for (int b = 0; b < 256; b++) table[shown_byte((uint8_t)b)] = b;
    return table;
  }();
  return shown < HIDDEN.size() ? HIDDEN[shown] : -1;
}

Normalize read_normalizer(const Json* value, const std::string& where) {
  if (is_nothing(value)) return {};
  Fields f(*value, where, EDGEDEC_TEXT);
  const std::string type = f.string("type");
  if (type == "NFC") return [](const std::string& text) { return nfc(text); };
  if (type == "Prepend") {
    const std::string prefix = f.string("prepend");
    return [prefix](const std::string& text) { return text.empty() ? text : prefix + text; };
  }
  if (type == "Replace") {
    const std::string from = literal_pattern(f, where), to = f.string("content");
    return [from, to](const std::string& text) { return replaced(text, from, to); };
  }
  if (type != "Sequence") unknown(where, "the normalizer " + type);
  std::vector<Normalize> parts;
  for (const Json& part : to_list(f.need("normalizers"), where, EDGEDEC_TEXT))
    if (Normalize made = read_normalizer(&part, where)) parts.push_back(std::move(made));
  return [parts](const std::string& text) {
    std::string out = text;
    for (const Normalize& part : parts) out = part(out);
    return out;
  };
}

PreTokenize read_pre_tokenizer(const Json* value, const std::string& where, bool& bytewise) {
  if (is_nothing(value)) return {};
  if (bytewise) unknown(where, "a pre-tokenizer after ByteLevel");
  Fields f(*value, where, EDGEDEC_TEXT);
  const std::string type = f.string("type");
  if (type == "Split") return read_split(f);
  if (type == "Digits") return read_digits(f);
  if (type == "ByteLevel") return read_byte_level(f, bytewise);
  if (type == "Metaspace") return read_metaspace(f);
  if (type != "Sequence") unknown(where, "the pre-tokenizer " + type);
  std::vector<PreTokenize> parts;
  for (const Json& part : to_list(f.need("pretokenizers"), where, EDGEDEC_TEXT))
    if (PreTokenize made = read_pre_tokenizer(&part, where, bytewise)) parts.push_back(std::move(made));
  return [parts](std::vector<Piece> pieces) {
    for (const PreTokenize& part : parts) pieces = part(std::move(pieces));
    return pieces;
  };
}

void AddedTokens::add(const AddedToken& token) {
  if (token.content.empty()) return;
  auto& found = by_byte_[(unsigned char)token.content[0]];
  const auto at = std::find_if(found.begin(), found.end(), [&](const AddedToken& other) {
    return other.content.size() < token.content.size();
  });
  found.insert(at, token);
  any_ = true;
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text, bool special) const {
  std::vector<Part> out;
  size_t rest = 0;
  const auto put = [&](size_t from, size_t to) {
    if (to > from) out.push_back({text.substr(from, to - from), nullptr});
  };
  for (size_t at = 0; any_ && at < text.size();) {
    const AddedToken* found = nullptr;
    for (const AddedToken& token : by_byte_[(unsigned char)text[at]])
      if (!text.compare(at, token.content.size(), token.content)) {
        found = &token;
        break;
      }
    if (!found) {
      at++;
      continue;
    }
    size_t begin = at, end = at + found->content.size();
    at = end;
    if (found->special && !special) continue;
    // It includes adjacent blanks.
    while (found->strips_left && begin > rest) {
      size_t before = begin - 1;
      while (before > rest && ((unsigned char)text[before] & 0xC0) == 0x80) before--;
      size_t after = before;
      if (!is_space(next_utf8(text, after)) || after != begin) break;
      begin = before;
    }
    while (found->strips_right && end < text.size()) {
      size_t after = end;
      if (!is_space(next_utf8(text, after))) break;
      end = after;
    }
    put(rest, begin);
    out.push_back({text.substr(begin, end - begin), found});
    rest = at = end;
  }
  put(rest, text.size());
  return out;
}

}  // namespace edgedec::lib
