// WebAssembly with 128-bit vectors; see simd/wasm.h.
#define ED_NS ed_wasm
#define ED_NAME "wasm"
#include "kernels.h"
#include "simd/wasm.h"

#include "unit.inl"

const edgedec::Kernels* edgedec::kernels_wasm() { return &ED_NS::TABLE; }
