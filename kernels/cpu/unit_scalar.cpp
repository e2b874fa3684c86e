// See simd/scalar.h.
#define ED_NS ed_scalar
#define ED_NAME "scalar"
#include "kernels.h"
#include "simd/scalar.h"

#include "unit.inl"

const edgedec::Kernels* edgedec::kernels_scalar() { return &ED_NS::TABLE; }
