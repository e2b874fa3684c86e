#include "tokenizer.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "failure.h"
#include "json.h"
#include "pipeline.h"

namespace edgedec::lib {

namespace {

constexpr int32_t NONE = -1;
constexpr size_t LARGEST_FILE = 128 << 20;
constexpr int64_t LARGEST_ID = 1 << 24;

[[noreturn]] void unknown(const std::string& where, const std::string& what) {
  throw Failure(EDGEDEC_TEXT, where + ": " + what + " is not known to this library; give tokens instead of text");
}

// "<0xE2>" -> 0xE2; -1: another spelling.
int byte_of(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return -1;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
  };
  const int high = piece[3] == '+' ? 0 : digit(piece[3]), low = digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// Invalid UTF-8 becomes U+FFFD, one for each longest prefix of a character. `held`: an unfinished character
// stays there; null: this is the end.
std::string readable(std::string_view bytes, std::string* held) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    size_t end = at;
    if (next_utf8(bytes, end) != 0xFFFFFFFFu) {
      out.append(bytes, at, end - at), at = end;
      continue;
    }
    // How far it is the beginning of some character.
    const auto byte = [&](size_t i) { return (unsigned char)bytes[i]; };
    const unsigned char first = byte(at);
    const size_t more = first >= 0xC2 && first < 0xE0 ? 1 : first >= 0xE0 && first < 0xF0 ? 2 : first >= 0xF0 && first < 0xF5 ? 3 : 0;
    size_t n = 1;
    for (; n <= more && at + n < bytes.size(); n++) {
      unsigned char low = 0x80, high = 0xBF;
      if (n == 1 && first == 0xE0) low = 0xA0;
      if (n == 1 && first == 0xED) high = 0x9F;
      if (n == 1 && first == 0xF0) low = 0x90;
      if (n == 1 && first == 0xF4) high = 0x8F;
      if (byte(at + n) < low || byte(at + n) > high) break;
    }
    if (held && more && at + n == bytes.size() && n <= more) {
      *held = bytes.substr(at);
      return out;
    }
    out += "\xEF\xBF\xBD", at += n;
  }
  if (held) held->clear();
  return out;
}

struct PairHash {
  size_t operator()(uint64_t pair) const { return (size_t)((pair ^ pair >> 29) * 0x9E3779B97F4A7C15ull); }
};

uint64_t pair_of(int32_t a, int32_t b) { return (uint64_t)(uint32_t)a << 32 | (uint32_t)b; }

class Bpe : public Tokenizer {
 public:
  Bpe(std::string_view json, const std::string& where) {
    if (json.size() > LARGEST_FILE) unknown(where, "a tokenizer.json of more than 128 MiB");
    const Json whole = parse_json(json, EDGEDEC_TEXT, where);
    Fields f(whole, where, EDGEDEC_TEXT);
    read_model(f.need("model"), where + ": model");
    if (const Json* added = f.any("added_tokens")) read_added(*added, where + ": added_tokens");
    normalize_ = read_normalizer(f.any("normalizer"), where + ": normalizer");
    for (const AddedToken& token : late_list_) {
      AddedToken as_read = token;
      if (normalize_) as_read.content = normalize_(token.content);
      late_.add(as_read);
      // Its content is normalized, and under that name it is not marked special.
      name(token.id, as_read.content, token.special && as_read.content == token.content);
    }
    pre_tokenize_ = read_pre_tokenizer(f.any("pre_tokenizer"), where + ": pre_tokenizer", shows_bytes_);
    read_decoder(f.any("decoder"), where + ": decoder");
    read_around(f.any("post_processor"), where + ": post_processor");
  }

  std::vector<int32_t> encode(std::string_view text, bool special, bool around) const override {
    if (!is_utf8(text)) throw Failure(EDGEDEC_TEXT, "text: not UTF-8");
    std::vector<int32_t> out;
    if (special && around) out = before_;
    for (const auto& part : early_.split(text, special)) {
      if (part.token) {
        out.push_back(part.token->id);
        continue;
      }
      const std::string normal = normalize_ ? normalize_(std::string(part.text)) : std::string(part.text);
      for (const auto& inner : late_.split(normal, special)) {
        const bool first = part.text.data() == text.data() && inner.text.data() == normal.data();
        if (inner.token) out.push_back(inner.token->id);
        else add_words(std::string(inner.text), first, out);
      }
    }
    if (special && around) out.insert(out.end(), after_.begin(), after_.end());
    return out;
  }

  std::string decode(const int32_t* ids, size_t n, bool special) const override {
    if (bytewise_) {
      std::string all;
      for (size_t i = 0; i < n; i++)
        if (special || !hidden(ids[i])) all += bytes(ids[i]);
      return readable(all, nullptr);
    }
    std::string out, run;
    size_t run_bytes = 0;
    const auto end_run = [&] {
      if (is_utf8(run)) out += run;
      else for (size_t i = 0; i < run_bytes; i++) out += "\xEF\xBF\xBD";
      run.clear(), run_bytes = 0;
    };
    bool first = true;
    for (size_t i = 0; i < n; i++) {
      const std::string_view spelt = piece(ids[i]);
      if ((!special && hidden(ids[i])) || !known(ids[i])) continue;
      const int byte = byte_fallback_ ? byte_of(spelt) : -1;
      if (byte >= 0) {
        run += (char)byte, run_bytes++, first = false;
        continue;
      }
      end_run();
      out += spaced(spelt, first), first = false;
    }
    end_run();
    for (int i = 0; i < strip_; i++)
      if (!out.compare(0, strip_text_.size(), strip_text_)) out.erase(0, strip_text_.size());
      else break;
    return out;
  }

  std::string_view piece(int32_t id) const override {
    return id >= 0 && (size_t)id < pieces_.size() ? std::string_view(pieces_[(size_t)id]) : std::string_view();
  }
  bool hidden(int32_t id) const override { return id >= 0 && (size_t)id < hidden_.size() && hidden_[(size_t)id]; }
  bool bytewise() const override { return bytewise_; }
  std::string_view bytes(int32_t id) const override {
    return id >= 0 && (size_t)id < bytes_.size() ? std::string_view(bytes_[(size_t)id]) : std::string_view();
  }
  bool is_byte(int32_t id) const override { return byte_fallback_ && byte_of(piece(id)) >= 0; }

 private:
  bool known(int32_t id) const { return id >= 0 && (size_t)id < known_.size() && known_[(size_t)id]; }

  int32_t checked_id(const Json& value, const std::string& where) {
    const int64_t id = to_integer(value, where, EDGEDEC_TEXT);
    if (id < 0 || id > LARGEST_ID) throw Failure(EDGEDEC_TEXT, where + ": token " + std::to_string(id) + " is out of range");
    return (int32_t)id;
  }

  void name(int32_t id, const std::string& text, bool hide) {
    if ((size_t)id >= pieces_.size()) pieces_.resize((size_t)id + 1), hidden_.resize((size_t)id + 1), known_.resize((size_t)id + 1);
    pieces_[(size_t)id] = text, hidden_[(size_t)id] = hide, known_[(size_t)id] = 1;
  }

  void read_model(const Json& value, const std::string& where) {
    Fields f(value, where, EDGEDEC_TEXT);
    const Json* type = f.any("type");
    if (type && to_string(*type, where, EDGEDEC_TEXT) != "BPE") unknown(where, "the model " + type->text);
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json* found = f.any(key);
      if (found && found->kind != Json::NIL && !(found->kind == Json::STRING && found->text.empty())) unknown(where, key);
    }
    byte_fallback_model_ = f.boolean("byte_fallback", false), fuses_ = f.boolean("fuse_unk", false);
    ignores_merges_ = f.boolean("ignore_merges", false);
    const Json& vocab = f.need("vocab");
    Fields(vocab, where + ".vocab", EDGEDEC_TEXT);
    ids_.reserve(vocab.members.size());
    for (const auto& [text, id] : vocab.members) {
      const int32_t number = checked_id(id, where + ".vocab");
      ids_[text] = number;
      name(number, text, false);
    }
    const Json* unk = f.any("unk_token");
    if (unk && unk->kind == Json::STRING) unk_ = find(unk->text);
    const auto& merges = to_list(f.need("merges"), where + ".merges", EDGEDEC_TEXT);
    merges_.reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); rank++) add_merge(merges[rank], (int32_t)rank, where + ".merges");
    for (int b = 0; b < 256; b++) {
      static const char HEX[] = "0123456789ABCDEF";
      byte_ids_[b] = find(std::string("<0x") + HEX[b >> 4] + HEX[b & 15] + ">");
    }
  }

  int32_t find(const std::string& text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? NONE : found->second;
  }

  void add_merge(const Json& value, int32_t rank, const std::string& where) {
    std::string left, right;
    if (value.kind == Json::STRING) {
      const size_t blank = value.text.find(' ');
      if (blank == std::string::npos) throw Failure(EDGEDEC_TEXT, where + ": a merge without a blank");
      left = value.text.substr(0, blank), right = value.text.substr(blank + 1);
    } else {
      const auto& pair = to_list(value, where, EDGEDEC_TEXT);
      if (pair.size() != 2) throw Failure(EDGEDEC_TEXT, where + ": a merge of " + std::to_string(pair.size()) + " tokens");
      left = to_string(pair[0], where, EDGEDEC_TEXT), right = to_string(pair[1], where, EDGEDEC_TEXT);
    }
    const int32_t a = find(left), b = find(right), made = find(left + right);
    if (a == NONE || b == NONE || made == NONE) throw Failure(EDGEDEC_TEXT, where + ": a merge of tokens that are not in the vocabulary");
    merges_[pair_of(a, b)] = {rank, made};
  }

  void read_added(const Json& value, const std::string& where) {
    for (const Json& item : to_list(value, where, EDGEDEC_TEXT)) {
      Fields f(item, where, EDGEDEC_TEXT);
      AddedToken token{};
      token.id = checked_id(f.need("id"), where), token.content = f.string("content");
      token.special = f.boolean("special", false), token.normalized = f.boolean("normalized", true);
      token.strips_left = f.boolean("lstrip", false), token.strips_right = f.boolean("rstrip", false);
      if (f.boolean("single_word", false)) unknown(where, "single_word");
      // Markers of reasoning are shown as text, whatever their flag in the file.
      if (token.content == "<think>" || token.content == "</think>") token.special = false;
      name(token.id, token.content, token.special);
      if (token.normalized) late_list_.push_back(token);
      else early_.add(token);
    }
  }

  // ---- decoders ----

  void read_decoder(const Json* value, const std::string& where) {
    if (!value || value->kind == Json::NIL) unknown(where, "no decoder");
    Fields f(*value, where, EDGEDEC_TEXT);
    const std::string type = f.string("type");
    if (type == "ByteLevel") {
      bytewise_ = true;
      bytes_.resize(pieces_.size());
      for (size_t i = 0; i < pieces_.size(); i++) bytes_[i] = spelt_bytes(pieces_[i]);
      return;
    }
    bool fused = false;
    std::vector<const Json*> steps;
    if (type == "Sequence")
      for (const Json& step : to_list(f.need("decoders"), where, EDGEDEC_TEXT)) steps.push_back(&step);
    else steps.push_back(value);
    for (const Json* step : steps) read_step(*step, where, fused);
  }

  void read_step(const Json& value, const std::string& where, bool& fused) {
    Fields f(value, where, EDGEDEC_TEXT);
    const std::string type = f.string("type");
    if (type == "Replace" && !fused && !byte_fallback_) {
      const Json* pattern = f.need("pattern").find("String");
      if (!pattern || pattern->kind != Json::STRING || pattern->text.empty()) unknown(where, "a pattern that is no string");
      replaces_.push_back({pattern->text, f.string("content")});
    } else if (type == "ByteFallback" && !fused) {
      byte_fallback_ = true;
    } else if (type == "Fuse") {
      fused = true;
    } else if (type == "Strip" && fused && !strip_) {
      strip_text_ = f.string("content"), strip_ = (int)f.integer("start");
      if (f.integer("stop") != 0 || strip_ < 0 || strip_ > 64 || strip_text_.empty()) unknown(where, "Strip at the end");
    } else if (type == "Metaspace" && !fused) {
      metaspace_ = f.string("replacement", "\xE2\x96\x81");
      metaspace_strips_ = f.choice("prepend_scheme", "always first never", 0) != 2;
    } else {
      unknown(where, "the decoder " + type + " in this place");
    }
  }

  // The text of a token after the decoder's steps before Fuse.
  std::string spaced(std::string_view spelt, bool first) const {
    std::string text(spelt);
    for (const auto& [from, to] : replaces_)
      for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
    if (metaspace_.empty()) return text;
    const std::string blank = first && metaspace_strips_ ? "" : " ";
    for (size_t at = text.find(metaspace_); at != std::string::npos; at = text.find(metaspace_, at + blank.size()))
      text.replace(at, metaspace_.size(), blank);
    return text;
  }

  // "ĠÃ©" -> the bytes it shows; a token spelt otherwise is itself.
  static std::string spelt_bytes(const std::string& piece) {
    std::string out;
    for (size_t at = 0; at < piece.size();) {
      const int byte = hidden_byte(next_utf8(piece, at));
      if (byte < 0) return piece;
      out += (char)byte;
    }
    return out;
  }

  // ---- around a text ----

  void read_around(const Json* value, const std::string& where) {
    if (!value || value->kind == Json::NIL) return;
    Fields f(*value, where, EDGEDEC_TEXT);
    const std::string type = f.string("type");
    if (type == "ByteLevel") return;
    if (type == "Sequence") {
      for (const Json& part : to_list(f.need("processors"), where, EDGEDEC_TEXT)) read_around(&part, where);
      return;
    }
    if (type != "TemplateProcessing") unknown(where, "the post-processor " + type);
    const Json& specials = f.need("special_tokens");
    bool text_seen = false;
    for (const Json& item : to_list(f.need("single"), where, EDGEDEC_TEXT)) {
      const Json *token = item.find("SpecialToken"), *text = item.find("Sequence");
      if (text && !text_seen) {
        text_seen = true;
        continue;
      }
      const Json* id = token ? token->find("id") : nullptr;
      const Json* found = id && id->kind == Json::STRING ? specials.find(id->text) : nullptr;
      const Json* ids = found ? found->find("ids") : nullptr;
      if (!ids) unknown(where, "a template of this kind");
      for (const Json& each : to_list(*ids, where, EDGEDEC_TEXT))
        (text_seen ? after_ : before_).push_back(checked_id(each, where));
    }
  }

  // ---- words ----

  void add_words(std::string text, bool first, std::vector<int32_t>& out) const {
    std::vector<Piece> pieces{{std::move(text), first}};
    if (pre_tokenize_) pieces = pre_tokenize_(std::move(pieces));
    for (const Piece& piece : pieces) add_word(piece.text, out);
  }

  void add_word(const std::string& word, std::vector<int32_t>& out) const {
    if (word.empty()) return;
    if (ignores_merges_)
      if (const int32_t id = find(word); id != NONE) return out.push_back(id);
    std::vector<int32_t> symbols;
    bool unknown_before = false;
    for (size_t at = 0; at < word.size();) {
      size_t end = at;
      next_utf8(word, end);
      const std::string character = word.substr(at, end - at);
      at = end;
      const int32_t id = find(character);
      if (id != NONE) {
        symbols.push_back(id), unknown_before = false;
        continue;
      }
      if (byte_fallback_model_ && std::all_of(character.begin(), character.end(), [&](char c) {
            return byte_ids_[(unsigned char)c] != NONE;
          })) {
        for (const char c : character) symbols.push_back(byte_ids_[(unsigned char)c]);
        unknown_before = false;
        continue;
      }
      if (unk_ != NONE && !(fuses_ && unknown_before)) symbols.push_back(unk_);
      unknown_before = unk_ != NONE;
    }
    merge(symbols);
    out.insert(out.end(), symbols.begin(), symbols.end());
  }

  // The merge of the lowest rank first, of equal ones the leftmost.
  void merge(std::vector<int32_t>& symbols) const {
    struct Candidate {
      int32_t rank, at, made;
      bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
    };
    const int n = (int)symbols.size();
    std::vector<int> next((size_t)n), before((size_t)n);
    std::priority_queue<Candidate> queue;
    const auto offer = [&](int at) {
      if (at < 0 || next[(size_t)at] >= n) return;
      const auto found = merges_.find(pair_of(symbols[(size_t)at], symbols[(size_t)next[(size_t)at]]));
      if (found != merges_.end()) queue.push({found->second.first, at, found->second.second});
    };
    for (int i = 0; i < n; i++) next[(size_t)i] = i + 1, before[(size_t)i] = i - 1;
    for (int i = 0; i < n; i++) offer(i);
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      const size_t at = (size_t)best.at;
      if (symbols[at] == NONE || next[at] >= n) continue;
      const auto found = merges_.find(pair_of(symbols[at], symbols[(size_t)next[at]]));
      if (found == merges_.end() || found->second.second != best.made) continue;  // it has been merged otherwise
      const int gone = next[at];
      symbols[at] = best.made, symbols[(size_t)gone] = NONE;
      next[at] = next[(size_t)gone];
      if (next[at] < n) before[(size_t)next[at]] = best.at;
      offer(before[at]), offer(best.at);
    }
    symbols.erase(std::remove(symbols.begin(), symbols.end(), NONE), symbols.end());
  }

  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<uint64_t, std::pair<int32_t, int32_t>, PairHash> merges_;  // rank, what they become
  std::vector<std::string> pieces_, bytes_;
  std::vector<char> hidden_, known_;
  int32_t unk_ = NONE, byte_ids_[256];
  bool byte_fallback_model_ = false, fuses_ = false, ignores_merges_ = false;
  AddedTokens early_, late_;  // found in the text as it is; in the normalized one
  std::vector<AddedToken> late_list_;
  Normalize normalize_;
  PreTokenize pre_tokenize_;
  bool shows_bytes_ = false, bytewise_ = false, byte_fallback_ = false, metaspace_strips_ = false;
  std::vector<std::pair<std::string, std::string>> replaces_;
  std::string strip_text_, metaspace_;
  int strip_ = 0;
  std::vector<int32_t> before_, after_;
};

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::load(std::string_view json, const std::string& where) {
  return std::make_shared<Bpe>(json, where);
}

// ---- piece by piece ------------------------------------------------------------------------------------

// As Detokenizer in Python: only the last tokens of the prompt matter.
TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops, const std::vector<int32_t>& prompt)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  std::vector<int32_t> tail;
  size_t bytes = 0;
  for (size_t i = prompt.size(); i-- > 0;) {
    const int32_t token = prompt[i];
    const bool silent = tokenizer.hidden(token) || tokenizer.piece(token).empty();
    if (!tokenizer.bytewise() && !silent && !tokenizer.is_byte(token)) {
      anchor_ = {token};
      break;
    }
    tail.push_back(token);
    bytes += silent ? 0 : tokenizer.bytes(token).size();
    if (tokenizer.bytewise() && bytes > 3) break;  // no character is longer than four bytes
  }
  std::reverse(tail.begin(), tail.end());
  if (tokenizer.bytewise()) {
    for (const int32_t token : tail) read(token);
    told_ = readable(bytes_, nullptr);
  } else {
    held_ = tail;
    told_ = settle(), held_ = tail;
  }
}

// Text that just became certain, without the part that belongs to the prompt.
std::string TextStream::untold(std::string text) {
  if (text.empty()) return text;
  if (!told_.empty() && !text.compare(0, told_.size(), told_)) text.erase(0, told_.size());
  told_.clear();
  return text;
}

// The text of the held tokens after the anchor.
std::string TextStream::settle() {
  std::vector<int32_t> all = anchor_;
  all.insert(all.end(), held_.begin(), held_.end());
  const std::string whole = tokenizer_.decode(all.data(), all.size(), false);
  const std::string known = tokenizer_.decode(anchor_.data(), anchor_.size(), false);
  held_.clear();
  return whole.size() > known.size() ? whole.substr(known.size()) : "";
}

// The text that this token completes.
std::string TextStream::read(int32_t token) {
  if (tokenizer_.hidden(token) || tokenizer_.piece(token).empty()) return "";
  if (tokenizer_.bytewise()) {
    const std::string all = bytes_ + std::string(tokenizer_.bytes(token));
    return untold(readable(all, &bytes_));
  }
  held_.push_back(token);
  if (tokenizer_.is_byte(token)) return "";
  std::string text = untold(settle());
  anchor_ = {token};
  return text;
}

// Cuts at the earliest stop string; text that may be the beginning of one is held back unless it is the last.
bool TextStream::cut(std::string text, bool last, std::string& out) {
  if (hit_) return true;
  buffer_ += text;
  size_t found = std::string::npos, longest = 1, undecided = buffer_.size();
  for (const std::string& stop : stops_) found = std::min(found, buffer_.find(stop)), longest = std::max(longest, stop.size());
  const size_t from = buffer_.size() + 1 > longest ? buffer_.size() + 1 - longest : 0;
  for (size_t i = from; i < buffer_.size() && undecided == buffer_.size(); i++)
    for (const std::string& stop : stops_)
      if (!stop.compare(0, buffer_.size() - i, buffer_, i, std::string::npos)) undecided = std::min(undecided, i);
  if (last) undecided = buffer_.size();
  hit_ = found != std::string::npos && found <= undecided;
  const size_t safe = std::min(found, undecided);
  out.append(buffer_, 0, safe);
  buffer_.erase(0, hit_ ? buffer_.size() : safe);
  return hit_;
}

bool TextStream::push(int32_t token, std::string& out) { return cut(read(token), false, out); }

bool TextStream::flush(std::string& out) {
  std::string rest;
  if (tokenizer_.bytewise()) rest = untold(readable(bytes_, nullptr)), bytes_.clear();
  else rest = untold(settle());
  return cut(std::move(rest), true, out);
}

}  // namespace edgedec::lib
