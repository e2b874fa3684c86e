// The table of one instruction set. Included by each unit_*.cpp after its vectors.
#pragma once
#include "attention.inl"
#include "bounds.inl"
#include "delta.inl"
#include "gemm.inl"
#include "moe.inl"
#include "ops.inl"
#include "probe.inl"
#include "rwkv7.inl"
#include "ssm.inl"
#include "units.h"

namespace ED_NS {

static const edgedec::Kernels TABLE = {ED_NAME, stands_for_zero, norm,    layer_norm, quantize, product, embed,
                                       rope,    glu,        activate, add,      reduce_max, sum_exp, store_kv,
                                       load_kv, attend,     merge,   finish,     attention_sums, probe_read, probe_int8,
                                       exp_shifted, sigmoid, scale_add,  conv,    ssm_dt,   ssm_step,
                                       softplus, s6_step,
                                       delta_steps, rwkv7_step, scores,  bounds,     page_scores, maxima, at_least};

}  // namespace ED_NS
