#pragma once
#include "edgedec.h"
#include "input.h"

namespace fuzz {

// Encodes, decodes, computes a little on a model of any kind.
void converse(edgedec_model* model);
// Calls in any order with any arguments; how many of them did something. Sessions are saved to `file`.
int call_anything(edgedec_model* model, Input& input, const std::string& file);

}  // namespace fuzz
