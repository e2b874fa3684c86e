// The targets without libFuzzer: changes seeds at random, and counts.
//
//     driver COUNT SEED FILE...     prints how many inputs there were and how many of them were accepted
//     driver replay FILE...         runs each file as it is; prints the same
//     driver seeds FOLDER           writes seeds
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "targets.h"

namespace {

std::mt19937_64 rng;
size_t below(size_t n) { return n ? rng() % n : 0; }

const char* const WORDS[] = {"null", "-1", "0", "1e999", "18446744073709551616", "\"\"", "[]", "{}", "true", "16777217",
                             "2147483648", "1.5", "[[[[[[[[", "\"\\ud800\"", "\"<0xE2>\"", "4503599627370496"};

// A value becomes another.
void exchange(std::string& text, size_t at) {
  size_t from = text.find_first_of(":,[", at);
  if (from == std::string::npos) return;
  const size_t to = text.find_first_of(",]}", ++from);
  if (to != std::string::npos && to - from < 200) text.replace(from, to - from, WORDS[below(16)]);
}

std::string changed(std::string text) {
  for (size_t i = 0, n = 1 + below(3); i < n && !text.empty(); i++) {
    const size_t at = below(text.size()), size = below(std::min<size_t>(24, text.size() - at)) + 1;
    switch (below(6)) {
      case 0: text[at] = (char)rng(); break;
      case 1: text.erase(at, size); break;
      case 2: text.insert(at, text.substr(below(text.size()), size)); break;
      case 3: text.insert(at, WORDS[below(16)]); break;
      case 4: exchange(text, at); break;
      default: text[at] ^= (char)(1 << below(8));
    }
  }
  return text;
}

std::string content(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string noise() {
  std::string out(below(400), '\0');
  for (char& c : out) c = (char)rng();
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && !std::strcmp(argv[1], "seeds")) return fuzz::write_seeds(argv[2]), 0;
  if (argc < 3) return 2;
  if (!std::strcmp(argv[1], "replay")) {
    long good = 0;
    for (int i = 2; i < argc; i++) {
      const std::string input = content(argv[i]);
      good += fuzz::accepted((const uint8_t*)input.data(), input.size());
    }
    return std::printf("%d %ld\n", argc - 2, good), 0;
  }
  const long count = std::atol(argv[1]);
  rng.seed(std::strtoull(argv[2], nullptr, 10));
  std::vector<std::string> seeds;
  for (int i = 3; i < argc; i++) seeds.push_back(content(argv[i]));
  long good = 0;
  for (long i = 0; i < count; i++) {
    const std::string input = seeds.empty() ? noise() : changed(seeds[below(seeds.size())]);
    good += fuzz::accepted((const uint8_t*)input.data(), input.size());
  }
  std::printf("%ld %ld\n", count, good);
}
