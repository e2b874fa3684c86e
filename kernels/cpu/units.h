// All instruction sets, best first for each machine.
#pragma once
#include "kernels.h"

namespace edgedec {

const Kernels* kernels_scalar();
const Kernels* kernels_avx2();
const Kernels* kernels_avxvnni();
const Kernels* kernels_avx512();
const Kernels* kernels_dotprod();
const Kernels* kernels_i8mm();
const Kernels* kernels_wasm();
const Kernels* kernels_relaxed();
bool relaxed_is_exact();

}  // namespace edgedec
