// Placeholder: this kind is not supported yet.
#include "blocks.h"

namespace edgedec {

const BlockKind MOE_BLOCK = {MOE, nullptr, nullptr};

}  // namespace edgedec
