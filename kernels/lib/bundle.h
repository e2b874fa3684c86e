// A bundle whose manifest has been read and checked, as edgedec/bundle does in Python, and the engine's view of it.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../cpu/api.h"
#include "container.h"
#include "edgedec.h"
#include "spec.h"

namespace edgedec::lib {

struct Tensor {
  int format = 0, layout = 0;  // as in kernels.h
  Shape shape;
  uint64_t data = 0, scales = 0, zeros = 0, offsets = 0, parts = 0;
  int64_t block = 0;
  bool row_scales = false;
};

struct FileFacts {
  uint64_t size = 0;
  std::string sha256;
};

struct TextFacts {
  std::string tokenizer;  // "": none
  int32_t bos = -1;
  std::vector<int32_t> eos;
  std::string bos_token, eos_token, chat_template;
  std::map<std::string, double> sampling;
};

struct Manifest {
  std::string name, weights, origin;
  ModelSpec spec;
  std::map<std::string, Tensor> tensors;
  std::vector<std::pair<uint64_t, uint64_t>> ropes;
  std::vector<int> kv_formats;  // as in kernels.h
  TextFacts text;
  std::map<std::string, FileFacts> files;
};

class Bundle {
 public:
  explicit Bundle(std::unique_ptr<Container> from);
  // Checks every hash.
  void verify(edgedec_progress progress, void* user) const;
  const Container& container() const { return *container_; }
  // The content of a file, which must have its hash.
  SharedBytes file(const std::string& name) const;
  // The model's identity: a hash of the manifest as exported, without later additions to the bundle.
  const std::string& origin() const { return manifest.origin.empty() ? digest : manifest.origin; }

  Manifest manifest;
  std::string digest;  // of the manifest
  SharedBytes weights;

 private:
  const std::unique_ptr<Container> container_;
};

// A bundle as the engine reads it. The bundle must outlive it.
class EngineModel {
 public:
  explicit EngineModel(const Bundle& bundle);
  EngineModel(const EngineModel&) = delete;
  ed_model model{};

 private:
  ed_tensor tensor(const std::string& name) const;
  const float* vector(const std::string& name) const;
  ed_norm norm(int kind, const std::string& name) const;
  void add(const BlockSpec& spec, const std::string& prefix, ed_block& block);

  const Bundle& bundle_;
  std::vector<ed_block> blocks_;
  std::vector<ed_rope> ropes_;
  std::vector<std::unique_ptr<ed_attention>> attention_;
  std::vector<std::unique_ptr<ed_mlp>> mlp_;
  std::vector<std::unique_ptr<ed_moe>> moe_;
  std::vector<std::unique_ptr<ed_ssm>> ssm_;
  std::vector<std::unique_ptr<ed_conv>> conv_;
  std::vector<std::unique_ptr<ed_delta>> delta_;
};

constexpr const char* KV_FORMATS = "f32 f16 int8 int4";
constexpr const char* WEIGHT_FORMATS = "f32 f16 int8 int4 int3 int2 int5 int6 nl4 uint2 mx4";
// 1 to 4, as in kernels.h; 0: none of them.
int kv_format(const std::string& name);

}  // namespace edgedec::lib
