// See simd/avx2.h.
#define ED_NS ed_avx2
#define ED_NAME "avx2"
#include "kernels.h"
#include "simd/avx2.h"

#include "unit.inl"

const edgedec::Kernels* edgedec::kernels_avx2() { return &ED_NS::TABLE; }
