#include "adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "failure.h"

namespace edgedec::lib {

namespace {

// Which of the matrices of a block that an adapter may change this is; -1: none.
int part_of(const BlockSpec& block, const std::string& name) {
  switch (block.kind) {
    case KIND_ATTENTION: return name == "qkv" ? 0 : name == "o" ? 1 : -1;
    case KIND_MLP: return name == block.up() ? 0 : name == "down" ? 1 : -1;
    case KIND_SSM: return name == "in_proj" ? 0 : name == "out_proj" ? 1 : -1;
    case KIND_CONV: return name == "in_proj" ? 0 : name == "out_proj" ? 1 : -1;
    case KIND_DELTA: return name == "in_proj" ? 0 : name == "out_proj" ? 1 : name == "gate_up" ? 2 : name == "decay_up" ? 3 : -1;
    default: return -1;
  }
}

}  // namespace

Adapter::Adapter(std::shared_ptr<Model> model, const std::string& path)
    : model_(std::move(model)), file_(read_arrays(path, "EDGELORA", "an adapter file", EDGEDEC_USAGE)) {
  Fields header(file_.header, path, EDGEDEC_USAGE);
  if (header.integer("version") != 1)
    throw Failure(EDGEDEC_VERSION, path + ": another adapter version; make it again with `edgedec adapter`");
  const std::string architecture = header.string("architecture");
  if (architecture != model_->spec().architecture)
    throw Failure(EDGEDEC_USAGE, path + ": an adapter for '" + architecture + "', not for '" + model_->spec().architecture + "'");
  parts_.assign(ED_LORA_PARTS * model_->spec().blocks.size(), ed_lora{});
  for (const auto& [name, array] : file_.arrays) {
    const size_t dot = name.rfind('.');
    const std::string part = dot == std::string::npos ? "" : name.substr(dot + 1), matrix = name.substr(0, dot);
    const bool gates = part == "gates" || part == "parts";  // of sets of adapters, which are not used here
    if ((part != "a" && part != "b" && !gates) || !file_.arrays.count(matrix + (part == "a" ? ".b" : ".a")))
      throw Failure(EDGEDEC_USAGE, path + ": " + name.substr(0, 60) + " is no part of a matrix; make the adapter again");
    if (part == "a") add(path, matrix);
  }
  adapter_.parts = parts_.data();
}

void Adapter::add(const std::string& path, const std::string& name) {
  const ModelSpec& spec = model_->spec();
  const auto tensors = spec.tensors();
  const auto shape = tensors.find(name);
  int which = -1;
  size_t block = 0;
  if (name.rfind("blocks.", 0) == 0 && shape != tensors.end()) {
    block = (size_t)std::stoul(name.substr(7));
    which = part_of(spec.blocks[block], name.substr(name.rfind('.') + 1));
  }
  if (which < 0)
    throw Failure(EDGEDEC_USAGE, path + ": " + name.substr(0, 60) + " is no matrix of this model that an adapter may change");
  const SavedArray &a = file_.arrays.at(name + ".a"), &b = file_.arrays.at(name + ".b");
  const bool fits = a.shape.size() == 2 && b.shape.size() == 2 && b.shape[0] == shape->second[0] &&
                    a.shape[1] == shape->second[1] && b.shape[1] == a.shape[0] && a.shape[0] > 0 &&
                    a.shape[0] <= 8 * std::max(b.shape[0], a.shape[1]) && a.type == "float32" && b.type == "float32";
  if (!fits) throw Failure(EDGEDEC_USAGE, path + ": " + name + " does not fit this model; make the adapter again for this bundle");
  const auto floats = [&](const SavedArray& array) {
    auto made = std::make_unique<std::vector<float>>(array.bytes / 4);
    if (array.bytes) std::memcpy(made->data(), array.data, array.bytes);
    for (const float x : *made)
      if (!std::isfinite(x)) throw Failure(EDGEDEC_USAGE, path + ": " + name + " is not finite; make the adapter again");
    copies_.push_back(std::move(made));
    return (const float*)copies_.back()->data();
  };
  const float *low = floats(a), *up = floats(b);
  parts_[ED_LORA_PARTS * block + (size_t)which] = {(int32_t)a.shape[0], 1.0f, low, up, nullptr};
}

}  // namespace edgedec::lib
