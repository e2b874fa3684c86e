// SHA-256 (FIPS 180-4).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace edgedec::lib {

class Sha256 {
 public:
  Sha256();
  void add(const void* data, size_t size);
  void digest(uint8_t out[32]);  // ends it
  std::string hex();             // ends it

 private:
  void block(const uint8_t* p);
  uint32_t state_[8];
  uint8_t rest_[64];
  size_t held_ = 0;
  uint64_t bytes_ = 0;
};

std::string sha256_hex(const void* data, size_t size);

}  // namespace edgedec::lib
