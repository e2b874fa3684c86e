// See simd/avx2.h.
#define ED_NS ed_avxvnni
#define ED_NAME "avxvnni"
#define ED_VNNI 1
#include "kernels.h"
#include "simd/avx2.h"

#include "unit.inl"

const edgedec::Kernels* edgedec::kernels_avxvnni() { return &ED_NS::TABLE; }
