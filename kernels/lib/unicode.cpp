#include "unicode.h"

#include <algorithm>
#include <iterator>

#include "json.h"
#include "unicode_tables.h"

namespace edgedec::lib {

namespace {

constexpr uint32_t HANGUL = 0xAC00, LEADS = 0x1100, VOWELS = 0x1161, TAILS = 0x11A7;
constexpr uint32_t N_VOWELS = 21, N_TAILS = 28, N_SYLLABLES = 11172, N_LEADS = 19;

template <class Table>
auto find_range(const Table& table, uint32_t point) {
  auto at = std::upper_bound(std::begin(table), std::end(table), point,
                             [](uint32_t p, const auto& range) { return p < range.first; });
  if (at == std::begin(table) || point > (--at)->last) return std::end(table);
  return at;
}

int combining(uint32_t point) {
  const auto at = find_range(unicode::COMBINING, point);
  return at == std::end(unicode::COMBINING) ? 0 : at->value;
}

void decompose(uint32_t point, std::vector<uint32_t>& out) {
  if (point >= HANGUL && point < HANGUL + N_SYLLABLES) {
    const uint32_t s = point - HANGUL;
    out.push_back(LEADS + s / (N_VOWELS * N_TAILS)), out.push_back(VOWELS + s / N_TAILS % N_VOWELS);
    if (s % N_TAILS) out.push_back(TAILS + s % N_TAILS);
    return;
  }
  const auto at = std::lower_bound(std::begin(unicode::DECOMPOSITIONS), std::end(unicode::DECOMPOSITIONS), point,
                                   [](const unicode::Decomposition& d, uint32_t p) { return d.point < p; });
  if (at == std::end(unicode::DECOMPOSITIONS) || at->point != point) return out.push_back(point);
  out.insert(out.end(), unicode::PARTS + at->at, unicode::PARTS + at->at + at->size);
}

// 0: they do not compose.
uint32_t compose(uint32_t first, uint32_t second) {
  if (first >= LEADS && first < LEADS + N_LEADS && second >= VOWELS && second < VOWELS + N_VOWELS)
    return HANGUL + ((first - LEADS) * N_VOWELS + (second - VOWELS)) * N_TAILS;
  if (first >= HANGUL && first < HANGUL + N_SYLLABLES && (first - HANGUL) % N_TAILS == 0 && second > TAILS &&
      second < TAILS + N_TAILS)
    return first + (second - TAILS);
  const auto at = std::lower_bound(std::begin(unicode::COMPOSITIONS), std::end(unicode::COMPOSITIONS), first,
                                   [&](const unicode::Composition& c, uint32_t p) {
                                     return c.first != p ? c.first < p : c.second < second;
                                   });
  return at != std::end(unicode::COMPOSITIONS) && at->first == first && at->second == second ? at->point : 0;
}

}  // namespace

int category(uint32_t point) {
  const auto at = find_range(unicode::CATEGORIES, point);
  return at == std::end(unicode::CATEGORIES) ? 29 : at->category;
}

bool is_space(uint32_t point) { return find_range(unicode::SPACES, point) != std::end(unicode::SPACES); }

uint32_t categories_of(const std::string& name) {
  static const char* const NAMES[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
                                      "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
  uint32_t found = 0;
  for (int i = 0; i < 28; i++)
    if (name == NAMES[i] || (name.size() == 1 && name[0] == NAMES[i][0] && name != "C")) found |= 1u << i;
  return found;
}

std::vector<uint32_t> to_points(std::string_view utf8) {
  std::vector<uint32_t> out;
  out.reserve(utf8.size());
  for (size_t at = 0; at < utf8.size();) {
    const uint32_t point = next_utf8(utf8, at);
    out.push_back(point == 0xFFFFFFFFu ? 0xFFFD : point);
  }
  return out;
}

std::string to_utf8(const uint32_t* points, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; i++) put_utf8(out, points[i]);
  return out;
}

std::string nfc(std::string_view utf8) {
  if (std::all_of(utf8.begin(), utf8.end(), [](char c) { return (unsigned char)c < 0x80; })) return std::string(utf8);
  std::vector<uint32_t> parts;
  for (const uint32_t point : to_points(utf8)) decompose(point, parts);
  for (size_t i = 0; i < parts.size();) {  // marks in the order of their classes
    size_t end = i;
    while (end < parts.size() && combining(parts[end])) end++;
    std::stable_sort(parts.begin() + (ptrdiff_t)i, parts.begin() + (ptrdiff_t)end,
                     [](uint32_t a, uint32_t b) { return combining(a) < combining(b); });
    i = std::max(end, i + 1);
  }
  std::vector<uint32_t> out;
  ptrdiff_t starter = -1;
  int last = -1;  // class of the character before, if it was not composed away; -1: the starter itself
  for (const uint32_t point : parts) {
    const int own = combining(point);
    if (starter >= 0 && last < own) {
      if (const uint32_t made = compose(out[(size_t)starter], point)) {
        out[(size_t)starter] = made;
        continue;
      }
    }
    out.push_back(point);
    if (own == 0) starter = (ptrdiff_t)out.size() - 1, last = -1;
    else last = own;
  }
  return to_utf8(out.data(), out.size());
}

}  // namespace edgedec::lib
