#include "drafting.h"

#include "failure.h"

namespace edgedec::lib {

std::unique_ptr<Drafting> make_drafting(const Model&, const std::string& names, int) {
  if (names == "off") return nullptr;
  throw Failure(EDGEDEC_UNAVAILABLE, "speculate: not written yet");
}

}  // namespace edgedec::lib
