#include "constraint.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "failure.h"
#include "json.h"
#include "tokenizer.h"

#if defined(EDGEDEC_LLGUIDANCE)
#include <llguidance.h>
#endif

namespace edgedec::lib {

#if defined(EDGEDEC_LLGUIDANCE)

namespace {

constexpr size_t LARGEST = 1 << 19;  // bytes of a schema or a grammar
// An unusual character may exceed the library's default lexer limits; slow is better than failed.
constexpr uint64_t FIRST_FUEL = 20'000'000, STEP_FUEL = 10'000'000;
// JSON with at most one space between its tokens; schema features that a grammar cannot express are refused.
const char* const JSON_RULES = "\"x-guidance\": {\"whitespace_flexible\": true, \"whitespace_pattern\": \" \", "
                               "\"lenient\": false, \"coerce_one_of\": false}}";

[[noreturn]] void refuse(const std::string& why) { throw Failure(EDGEDEC_USAGE, "constraint: " + why); }

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.substr(0, 400);
}

size_t tokenize(const void* user, const uint8_t* bytes, size_t size, uint32_t* out, size_t room) {
  std::vector<int32_t> ids;
  try {
    ids = ((const Tokenizer*)user)->encode({(const char*)bytes, size}, false, false);
  } catch (const std::exception&) {
    return 0;
  }
  for (size_t i = 0; i < ids.size() && i < room; i++) out[i] = (uint32_t)ids[i];
  return ids.size();
}

// A model's tokens in llguidance's form.
class Vocabulary {
 public:
  explicit Vocabulary(const Model& model) {
    const auto& facts = model.bundle().manifest;
    const std::string json(model.bundle().file(facts.text.tokenizer)->text());
    const std::vector<uint32_t> ends(facts.text.eos.begin(), facts.text.eos.end());
    LlgTokenizerInitV2 init{};
    init.struct_size = sizeof init, init.tokenizer_json = json.c_str();
    // A model without an end token gets one beyond its logits, which is never drawn.
    init.vocab_size = (uint32_t)model.vocab() + ends.empty(), init.tok_eos = ends.empty() ? (uint32_t)model.vocab() : ends[0];
    if (ends.size() > 1) init.tok_eos_extra = ends.data() + 1, init.tok_eos_extra_count = (uint32_t)ends.size() - 1;
    init.tokenize_fn = tokenize, init.tokenize_user_data = &model.tokenizer();
    init.tokenize_assumes_string = true;
    char why[256] = "";
    made_ = llg_new_tokenizer_v2(&init, why, sizeof why);
    if (!made_) throw Failure(EDGEDEC_TEXT, facts.text.tokenizer + ": no constraint can follow this tokenizer: " + one_line(why));
  }
  ~Vocabulary() { llg_free_tokenizer(made_); }
  Vocabulary(const Vocabulary&) = delete;
  const LlgTokenizer* get() const { return made_; }

 private:
  LlgTokenizer* made_;
};

std::shared_ptr<const Vocabulary> vocabulary_of(const Model& model) {
  const std::lock_guard<std::mutex> guard(model.constraint_lock);
  if (!model.constraint_vocabulary) model.constraint_vocabulary = std::make_shared<const Vocabulary>(model);
  return std::static_pointer_cast<const Vocabulary>(model.constraint_vocabulary);
}

// A schema with JSON_RULES at its end, which override its own settings: of equal keys the last counts.
std::string with_rules(const std::string& schema) {
  const Json parsed = parse_json(schema, EDGEDEC_USAGE, "constraint");
  if (parsed.kind == Json::BOOLEAN && parsed.boolean) return std::string("{") + JSON_RULES;
  if (parsed.kind != Json::OBJECT) refuse("a JSON schema is an object, or true");
  return schema.substr(0, schema.find_last_of('}')) + (parsed.members.empty() ? "" : ", ") + JSON_RULES;
}

class Grammar : public Constraint {
 public:
  Grammar(const Model& model, const std::string& kind, const std::string& text)
      : vocabulary_(vocabulary_of(model)), eos_(model.bundle().manifest.text.eos), vocab_(model.vocab()) {
    if (text.size() > LARGEST) refuse(std::to_string(text.size()) + " bytes; at most " + std::to_string(LARGEST) + " are allowed");
    if (kind != "json_schema" && kind != "regex" && kind != "lark")
      refuse("'" + kind.substr(0, 40) + "' is not one of json_schema, regex, lark");
    LlgConstraintInit init;
    llg_constraint_init_set_defaults(&init, vocabulary_->get());
    init.log_buffer_level = init.log_stderr_level = 0;
    init.limits.initial_lexer_fuel = FIRST_FUEL, init.limits.step_lexer_fuel = STEP_FUEL;
    const std::string given = kind == "json_schema" ? with_rules(text) : text;
    matcher_.reset(llg_new_matcher(&init, kind == "json_schema" ? "json" : kind.c_str(), given.c_str()));
    if (!matcher_ || llg_matcher_is_error(matcher_.get())) refuse(why());
  }

  void mask(const std::vector<int64_t>& path, float* scores) override {
    constexpr float never = -std::numeric_limits<float>::infinity();
    if (!follow(path)) return void(std::fill_n(scores, vocab_, never));
    if (over_ || (eos_.empty() && llg_matcher_is_stopped(matcher_.get()))) return;
    if (llg_matcher_compute_mask(matcher_.get())) refuse("too complex to follow further: " + why());
    const uint32_t* bits = llg_matcher_get_mask(matcher_.get());
    if (!bits) refuse("too complex to follow further: " + why());
    for (int32_t i = 0; i < vocab_; i++)
      if (!(bits[i / 32] >> i % 32 & 1)) scores[i] = never;
  }

  void accept(int32_t token) override {
    if (!ahead_.empty() && ahead_[0] == token) return void(ahead_.erase(ahead_.begin()));
    if (over_ || (is_end(token) && follow({}) && llg_matcher_is_accepting(matcher_.get()))) return void(over_ = true);
    if (!follow({token})) refuse("token " + std::to_string(token) + " is not allowed here");
    ahead_.clear();
  }

  bool done() override { return over_ || (ahead_.empty() && llg_matcher_is_stopped(matcher_.get())); }

 private:
  struct Free {
    void operator()(LlgMatcher* matcher) const { llg_free_matcher(matcher); }
  };
  bool is_end(int64_t token) const { return std::find(eos_.begin(), eos_.end(), token) != eos_.end(); }
  std::string why() const {
    const char* found = matcher_ ? llg_matcher_get_error(matcher_.get()) : nullptr;
    return one_line(found ? found : "llguidance does not say why");
  }

  // Brings the matcher to the end of `path`; false if the path is not allowed.
  bool follow(const std::vector<int64_t>& path) {
    const size_t most = std::min(ahead_.size(), path.size());
    const size_t same = (size_t)(std::mismatch(path.begin(), path.begin() + (ptrdiff_t)most, ahead_.begin()).first - path.begin());
    if (same < ahead_.size()) {
      if (llg_matcher_rollback(matcher_.get(), ahead_.size() - same)) refuse("too complex to follow further: " + why());
      ahead_.resize(same);
    }
    for (size_t i = same; i < path.size(); i++) {
      const uint32_t token = (uint32_t)path[i];
      if (is_end(path[i]) || llg_matcher_validate_tokens(matcher_.get(), &token, 1) != 1) return false;
      if (llg_matcher_consume_token(matcher_.get(), token)) refuse("too complex to follow further: " + why());
      ahead_.push_back(path[i]);
    }
    return true;
  }

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const std::vector<int32_t> eos_;
  const int32_t vocab_;
  std::unique_ptr<LlgMatcher, Free> matcher_;
  std::vector<int64_t> ahead_;  // drafted tokens that the matcher has taken
  bool over_ = false;           // an end token was accepted
};

}  // namespace

std::unique_ptr<Constraint> make_constraint(const Model& model, const char* kind, const char* text) {
  if (!kind || !text) refuse("needs a text and a kind: json_schema, regex, lark");
  return std::make_unique<Grammar>(model, kind, text);
}

#else

std::unique_ptr<Constraint> make_constraint(const Model&, const char*, const char*) {
  throw Failure(EDGEDEC_UNAVAILABLE, "constraint: this build is without llguidance; build with it (docs/c-library.md), or mask logits in on_logits");
}

#endif

}  // namespace edgedec::lib
