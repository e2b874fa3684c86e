// The table of block kinds.
#include "blocks.h"

namespace edgedec {

const BlockKind* block_kind(int32_t kind) {
  for (const BlockKind* known :
       {&ATTENTION_BLOCK, &MLP_BLOCK, &MOE_BLOCK, &SSM_BLOCK, &POWER_LAW_BLOCK,
                                 &LATENT_BLOCK, &S6_BLOCK, &CONV_BLOCK, &DELTA_BLOCK, &SHARED_ATTENTION_BLOCK, &LOOKUP_BLOCK, &RWKV7_BLOCK, &CHANNEL_MIX_BLOCK, &GMU_BLOCK, &ALTUP_BLOCK, &LAUREL_BLOCK, &PRE_ROUTER_BLOCK})
    if (known->kind == kind && known->make) return known;
  return nullptr;
}

}  // namespace edgedec
