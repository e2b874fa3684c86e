// Constraints on a text: a JSON schema, a regular expression, a Lark grammar. They need a build with
// llguidance's C library (EDGEDEC_LLGUIDANCE); other builds refuse them. As edgedec/constraints/matcher.py.
#pragma once
#include <memory>
#include <vector>

#include "model.h"

namespace edgedec::lib {

class Constraint {
 public:
  virtual ~Constraint() = default;
  // Masks in `scores` [vocab] the tokens that may not follow the accepted tokens and then `path`.
  virtual void mask(const std::vector<int64_t>& path, float* scores) = 0;
  virtual void accept(int32_t token) = 0;
  // Whether the text is complete, so that only its end may follow.
  virtual bool done() = 0;
};

// Throws Failure: EDGEDEC_UNAVAILABLE in a build without llguidance, EDGEDEC_USAGE for unsupported constraints.
std::unique_ptr<Constraint> make_constraint(const Model& model, const char* kind, const char* text);

}  // namespace edgedec::lib
