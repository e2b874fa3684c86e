// See simd/neon.h.
#define ED_NS ed_dotprod
#define ED_NAME "dotprod"
#include "kernels.h"
#include "simd/neon.h"

#include "unit.inl"

const edgedec::Kernels* edgedec::kernels_dotprod() { return &ED_NS::TABLE; }
