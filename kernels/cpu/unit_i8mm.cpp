// See simd/neon.h.
#define ED_NS ed_i8mm
#define ED_NAME "i8mm"
#define ED_I8MM 1
#include "kernels.h"
#include "simd/neon.h"

#include "unit.inl"

const edgedec::Kernels* edgedec::kernels_i8mm() { return &ED_NS::TABLE; }
