#pragma once
#include "blocks.h"

namespace edgedec {

// What each computed row of a sequence sees of its tree.
void build_tree(const ed_sequence& s, Tree& tree);

}  // namespace edgedec
