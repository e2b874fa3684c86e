#pragma once
#include "blocks.h"

namespace edgedec {

// What each computed row of a sequence sees of its tree. texts: of an encoder.
void build_tree(const ed_sequence& s, bool texts, Tree& tree);

}  // namespace edgedec
