// The table of one instruction set. Included by each unit_*.cpp behind its vectors.
#pragma once
#include "attention.inl"
#include "gemm.inl"
#include "ops.inl"
#include "probe.inl"
#include "units.h"

namespace ED_NS {

static const edgedec::Kernels TABLE = {ED_NAME, OFFSET8, norm,     quantize, product, embed,  rope,
                                       glu,     add,     most_of, store_kv, load_kv,  attend,  merge,  finish,
                                       mass,    probe_read, probe_int8};

}  // namespace ED_NS
