// What a text must be: a JSON schema, a regular expression, a Lark grammar. By llguidance's C library, in builds with it
// (EDGEDEC_LLGUIDANCE); in others there is no constraint to be had. As edgedec/constraints/matcher.py.
#pragma once
#include <memory>
#include <vector>

#include "model.h"

namespace edgedec::lib {

class Constraint {
 public:
  virtual ~Constraint() = default;
  // Forbids in `scores` [vocab] what may not follow the accepted tokens and then `path`.
  virtual void mask(const std::vector<int64_t>& path, float* scores) = 0;
  virtual void accept(int32_t token) = 0;
  // Is the text complete, so that nothing but its end may follow?
  virtual bool done() = 0;
};

// Throws Failure: EDGEDEC_UNAVAILABLE in a build without llguidance, EDGEDEC_USAGE for what it cannot follow.
std::unique_ptr<Constraint> make_constraint(const Model& model, const char* kind, const char* text);

}  // namespace edgedec::lib
