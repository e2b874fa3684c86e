// Placeholder: this kind is not supported yet.
#include "blocks.h"

namespace edgedec {

const BlockKind SSM_BLOCK = {SSM, nullptr, nullptr};

}  // namespace edgedec
