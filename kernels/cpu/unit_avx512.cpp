// See simd/avx512.h.
#define ED_NS ed_avx512
#define ED_NAME "avx512vnni"
#include "kernels.h"
#include "simd/avx512.h"

#include "unit.inl"

#ifdef ED_AMX
#include "amx.inl"

const edgedec::Kernels* edgedec::kernels_amx() { return ED_NS::amx_table(); }
#endif

const edgedec::Kernels* edgedec::kernels_avx512() { return &ED_NS::TABLE; }
