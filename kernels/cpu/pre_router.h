// The products around a pre-router's attention (edgedec/spec/pre_router.py): its stream begins with the tokens' rows of
// the model's `lookup`, and ends with a choice of one expert a row, which the block's state keeps for the mixtures.
#pragma once
#include "attention_state.h"
#include "engine.h"

namespace edgedec {

class PreRouter {
 public:
  PreRouter(Engine& engine, const ed_block& block);

  std::vector<Matrix> matrices() const { return {o_, up_, down_, router_}; }
  void reserve(int rows);
  // The normed rows of the call's tokens, made ready for `qkv`.
  QuantizedActivations enter(const BlockCall& call, const Matrix& qkv);
  // Gives the states of the call's sequences the experts of its rows; `attended` [rows, size].
  void choose(const BlockCall& call, const float* attended);

 private:
  struct Scratch {
    Buffer<float> stream, normed, inner, logits;
  };

  const float* token(const BlockCall& call, size_t row) const;
  void norm(const float* weight, int rows);
  template <class Do>
  void each(int rows, Do work);

  Engine& engine_;
  const ed_block block_;
  const ed_pre_router m_;
  Scratch& s_;
  const Matrix o_, up_, down_, router_;
  const int size_;
};

}  // namespace edgedec
