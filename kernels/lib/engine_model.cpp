// A bundle's blocks as the engine reads them: numbers and addresses in the weights.
#include "bundle.h"

namespace edgedec::lib {

EngineModel::EngineModel(const Bundle& bundle) : bundle_(bundle) {
  const ModelSpec& spec = bundle.manifest.spec;
  blocks_.resize(spec.blocks.size());
  for (size_t i = 0; i < blocks_.size(); i++) add(spec.blocks[i], "blocks." + std::to_string(i) + ".", blocks_[i]);
  for (size_t i = 0; i < spec.ropes.size(); i++) {
    const auto [cos, sin] = bundle.manifest.ropes[i];
    const uint8_t* base = bundle.weights->data;
    ropes_.push_back({(const float*)(base + cos), (const float*)(base + sin), (int32_t)spec.ropes[i].pairs,
                      (int32_t)spec.positions()});
  }
  model.vocab = (int32_t)spec.vocab, model.hidden = (int32_t)spec.hidden;
  model.n_blocks = (int32_t)blocks_.size(), model.n_ropes = (int32_t)ropes_.size();
  model.norm_eps = (float)spec.norm_eps, model.final_softcap = (float)spec.final_softcap;
  model.embed_scale = (float)spec.embed_scale;
  model.embed = tensor("embed"), model.head = tensor(spec.tied ? "embed" : "head");
  model.final_norm = norm(spec.final_norm, "final_norm");
  model.blocks = blocks_.data(), model.ropes = ropes_.data();
}

ed_tensor EngineModel::tensor(const std::string& name) const {
  const auto found = bundle_.manifest.tensors.find(name);
  if (found == bundle_.manifest.tensors.end()) return {};
  const Tensor& t = found->second;
  const uint8_t* base = bundle_.weights->data;
  const uint64_t zeros = t.zeros ? t.zeros : t.offsets ? t.offsets : t.parts;
  return {t.format, t.layout, (int32_t)t.shape[0], (int32_t)t.shape.back(), (int32_t)t.block, t.parts ? 2 : t.row_scales ? 3 : t.offsets != 0,
          base + t.data, t.block ? base + t.scales : nullptr, zeros ? base + zeros : nullptr};
}

const float* EngineModel::vector(const std::string& name) const {
  const auto found = bundle_.manifest.tensors.find(name);
  return found == bundle_.manifest.tensors.end() ? nullptr : (const float*)(bundle_.weights->data + found->second.data);
}

ed_norm EngineModel::norm(int kind, const std::string& name) const {
  return {kind, 0, vector(name), vector(name + "_bias")};
}

void EngineModel::add(const BlockSpec& s, const std::string& p, ed_block& block) {
  block = {};
  block.kind = s.kind;
  block.norm = norm(s.norm, p + "norm"), block.post_norm = norm(s.post_norm, p + "post_norm");
  const auto n = [](int64_t value) { return (int32_t)value; };
  if (s.kind == KIND_ATTENTION) {
    attention_.push_back(std::make_unique<ed_attention>(ed_attention{
        n(s.heads), n(s.kv_heads), n(s.head_dim), n(s.rope), n(s.window), n(s.sinks), s.qk_norm, 0, (float)s.scale,
        (float)s.softcap, tensor(p + "qkv"), tensor(p + "o"), vector(p + "qkv_bias"), vector(p + "o_bias"),
        vector(p + "q_norm"), vector(p + "k_norm"), norm(s.embedding_norm, p + "embedding_norm"), n(s.gate_rows()), 0, nullptr,
        vector(p + "sink_logit"), nullptr, nullptr, nullptr, {}, 0, 0, 0, 0, 0.0f, 0, nullptr, nullptr}));
    block.attention = attention_.back().get();
  } else if (s.kind == KIND_MLP) {
    mlp_.push_back(std::make_unique<ed_mlp>(ed_mlp{n(s.inner), s.gated, s.activation, 0, tensor(p + s.up()),
                                                   tensor(p + "down"), vector(p + s.up() + "_bias"),
                                                   vector(p + "down_bias"), {}, nullptr}));
    block.mlp = mlp_.back().get();
  } else if (s.kind == KIND_MOE) {
    moe_.push_back(std::make_unique<ed_moe>(ed_moe{
        n(s.experts), n(s.top_k), n(s.inner), s.activation, s.router, s.normalize, n(s.shared), n(s.expert_groups),
        (float)s.scale, n(s.top_groups), 0, 0.0f,
        tensor(p + "router"), tensor(p + "gate_up"), tensor(p + "down"), tensor(p + "shared_gate_up"),
        tensor(p + "shared_down"), tensor(p + "shared_gate"), vector(p + "router_bias"),
        vector(p + "router_logit_bias"), vector(p + "gate_up_bias"), vector(p + "down_bias"), nullptr, nullptr,
        nullptr, nullptr, {}, {}, 0.0f, 0.0f}));
    block.moe = moe_.back().get();
  } else if (s.kind == KIND_CONV) {
    conv_.push_back(std::make_unique<ed_conv>(ed_conv{
        n(s.inner), n(s.conv_size), tensor(p + "in_proj"), tensor(p + "out_proj"), vector(p + "in_proj_bias"),
        vector(p + "out_proj_bias"), vector(p + "conv"), vector(p + "conv_bias")}));
    block.conv = conv_.back().get();
  } else if (s.kind == KIND_DELTA) {
    delta_.push_back(std::make_unique<ed_delta>(ed_delta{
        n(s.heads), n(s.head_dim), n(s.state_size), n(s.groups), n(s.conv_size), n(s.decays()), n(s.rank), s.sigmoid,
        (float)s.beta_scale, (float)s.eps, tensor(p + "in_proj"), tensor(p + "out_proj"), tensor(p + "gate_up"),
        tensor(p + "decay_up"), vector(p + "conv"), vector(p + "dt_bias"), vector(p + "a"), vector(p + "gate_norm")}));
    block.delta = delta_.back().get();
  } else {
    ssm_.push_back(std::make_unique<ed_ssm>(ed_ssm{
        n(s.heads), n(s.head_dim), n(s.state_size), n(s.groups), n(s.conv_size), n(s.norm_groups), (float)s.dt_min,
        (float)s.dt_max, tensor(p + "in_proj"), tensor(p + "out_proj"), vector(p + "in_proj_bias"),
        vector(p + "out_proj_bias"), vector(p + "conv"), vector(p + "conv_bias"), vector(p + "dt_bias"), vector(p + "a"),
        vector(p + "d"), vector(p + "gate_norm")}));
    block.ssm = ssm_.back().get();
  }
}

}  // namespace edgedec::lib
