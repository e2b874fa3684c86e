// What a fuzzer gives, read as numbers; and files whose hashes are right, so that what lies behind them is reached.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz {

// Numbers out of the input; zeros after its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool more() const { return at_ < size_; }
  uint8_t byte() { return more() ? data_[at_++] : 0; }
  uint64_t number(int bytes) {
    uint64_t value = 0;
    while (bytes-- > 0) value = value << 8 | byte();
    return value;
  }
  // 0 to n - 1; one byte for small n.
  size_t below(size_t n) { return n < 2 ? 0 : (size_t)(number(n <= 256 ? 1 : 4) % n); }
  template <class T, size_t N>
  T of(const T (&values)[N]) {
    return values[below(N)];
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

struct File {
  std::string name, content;
};

// The files of a packed bundle that is whole.
std::vector<File> unpacked(const std::string& raw);
// A packed bundle of these files, with the right hashes of its index and its manifest.
std::string packed(const std::vector<File>& files);
// The same for a packed bundle of any bytes: its sizes and the hash of its index are made right.
std::string mended_pack(std::string raw);
// A file of arrays (a saved session, an adapter): header, a zero byte, body -> with sizes and a hash.
std::string array_file(const char* magic, std::string_view text);
// And back.
std::string array_text(const std::string& file);

}  // namespace fuzz
