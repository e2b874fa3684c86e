#include "regex.h"

#include <algorithm>

#include "failure.h"
#include "json.h"
#include "unicode.h"

namespace edgedec::lib {

namespace {

constexpr uint32_t MANY = 0xFFFFFFFFu;
constexpr int DEEPEST = 2000;
constexpr uint64_t MOST_STEPS = 1 << 22;  // of one match

uint32_t other_case(uint32_t c) {
  if (c >= 'a' && c <= 'z') return c - 32;
  if (c >= 'A' && c <= 'Z') return c + 32;
  return c;
}

}  // namespace

// Built from the end: each part is made for what follows it.
class RegexParser {
 public:
  RegexParser(Regex& regex, std::string_view pattern, const std::string& where)
      : regex_(regex), text_(to_points(pattern)), where_(where) {}

  int whole() {
    Regex::Node end;
    end.kind = Regex::Node::END;
    const int last = add(std::move(end));
    const int start = alternatives(last, 0);
    if (at_ != text_.size()) fail("a bracket too many");
    return start;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Failure(EDGEDEC_TEXT, where_ + ": a regular expression that this library does not read (" + what + ", at character " +
                                    std::to_string(at_) + ")");
  }
  int add(Regex::Node node) {
    if (regex_.nodes_.size() > 4096) fail("too long");
    regex_.nodes_.push_back(std::move(node));
    return (int)regex_.nodes_.size() - 1;
  }
  bool more() const { return at_ < text_.size(); }
  uint32_t peek() const { return more() ? text_[at_] : 0; }
  bool accept(const char* word) {
    size_t at = at_;
    for (const char* c = word; *c; c++, at++)
      if (at >= text_.size() || text_[at] != (uint32_t)*c) return false;
    at_ = at;
    return true;
  }

  // A part of a sequence, not yet joined to what follows.
  struct Part {
    Regex::Node node;
    size_t from = 0, to = 0;  // of a group: its text, which is parsed again for what follows
    enum { PLAIN, GROUP, AHEAD, NOT_AHEAD } kind = PLAIN;
    bool optional = false, ignores_case = false;
  };

  int alternatives(int next, int depth) {
    if (depth > 16) fail("nested too deeply");
    std::vector<int> found{sequence(next, depth)};
    while (accept("|")) found.push_back(sequence(next, depth));
    if (found.size() == 1) return found[0];
    Regex::Node choice;
    choice.kind = Regex::Node::CHOICE, choice.branches = std::move(found);
    return add(std::move(choice));
  }

  int sequence(int next, int depth) {
    std::vector<Part> parts;
    while (more() && peek() != '|' && peek() != ')') parts.push_back(part());
    for (size_t i = parts.size(); i-- > 0;) next = join(parts[i], next, depth);
    return next;
  }

  int join(Part& part, int next, int depth) {
    if (part.kind == Part::PLAIN) {
      part.node.next = next;
      return add(std::move(part.node));
    }
    const size_t back = at_;
    const bool before = ignores_case_;
    at_ = part.from, ignores_case_ = part.ignores_case;
    int made;
    if (part.kind == Part::GROUP) {
      made = alternatives(next, depth + 1);
    } else {
      Regex::Node end;
      end.kind = Regex::Node::END;
      const int last = add(std::move(end));
      Regex::Node look;
      look.kind = part.kind == Part::AHEAD ? Regex::Node::AHEAD : Regex::Node::NOT_AHEAD;
      look.branches = {alternatives(last, depth + 1)}, look.next = next;
      made = add(std::move(look));
    }
    if (at_ != part.to) fail("a group");
    at_ = back, ignores_case_ = before;
    if (!part.optional) return made;
    Regex::Node choice;
    choice.kind = Regex::Node::CHOICE, choice.branches = {made, next};
    return add(std::move(choice));
  }

  Part part() {
    Part made;
    if (peek() == '(') {
      group(made);
      made.optional = made.kind == Part::GROUP && accept("?");
      if (peek() == '*' || peek() == '+' || peek() == '{' || peek() == '?') fail("a repeated group");
      return made;
    }
    made.node.kind = Regex::Node::SET;
    made.node.set = peek() == '[' ? bracket() : single();
    made.node.set.ignores_case = ignores_case_;
    quantifier(made.node);
    return made;
  }

  void group(Part& made) {
    at_++;
    made.ignores_case = ignores_case_;
    made.kind = Part::GROUP;
    if (accept("?=")) made.kind = Part::AHEAD;
    else if (accept("?!")) made.kind = Part::NOT_AHEAD;
    else if (accept("?i:")) made.ignores_case = true;
    else if (!accept("?:") && peek() == '?') fail("a kind of group");
    made.from = at_;
    int open = 1;
    bool inside = false;
    for (; more() && open; at_++) {
      const uint32_t c = text_[at_];
      if (c == '\\') at_++;
      else if (inside) inside = c != ']';
      else if (c == '[') inside = true;
      else open += c == '(' ? 1 : c == ')' ? -1 : 0;
    }
    if (open || at_ > text_.size()) fail("a group without end");
    made.to = at_ - 1;
  }

  uint32_t number() {
    uint32_t value = 0;
    const size_t from = at_;
    while (peek() >= '0' && peek() <= '9' && at_ < from + 5) value = value * 10 + (text_[at_++] - '0');
    if (at_ == from) fail("a count");
    return value;
  }

  void quantifier(Regex::Node& node) {
    if (accept("*")) node.least = 0, node.most = MANY;
    else if (accept("+")) node.most = MANY;
    else if (accept("?")) node.least = 0;
    else if (accept("{")) {
      node.least = peek() == ',' ? 0 : number();
      node.most = accept(",") ? (peek() == '}' ? MANY : number()) : node.least;
      if (!accept("}") || node.most < node.least) fail("a count");
      if (peek() == '+' || peek() == '*') fail("a repetition of a repetition");
    } else {
      return;
    }
    if (accept("?")) node.lazy = true;
    else if (accept("+")) node.possessive = true;
    if (peek() == '*') fail("a repetition of a repetition");
  }

  Regex::Set single() {
    Regex::Set set;
    const uint32_t c = peek();
    if (c == '\\') return escape();
    if (c == '^' || c == '$' || c == '*' || c == '+' || c == '?' || c == '{') fail("an anchor or a loose repetition");
    at_++;
    if (c == '.') set.negated = true, set.ranges = {{'\n', '\n'}};
    else set.ranges = {{c, c}};
    return set;
  }

  Regex::Set escape() {
    Regex::Set set;
    at_++;
    const uint32_t c = peek();
    at_++;
    switch (c) {
      case 's': set.spaces = true; return set;
      case 'S': set.not_spaces = true; return set;
      case 'd': set.categories = categories_of("Nd"); return set;
      case 'p':
      case 'P': {
        if (!accept("{")) fail("a category");
        const bool turned = accept("^");
        std::string name;
        while (more() && peek() != '}' && name.size() < 20) put_utf8(name, text_[at_++]);
        const uint32_t found = categories_of(name);
        if (!accept("}") || !found) fail("the category " + name);
        ((c == 'P') != turned ? set.not_categories : set.categories) = found;
        return set;
      }
      default: set.ranges = {{literal(c), 0}}; set.ranges[0].second = set.ranges[0].first; return set;
    }
  }

  uint32_t literal(uint32_t c) {
    if (c == 'n') return '\n';
    if (c == 'r') return '\r';
    if (c == 't') return '\t';
    if (c == 'f') return '\f';
    if (c == 'v') return '\v';
    if (c == 'x' || c == 'u') {
      const bool braces = c == 'x' && accept("{");
      uint32_t value = 0;
      for (int i = 0; i < (braces ? 6 : c == 'u' ? 4 : 2) && (!braces || peek() != '}'); i++) {
        const uint32_t d = peek() | 32;
        if (!((d >= '0' && d <= '9') || (d >= 'a' && d <= 'f'))) fail("a code");
        value = value * 16 + (d <= '9' ? d - '0' : d - 'a' + 10), at_++;
      }
      if (braces && !accept("}")) fail("a code");
      return value;
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || !c) fail("an escape");
    return c;
  }

  Regex::Set bracket() {
    Regex::Set set;
    at_++;
    set.negated = accept("^");
    while (peek() != ']') {
      if (!more()) fail("a class without end");
      if (peek() == '[' || (peek() == '&' && at_ + 1 < text_.size() && text_[at_ + 1] == '&')) fail("a class in a class");
      const Regex::Set one = peek() == '\\' ? escape() : Regex::Set{false, false, {{text_[at_], text_[at_++]}}, 0, 0, false, false};
      if (one.not_categories || one.not_spaces) {
        // A bit set cannot express "not these" together with other parts.
        if (set.not_categories || set.not_spaces) fail("two negated parts of a class");
      }
      std::vector<std::pair<uint32_t, uint32_t>> range = one.ranges;
      if (range.size() == 1 && peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        at_++;
        const Regex::Set last = peek() == '\\' ? escape() : Regex::Set{false, false, {{text_[at_], text_[at_++]}}, 0, 0, false, false};
        if (last.ranges.size() != 1 || last.ranges[0].first < range[0].first) fail("a range");
        range[0].second = last.ranges[0].first;
      }
      set.ranges.insert(set.ranges.end(), range.begin(), range.end());
      set.categories |= one.categories, set.not_categories |= one.not_categories;
      set.spaces |= one.spaces, set.not_spaces |= one.not_spaces;
    }
    at_++;
    return set;
  }

  Regex& regex_;
  const std::vector<uint32_t> text_;
  const std::string& where_;
  size_t at_ = 0;
  bool ignores_case_ = false;
};

bool Regex::Set::holds(uint32_t point) const {
  for (const auto& [first, last] : ranges)
    if (first <= point && point <= last) return true;
  if (categories || not_categories) {
    const uint32_t bit = 1u << category(point);
    if ((categories & bit) || (not_categories && !(not_categories & bit))) return true;
  }
  return (spaces && is_space(point)) || (not_spaces && !is_space(point));
}

bool Regex::Set::has(uint32_t point) const {
  bool found = holds(point);
  if (ignores_case && !found) {
    found = holds(other_case(point));
    // The two characters whose lower case is a Latin letter.
    if (!found && point == 0x17F) found = holds('s') || holds('S');
    if (!found && point == 0x212A) found = holds('k') || holds('K');
  }
  return found != negated;
}

Regex::Regex(std::string_view pattern, const std::string& where) {
  if (pattern.size() > 1 << 13) throw Failure(EDGEDEC_TEXT, where + ": a regular expression that is too long");
  start_ = RegexParser(*this, pattern, where).whole();
}

int64_t Regex::match(const std::vector<uint32_t>& text, size_t at) const {
  uint64_t steps = 0;
  return run(start_, text, at, 0, steps);
}

int64_t Regex::run(int node, const std::vector<uint32_t>& text, size_t at, int depth, uint64_t& steps) const {
  if (depth > DEEPEST) throw Failure(EDGEDEC_TEXT, "a regular expression goes too deep on this text");
  for (;;) {
    if (++steps > MOST_STEPS) throw Failure(EDGEDEC_TEXT, "a regular expression takes too long on this text");
    const Node& n = nodes_[(size_t)node];
    switch (n.kind) {
      case Node::END: return (int64_t)at;
      case Node::CHOICE:
        for (size_t i = 0; i + 1 < n.branches.size(); i++)
          if (const int64_t end = run(n.branches[i], text, at, depth + 1, steps); end >= 0) return end;
        node = n.branches.back();
        continue;
      case Node::AHEAD:
      case Node::NOT_AHEAD:
        if ((run(n.branches[0], text, at, depth + 1, steps) >= 0) != (n.kind == Node::AHEAD)) return -1;
        node = n.next;
        continue;
      case Node::SET: break;
    }
    size_t count = 0;
    const size_t least = n.least, most = n.lazy ? n.least : n.most;
    while (count < most && at + count < text.size() && n.set.has(text[at + count])) count++;
    steps += count / 16;
    if (count < least) return -1;
    if (n.least == n.most || n.possessive || count == least) {
      if (!n.lazy) {
        at += count, node = n.next;
        continue;
      }
    }
    if (!n.lazy) {
      for (; count > least; count--)
        if (const int64_t end = run(n.next, text, at + count, depth + 1, steps); end >= 0) return end;
      at += least, node = n.next;
      continue;
    }
    for (;; count++) {
      if (const int64_t end = run(n.next, text, at + count, depth + 1, steps); end >= 0) return end;
      if (count >= n.most || at + count >= text.size() || !n.set.has(text[at + count])) return -1;
    }
  }
}

}  // namespace edgedec::lib
