// What a model computes: the `spec` of a manifest (edgedec/spec in Python), and the weights that follow from it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "json.h"

namespace edgedec::lib {

// As in api.h and kernels.h of the engine.
enum BlockKindNumber { KIND_ATTENTION = 1, KIND_MLP = 2, KIND_MOE = 3, KIND_SSM = 4, KIND_OPAQUE = 5, KIND_CONV = 10, KIND_DELTA = 11 };

struct BlockSpec {
  int kind = 0;
  int norm = 1, post_norm = 0;  // 0 none, 1 rms, 2 layer
  // attention
  int64_t heads = 0, kv_heads = 0, head_dim = 0, rope = 0, window = 0, sinks = 0;  // rope -1: none; window 0: none
  double scale = 1, softcap = 0;
  int qk_norm = 0;  // 0 none, 1 head, 2 full
  bool qkv_bias = false, o_bias = false, sink_logit = false;
  int embedding_norm = 0;
  int gate = 0;  // 0 none, 1 head, 2 channel
  // mlp, moe
  int64_t inner = 0, experts = 0, top_k = 0, shared = 0, expert_groups = 1, top_groups = 1;
  bool gated = true, bias = false, normalize = true, router_bias = false, shared_gate = false;
  bool logit_bias = false, clamped = false;
  int activation = 0, router = 0;
  // ssm
  int64_t state_size = 0, groups = 1, conv_size = 4, norm_groups = 1;
  double dt_min = 0, dt_max = 1e30;
  // delta: state_size is key_dim; decay 0: a head, 1: a channel
  int64_t rank = 0;
  int decay = 0;
  bool sigmoid = false;
  double beta_scale = 1, eps = 0;

  int64_t gate_rows() const { return gate == 0 ? 0 : gate == 1 ? heads : heads * head_dim; }
  int64_t decays() const { return decay ? state_size : 1; }
  const char* up() const { return gated ? "gate_up" : "up"; }
};

struct RopeSpec {
  int64_t pairs = 0, original = 0;  // original: texts of more tokens have a second set of frequencies; 0: there is one
};

using Shape = std::vector<int64_t>;

struct ModelSpec {
  std::string architecture;
  int64_t vocab = 0, hidden = 0, context = 0, n_layers = 0;
  double norm_eps = 0, final_softcap = 0, embed_scale = 1;
  bool tied = false, opaque = false;
  int final_norm = 1;
  std::vector<BlockSpec> blocks;
  std::vector<RopeSpec> ropes;
  int64_t original = 0;  // of the ropes

  // Of the ropes' tables: a short text's, then a long text's from its first token on (edgedec/spec/rope.py).
  int64_t positions() const { return original + context; }

  // Every weight by its name, with its shape.
  std::map<std::string, Shape> tensors() const;
  // Whether a weight may be quantized.
  bool is_matrix(const std::string& name) const;
};

// Fails with EDGEDEC_CORRUPT for what no model can have.
ModelSpec read_spec(const Json& value, const std::string& where);

}  // namespace edgedec::lib
