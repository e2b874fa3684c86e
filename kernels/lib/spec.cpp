#include "spec.h"

#include <cmath>

#include "failure.h"

namespace edgedec::lib {

namespace {

constexpr int64_t LARGEST = 1 << 24, LANES = 16;
constexpr int CLAMPED_SWIGLU = 4;  // as in kernels.h
const char* const NORMS = "none rms layer";
const char* const ACTIVATIONS = "silu gelu_tanh gelu relu";

[[noreturn]] void corrupt(const std::string& why) { throw Failure(EDGEDEC_CORRUPT, why); }

int64_t size_of(Fields& f, const char* key, int64_t least = 1) {
  const int64_t value = f.integer(key);
  if (value < least || value > LARGEST) corrupt(f.path(key) + ": " + std::to_string(value) + " is out of range");
  return value;
}

int64_t size_of(Fields& f, const char* key, int64_t least, int64_t otherwise) {
  if (f.has(key)) return size_of(f, key, least);
  f.any(key);
  return otherwise;
}

// A number from 1 on, or null.
int64_t optional(Fields& f, const char* key, int64_t otherwise, int64_t none) {
  const Json* found = f.any(key);
  if (!found) return otherwise;
  return found->kind == Json::NIL ? none : to_integer(*found, f.path(key), EDGEDEC_CORRUPT);
}

// What the engine runs and this library does not read yet (edgedec/spec/newer.py): refused by its name.
void refuse_later(const Fields& f, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const Json* found = f.peek(key); found && found->kind != Json::NIL)
      throw Failure(EDGEDEC_UNAVAILABLE, f.path(key) + ": libedgedec does not run it; Python's engines native and reference do");
}

// The same of single values of a key.
void refuse_later(const Fields& f, const char* key, std::initializer_list<const char*> values) {
  const Json* found = f.peek(key);
  for (const char* value : values)
    if (found && found->kind == Json::STRING && found->text == value)
      throw Failure(EDGEDEC_UNAVAILABLE, f.path(key) + ": " + found->text + "; libedgedec does not run it, Python's engines native and reference do");
}

// An activation by its number.
int read_activation(Fields& f) {
  refuse_later(f, "activation", {"relu2", "xielu"});
  return f.choice("activation", ACTIVATIONS, 0);
}

void read_attention(Fields& f, BlockSpec& b) {
  b.heads = size_of(f, "n_heads"), b.kv_heads = size_of(f, "n_kv_heads"), b.head_dim = size_of(f, "head_dim");
  b.scale = f.number("scale");
  const Json* rope = f.any("rope");
  b.rope = !rope ? 0 : rope->kind == Json::NIL ? -1 : to_integer(*rope, f.path("rope"), EDGEDEC_CORRUPT);
  if (rope && rope->kind != Json::NIL && b.rope < 0) corrupt(f.path("rope") + ": no rope " + std::to_string(b.rope));
  b.window = optional(f, "window", 0, 0);
  const Json* window = f.any("window");
  if (window && window->kind != Json::NIL && (b.window < 1 || b.window > INT32_MAX))
    corrupt(f.path("window") + ": " + std::to_string(b.window) + " is out of range");
  b.sinks = size_of(f, "sinks", 0, 0);
  b.softcap = f.number("softcap", 0);
  b.qk_norm = f.choice("qk_norm", "none head full", 0);
  b.qkv_bias = f.boolean("qkv_bias", false), b.o_bias = f.boolean("o_bias", false);
  b.sink_logit = f.boolean("sink_logit", false);
  b.embedding_norm = f.choice("embedding_norm", NORMS, 0);
  b.gate = f.choice("gate", "none head channel", 0);
  if (b.heads % b.kv_heads) corrupt(f.where() + ": heads do not share kv heads evenly");
}

void read_mlp(Fields& f, BlockSpec& b) {
  b.inner = size_of(f, "inner_size");
  b.gated = f.boolean("gated", true);
  b.activation = read_activation(f);
  b.bias = f.boolean("bias", false);
}

void check_expert_groups(const Fields& f, const BlockSpec& b) {
  const int64_t size = b.experts / b.expert_groups;
  if (b.router != 2) corrupt(f.where() + ".groups: only a sigmoid router has them");
  if (b.experts % b.expert_groups || size < 2) corrupt(f.where() + ".groups: experts are not in groups of 2 or more");
  if (b.top_groups > b.expert_groups || b.top_k > b.top_groups * size)
    corrupt(f.where() + ".top_groups: do not give top_k experts");
}

void read_moe(Fields& f, BlockSpec& b) {
  refuse_later(f, {"gated", "jitter", "levels", "drop_below", "protect_from", "early_router"});
  b.experts = size_of(f, "n_experts"), b.top_k = size_of(f, "top_k"), b.inner = size_of(f, "inner_size");
  refuse_later(f, "router", {"given", "relu", "sparsemixer"});
  b.router = f.choice("router", "softmax softmax_topk sigmoid", 0);
  b.normalize = f.boolean("normalize", true);
  b.scale = f.number("scale", 1);
  b.router_bias = f.boolean("router_bias", false);
  b.expert_groups = size_of(f, "groups", 1, 1), b.top_groups = size_of(f, "top_groups", 1, 1);
  b.shared = size_of(f, "shared_size", 0, 0);
  b.shared_gate = f.boolean("shared_gate", false);
  b.activation = read_activation(f);
  b.bias = f.boolean("bias", false), b.logit_bias = f.boolean("logit_bias", false);
  b.clamped = f.boolean("clamped", false);
  if (b.clamped && b.activation) corrupt(f.where() + ".clamped: has an activation of its own");
  if (b.shared && (b.bias || b.clamped)) corrupt(f.where() + ".shared_size: beside experts that are clamped or have biases");
  if (b.clamped) b.activation = CLAMPED_SWIGLU;
  if (b.top_k > b.experts) corrupt(f.where() + ".top_k: more than there are experts");
  if (b.router_bias && b.router == 1) corrupt(f.where() + ".router_bias: a router of logits has none");
  if (b.expert_groups > 1 || b.top_groups > 1) check_expert_groups(f, b);
  if (b.shared_gate && !b.shared) corrupt(f.where() + ".shared_gate: there is no shared expert");
  if (2 * b.inner % LANES) corrupt(f.where() + ".inner_size: twice it is not a multiple of 16");
}

void read_ssm(Fields& f, BlockSpec& b) {
  b.heads = size_of(f, "n_heads"), b.head_dim = size_of(f, "head_dim"), b.state_size = size_of(f, "state_size");
  b.groups = size_of(f, "n_groups", 1, 1), b.conv_size = size_of(f, "conv_size", 1, 4);
  b.dt_min = f.number("dt_min", 0), b.dt_max = f.number("dt_max", 1e30);
  b.norm_groups = size_of(f, "norm_groups", 1, 1);
  b.bias = f.boolean("proj_bias", false);
  if (b.heads % b.groups || b.heads * b.head_dim % b.norm_groups) corrupt(f.where() + ": heads do not share groups evenly");
  if (!(0 <= b.dt_min && b.dt_min <= b.dt_max)) corrupt(f.where() + ".dt_min: no range");
}

void read_conv(Fields& f, BlockSpec& b) {
  b.inner = size_of(f, "inner_size"), b.conv_size = size_of(f, "conv_size", 1, 3);
  b.bias = f.boolean("bias", false);
}

void read_delta(Fields& f, BlockSpec& b) {
  b.heads = size_of(f, "n_heads"), b.head_dim = size_of(f, "head_dim"), b.state_size = size_of(f, "key_dim");
  b.groups = size_of(f, "n_groups"), b.conv_size = size_of(f, "conv_size", 1, 4), b.rank = size_of(f, "rank", 0, 0);
  b.decay = f.choice("decay", "head channel", 0);
  b.sigmoid = f.choice("gate", "silu sigmoid", 0) == 1;
  b.beta_scale = f.number("beta_scale", 1), b.eps = f.number("eps", 0);
  if (b.heads % b.groups) corrupt(f.where() + ": heads do not share groups evenly");
  if (!(b.beta_scale > 0) || !std::isfinite(b.beta_scale) || !(b.eps >= 0) || !std::isfinite(b.eps))
    corrupt(f.where() + ": beta_scale or eps is out of range");
}

BlockSpec read_block(const Json& value, const std::string& where) {
  Fields f(value, where, EDGEDEC_CORRUPT);
  BlockSpec b;
  refuse_later(f, "kind", {"altup", "channel_mix", "gmu", "latent", "laurel", "lookup", "power_law", "pre_router", "rwkv7", "s6", "shared_attention"});
  const int kind = f.choice("kind", "attention mlp moe ssm opaque conv delta");
  b.kind = kind < KIND_OPAQUE ? 1 + kind : KIND_CONV + kind - KIND_OPAQUE;
  if (b.kind == KIND_OPAQUE) {
    b.kv_heads = size_of(f, "n_kv_heads"), b.head_dim = size_of(f, "head_dim"), b.norm = 0;
    f.done();
    return b;
  }
  refuse_later(f, {"branch", "clip", "slopes", "inner_norm", "qk_norm_kind", "qk_norm_last", "differential", "sparsity",
                   "feeds", "with_embedding"});
  b.norm = f.choice("norm", NORMS, 1), b.post_norm = f.choice("post_norm", NORMS, 0);
  if (b.kind == KIND_ATTENTION) read_attention(f, b);
  if (b.kind == KIND_MLP) read_mlp(f, b);
  if (b.kind == KIND_MOE) read_moe(f, b);
  if (b.kind == KIND_SSM) read_ssm(f, b);
  if (b.kind == KIND_CONV) read_conv(f, b);
  if (b.kind == KIND_DELTA) read_delta(f, b);
  f.done();
  return b;
}

RopeSpec read_rope(const Json& value, const std::string& where) {
  Fields f(value, where, EDGEDEC_CORRUPT);
  const auto& list = to_list(f.need("inv_freq"), f.path("inv_freq"), EDGEDEC_CORRUPT);
  for (const Json& item : list) to_number(item, f.path("inv_freq"), EDGEDEC_CORRUPT);
  f.number("scale", 1);
  RopeSpec rope{(int64_t)list.size(), f.any("original") ? size_of(f, "original") : 0};
  size_t longer = 0;
  if (const Json* given = f.any("long_inv_freq")) {
    const auto& values = to_list(*given, f.path("long_inv_freq"), EDGEDEC_CORRUPT);
    for (const Json& item : values) to_number(item, f.path("long_inv_freq"), EDGEDEC_CORRUPT);
    longer = values.size();
  }
  f.done();
  if (list.empty()) corrupt(where + ": rotates nothing");
  if (longer != (rope.original ? list.size() : 0)) corrupt(where + ": long_inv_freq and original do not fit");
  return rope;
}

void check_ropes(ModelSpec& spec, const std::string& where) {
  for (const RopeSpec& rope : spec.ropes) {
    if (rope.original >= spec.context) corrupt(where + ".ropes: an original length is out of range");
    if (rope.original && spec.original && rope.original != spec.original) corrupt(where + ".ropes: original lengths differ");
    if (rope.original) spec.original = rope.original;
  }
  for (const BlockSpec& b : spec.blocks) {
    if (b.kind != KIND_ATTENTION || b.rope < 0) continue;
    if (b.rope >= (int64_t)spec.ropes.size()) corrupt(where + ": no rope " + std::to_string(b.rope));
    if (spec.original && b.sinks) corrupt(where + ".ropes: two sets of frequencies beside a window with sinks");
    if (2 * spec.ropes[b.rope].pairs > b.head_dim) corrupt(where + ": a rope rotates more than a head has");
  }
}

void add_norm(std::map<std::string, Shape>& out, const std::string& name, int norm, int64_t width) {
  if (norm) out[name] = {width};
  if (norm == 2) out[name + "_bias"] = {width};
}

void add_block(std::map<std::string, Shape>& out, const std::string& p, const BlockSpec& b, int64_t hidden) {
  add_norm(out, p + "norm", b.norm, hidden);
  add_norm(out, p + "post_norm", b.post_norm, hidden);
  if (b.kind == KIND_ATTENTION) {
    const int64_t q = b.heads * b.head_dim, kv = b.kv_heads * b.head_dim;
    const int64_t rows = q + 2 * kv + b.gate_rows();
    out[p + "qkv"] = {rows, b.embedding_norm ? 2 * hidden : hidden};
    out[p + "o"] = {hidden, q};
    add_norm(out, p + "embedding_norm", b.embedding_norm, hidden);
    if (b.qk_norm) out[p + "q_norm"] = {b.qk_norm == 1 ? b.head_dim : q};
    if (b.qk_norm) out[p + "k_norm"] = {b.qk_norm == 1 ? b.head_dim : kv};
    if (b.sink_logit) out[p + "sink_logit"] = {b.heads};
    if (b.qkv_bias) out[p + "qkv_bias"] = {rows};
    if (b.o_bias) out[p + "o_bias"] = {hidden};
  } else if (b.kind == KIND_MLP) {
    const int64_t rows = b.gated ? 2 * b.inner : b.inner;
    out[p + b.up()] = {rows, hidden};
    out[p + "down"] = {hidden, b.inner};
    if (b.bias) out[p + b.up() + "_bias"] = {rows}, out[p + "down_bias"] = {hidden};
  } else if (b.kind == KIND_MOE) {
    out[p + "router"] = {b.experts, hidden};
    out[p + "gate_up"] = {b.experts * 2 * b.inner, hidden};
    out[p + "down"] = {b.experts * hidden, b.inner};
    if (b.shared) out[p + "shared_gate_up"] = {2 * b.shared, hidden}, out[p + "shared_down"] = {hidden, b.shared};
    if (b.router_bias) out[p + "router_bias"] = {b.experts};
    if (b.logit_bias) out[p + "router_logit_bias"] = {b.experts};
    if (b.bias) out[p + "gate_up_bias"] = {b.experts * 2 * b.inner}, out[p + "down_bias"] = {b.experts * hidden};
    if (b.shared_gate) out[p + "shared_gate"] = {1, hidden};
  } else if (b.kind == KIND_SSM) {
    const int64_t inner = b.heads * b.head_dim, conv = inner + 2 * b.groups * b.state_size, in = inner + conv + b.heads;
    out[p + "in_proj"] = {in, hidden}, out[p + "out_proj"] = {hidden, inner};
    out[p + "conv"] = {conv, b.conv_size}, out[p + "conv_bias"] = {conv};
    out[p + "dt_bias"] = out[p + "a"] = out[p + "d"] = {b.heads};
    out[p + "gate_norm"] = {inner};
    if (b.bias) out[p + "in_proj_bias"] = {in}, out[p + "out_proj_bias"] = {hidden};
  } else if (b.kind == KIND_CONV) {
    out[p + "in_proj"] = {3 * b.inner, hidden}, out[p + "out_proj"] = {hidden, b.inner};
    out[p + "conv"] = {b.inner, b.conv_size};
    if (b.bias) out[p + "in_proj_bias"] = {3 * b.inner}, out[p + "conv_bias"] = {b.inner}, out[p + "out_proj_bias"] = {hidden};
  } else if (b.kind == KIND_DELTA) {
    const int64_t inner = b.heads * b.head_dim, conv = inner + 2 * b.groups * b.state_size, all = b.heads * b.decays();
    out[p + "in_proj"] = {conv + (b.rank ? b.rank : inner) + b.heads + (b.rank ? b.rank : all), hidden};
    out[p + "out_proj"] = {hidden, inner}, out[p + "conv"] = {conv, b.conv_size};
    out[p + "dt_bias"] = {all}, out[p + "a"] = {b.heads}, out[p + "gate_norm"] = {b.head_dim};
    if (b.rank) out[p + "gate_up"] = {inner, b.rank}, out[p + "decay_up"] = {all, b.rank};
  }
}

}  // namespace

ModelSpec read_spec(const Json& value, const std::string& where) {
  Fields f(value, where, EDGEDEC_CORRUPT);
  ModelSpec spec;
  spec.architecture = f.string("architecture");
  spec.vocab = size_of(f, "vocab_size"), spec.hidden = size_of(f, "hidden_size"), spec.context = size_of(f, "context_length");
  if (!f.peek("output")) refuse_later(f, {"entry", "head_bias", "head_layer"});
  for (const char* encoder : {"causal", "entry", "output"})
    if (f.any(encoder)) throw Failure(EDGEDEC_UNAVAILABLE, where + ": a text encoder; libedgedec generates texts, use `edgedec embed`");
  spec.norm_eps = f.number("norm_eps");
  spec.tied = f.boolean("tied");
  spec.final_norm = f.choice("final_norm", NORMS, 1);
  spec.final_softcap = f.number("final_softcap", 0), spec.embed_scale = f.number("embed_scale", 1);
  const auto& layers = to_list(f.need("layers"), f.path("layers"), EDGEDEC_CORRUPT);
  if (layers.empty()) corrupt(where + ".n_layers: 0 is out of range");
  spec.n_layers = (int64_t)layers.size();
  for (size_t i = 0; i < layers.size(); i++) {
    const std::string at = where + ".layers[" + std::to_string(i) + "]";
    const auto& blocks = to_list(layers[i], at, EDGEDEC_CORRUPT);
    if (blocks.empty()) corrupt(at + ": has no blocks");
    for (size_t j = 0; j < blocks.size(); j++) {
      spec.blocks.push_back(read_block(blocks[j], at + "[" + std::to_string(j) + "]"));
      if (spec.blocks.back().kind == KIND_MOE && spec.hidden % LANES) corrupt(where + ".hidden_size: not a multiple of 16");
      spec.opaque |= spec.blocks.back().kind == KIND_OPAQUE;
    }
  }
  if (const Json* ropes = f.any("ropes")) {
    const auto& list = to_list(*ropes, f.path("ropes"), EDGEDEC_CORRUPT);
    for (size_t i = 0; i < list.size(); i++)
      spec.ropes.push_back(read_rope(list[i], where + ".ropes[" + std::to_string(i) + "]"));
  }
  f.done();
  check_ropes(spec, where);
  if (spec.opaque)
    throw Failure(EDGEDEC_UNAVAILABLE, where + ": its layers are a graph of another program; only Python's engine graph runs it");
  return spec;
}

std::map<std::string, Shape> ModelSpec::tensors() const {
  std::map<std::string, Shape> out{{"embed", {vocab, hidden}}};
  for (size_t i = 0; i < blocks.size(); i++) add_block(out, "blocks." + std::to_string(i) + ".", blocks[i], hidden);
  add_norm(out, "final_norm", final_norm, hidden);
  if (!tied) out["head"] = {vocab, hidden};
  return out;
}

bool ModelSpec::is_matrix(const std::string& name) const {
  const std::string part = name.substr(name.rfind('.') + 1);
  for (const char* matrix : {"embed", "head", "qkv", "o", "gate_up", "up", "down", "shared_gate_up", "shared_down",
                             "in_proj", "out_proj", "decay_up"})
    if (part == matrix) return true;
  return false;
}

}  // namespace edgedec::lib
