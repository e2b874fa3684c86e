// The random numbers of numpy.random.default_rng: PCG64 (XSL-RR 128/64) seeded by SeedSequence, so that a
// seed gives the same tokens as in Python.
#pragma once
#include <cstdint>
#include <string>

namespace edgedec::lib {

struct Wide {  // 128 bits
  uint64_t high = 0, low = 0;
  bool operator==(const Wide& other) const { return high == other.high && low == other.low; }
};

class Pcg64 {
 public:
  Pcg64();  // seeded by the system
  explicit Pcg64(uint64_t seed);
  Pcg64(Wide state, Wide inc) : state_(state), inc_(inc) {}
  double next();  // in [0, 1): Generator.random()
  Wide state() const { return state_; }
  Wide increment() const { return inc_; }

 private:
  void seed(const uint32_t* entropy, int words);
  Wide state_, inc_;
};

std::string to_decimal(Wide value);
// Whether `text` is a number below 2^128.
bool from_decimal(const std::string& text, Wide& value);

}  // namespace edgedec::lib
