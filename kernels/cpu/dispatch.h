#pragma once
#include "kernels.h"

namespace edgedec {

// The best instruction set that runs here, or the one named; null if that one does not.
const Kernels* choose(const char* name = nullptr);

}  // namespace edgedec
