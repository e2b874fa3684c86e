// All instruction sets, best first for each machine.
#pragma once
#include "kernels.h"

// Whether the unit of AVX-512 has AMX's products as well: compilers know its tiles since 2021, Linux gives them on request.
#if defined(ED_HAVE_AVX512) && defined(__linux__) && defined(__x86_64__) && !defined(__ANDROID__)
#if __has_include(<amxint8intrin.h>)
#define ED_AMX 1
#endif
#endif

namespace edgedec {

const Kernels* kernels_scalar();
const Kernels* kernels_avx2();
const Kernels* kernels_avxvnni();
const Kernels* kernels_avx512();
const Kernels* kernels_amx();
const Kernels* kernels_dotprod();
const Kernels* kernels_i8mm();
const Kernels* kernels_wasm();
const Kernels* kernels_relaxed();
bool relaxed_is_exact();

}  // namespace edgedec
