// The subset of regular expressions used by pre-tokenizers: alternatives, classes, categories, look-ahead, greedy
// repetition of single characters. Everything else is refused by name.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace edgedec::lib {

class Regex {
 public:
  // Throws Failure(EDGEDEC_TEXT).
  Regex(std::string_view pattern, const std::string& where);
  // The end of the match that begins at `at`; -1: none.
  int64_t match(const std::vector<uint32_t>& text, size_t at) const;

 private:
  friend class RegexParser;
  struct Set {
    bool negated = false, ignores_case = false;
    std::vector<std::pair<uint32_t, uint32_t>> ranges;
    uint32_t categories = 0, not_categories = 0;  // as bits
    bool spaces = false, not_spaces = false;
    bool has(uint32_t point) const;
    bool holds(uint32_t point) const;
  };
  struct Node {
    enum Kind { SET, CHOICE, AHEAD, NOT_AHEAD, END } kind = SET;
    Set set;
    uint32_t least = 1, most = 1;
    bool lazy = false, possessive = false;
    std::vector<int> branches;  // of a choice: its alternatives, each of which goes on to what follows; of AHEAD: one
    int next = -1;
  };
  int64_t run(int node, const std::vector<uint32_t>& text, size_t at, int depth, uint64_t& steps) const;

  std::vector<Node> nodes_;
  int start_ = -1;
};

}  // namespace edgedec::lib
