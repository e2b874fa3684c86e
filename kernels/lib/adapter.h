// A LoRA adapter: low-rank weights added to matrices of a model (edgedec/bundle/adapter.py).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "arrays.h"
#include "model.h"

namespace edgedec::lib {

class Adapter {
 public:
  Adapter(std::shared_ptr<Model> model, const std::string& path);
  const Model& model() const { return *model_; }
  const ed_adapter* engine() const { return &adapter_; }
  const std::string& digest() const { return file_.digest; }

 private:
  void add(const std::string& path, const std::string& name);

  const std::shared_ptr<Model> model_;
  ArrayFile file_;
  std::vector<ed_lora> parts_;
  std::vector<std::unique_ptr<std::vector<float>>> copies_;  // of arrays that are not aligned in the file
  ed_adapter adapter_{};
};

}  // namespace edgedec::lib
