// Properties of characters: categories, white space, NFC.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace edgedec::lib {

// The numbers of unicode_tables.h; 29 for a character that is not assigned.
int category(uint32_t point);
bool is_space(uint32_t point);
// Which categories a name of a regular expression such as "L" or "Lu" stands for, as bits; 0: none.
uint32_t categories_of(const std::string& name);

std::vector<uint32_t> to_points(std::string_view utf8);
std::string to_utf8(const uint32_t* points, size_t n);
// Canonical composition.
std::string nfc(std::string_view utf8);

}  // namespace edgedec::lib
