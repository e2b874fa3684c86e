#include "random.h"

#include <algorithm>
#include <random>

namespace edgedec::lib {

namespace {

Wide sum(Wide a, Wide b) {
  const uint64_t low = a.low + b.low;
  return {a.high + b.high + (low < a.low), low};
}

Wide product(uint64_t a, uint64_t b) {
  const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
  const uint64_t low = a0 * b0, mid = a1 * b0 + (low >> 32), cross = a0 * b1 + (uint32_t)mid;
  return {a1 * b1 + (mid >> 32) + (cross >> 32), cross << 32 | (uint32_t)low};
}

Wide product(Wide a, Wide b) {
  Wide out = product(a.low, b.low);
  out.high += a.high * b.low + a.low * b.high;
  return out;
}

constexpr Wide MULTIPLIER{2549297995355413924ull, 4865540595714422341ull};

// numpy's SeedSequence: `entropy` mixed to a pool of four words, of which `n` words are made.
void spread(const uint32_t* entropy, int words, uint32_t* out, int n) {
  constexpr int POOL = 4;
  uint32_t pool[POOL], constant = 0x43b0d7e5;
  const auto hash = [&](uint32_t value) {
    value ^= constant;
    constant *= 0x931e8875;
    value *= constant;
    return value ^ value >> 16;
  };
  const auto mix = [](uint32_t x, uint32_t y) {
    const uint32_t result = 0xca01f9dd * x - 0x4973f715 * y;
    return result ^ result >> 16;
  };
  for (int i = 0; i < POOL; i++) pool[i] = hash(i < words ? entropy[i] : 0);
  for (int from = 0; from < POOL; from++)
    for (int to = 0; to < POOL; to++)
      if (from != to) pool[to] = mix(pool[to], hash(pool[from]));
  for (int from = POOL; from < words; from++)
    for (int to = 0; to < POOL; to++) pool[to] = mix(pool[to], hash(entropy[from]));
  constant = 0x8b51f9dd;
  for (int i = 0; i < n; i++) {
    uint32_t value = pool[i % POOL] ^ constant;
    constant *= 0x58f38ded;
    value *= constant;
    out[i] = value ^ value >> 16;
  }
}

}  // namespace

Pcg64::Pcg64() {
  std::random_device device;
  uint32_t entropy[4];
  for (uint32_t& word : entropy) word = device();
  seed(entropy, 4);
}

Pcg64::Pcg64(uint64_t seed_) {
  const uint32_t entropy[2] = {(uint32_t)seed_, (uint32_t)(seed_ >> 32)};
  seed(entropy, entropy[1] ? 2 : 1);
}

void Pcg64::seed(const uint32_t* entropy, int words) {
  uint32_t w[8];
  spread(entropy, words, w, 8);
  const auto pair = [&](int i) { return (uint64_t)w[2 * i + 1] << 32 | w[2 * i]; };
  const Wide start{pair(0), pair(1)}, stream{pair(2), pair(3)};
  inc_ = {stream.high << 1 | stream.low >> 63, stream.low << 1 | 1};
  state_ = sum(inc_, start);  // a step from 0, then the start
  state_ = sum(product(state_, MULTIPLIER), inc_);
}

double Pcg64::next() {
  state_ = sum(product(state_, MULTIPLIER), inc_);
  const uint64_t x = state_.high ^ state_.low;
  const int turn = (int)(state_.high >> 58);
  const uint64_t bits = x >> turn | x << ((64 - turn) & 63);
  return (double)(bits >> 11) * (1.0 / 9007199254740992.0);
}

std::string to_decimal(Wide value) {
  std::string out;
  while (value.high || value.low || out.empty()) {
    // By 10, in four steps of 32 bits.
    uint64_t rest = 0;
    uint32_t parts[4] = {(uint32_t)(value.high >> 32), (uint32_t)value.high, (uint32_t)(value.low >> 32), (uint32_t)value.low};
    for (uint32_t& part : parts) {
      rest = rest << 32 | part;
      part = (uint32_t)(rest / 10);
      rest %= 10;
    }
    value = {(uint64_t)parts[0] << 32 | parts[1], (uint64_t)parts[2] << 32 | parts[3]};
    out += (char)('0' + rest);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

bool from_decimal(const std::string& text, Wide& value) {
  static const std::string LARGEST = "340282366920938463463374607431768211455";
  if (text.empty() || text.size() > LARGEST.size() || (text.size() == LARGEST.size() && text > LARGEST)) return false;
  value = {};
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = sum(product(value, Wide{0, 10}), Wide{0, (uint64_t)(c - '0')});
  }
  return true;
}

}  // namespace edgedec::lib
