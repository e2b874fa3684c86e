// The stack of blocks on the CPU: any blocks, any rows, of any number of sequences. engine.cpp checks a call and runs
// the blocks one after another; what a block does stands in its own file and uses the services below.
#pragma once
#include <algorithm>
#include <memory>
#include <mutex>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include "api.h"
#include "blocks.h"
#include "cache.h"
#include "kernels.h"
#include "pool.h"

namespace edgedec {

// Memory that grows, aligned to cache lines; what was in it is lost when it grows.
template <class T>
class Buffer {
 public:
  void need(size_t n) {
    if (n <= size_) return;
    p = nullptr, size_ = 0;
    memory_.reset();
    memory_.reset(new uint8_t[n * sizeof(T) + 64]);
    p = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory_.get()) + 63) & ~uintptr_t(63));
    size_ = n;
  }
  T* p = nullptr;

 private:
  std::unique_ptr<uint8_t[]> memory_;
  size_t size_ = 0;
};

struct BlockPlan;

class Engine {
 public:
  Engine(const ed_model& model, int threads, const Kernels* kernels);
  ~Engine();
  int run(const ed_sequence* sequences, int n);

  // ---- services for blocks ----
  const ed_model& model() const { return model_; }
  const ed_rope& rope(int i) const { return ropes_[i]; }
  const Kernels& kernels() const { return kernels_; }
  ThreadPool& pool() { return pool_; }
  int hidden() const { return model_.hidden; }
  // One T for all blocks of the engine, made at its first use: for working memory that blocks of a kind have in common.
  template <class T>
  T& shared() {
    std::shared_ptr<void>& made = shared_[std::type_index(typeid(T))];
    if (!made) made = std::make_shared<T>();
    return *static_cast<T*>(made.get());
  }
  // Pieces of n equal small tasks: some for each thread, as who is late is helped, but not each by itself.
  int grain(int n) const { return std::max(1, n / (6 * pool_.size())); }
  // Scratch of a thread: at least Matrix::scratch() of all matrices(), and `bytes` of the last need_scratch().
  uint8_t* scratch(int thread) const { return scratch_.p + thread * scratch_stride_; }
  void need_scratch(size_t bytes);

  // norm(x) of one row.
  void norm_row(const ed_norm& norm, const float* x, int n, float* y) const;
  // Rows x [rows, hidden] normed into normed() and made ready for products with `w`.
  QuantizedActivations norm(const ed_norm& norm, const float* x, int rows, const Matrix& w);
  const float* normed() const { return normed_.p; }  // [rows, hidden], after norm()
  // Rows x [rows, w.k] made ready for products with `w`. One set of quantized rows exists at a time: norm() and
  // quantize() replace what the one before made.
  QuantizedActivations quantize(const float* x, int rows, const Matrix& w);
  // All groups of product `p` (its rows made ready before), on all threads.
  void multiply(const Product& p);
  // call.hidden += post_norm(w . a + bias + adapter); `x` [rows, w.k]: the rows that `a` was made of.
  void residual(const BlockCall& call, const ed_block& block, const Matrix& w, const QuantizedActivations& a,
                const float* x, const float* bias);
  // call.hidden += post_norm(y), y [rows, hidden], which is overwritten.
  void add_residual(const BlockCall& call, const ed_block& block, float* y);
  // Whether a sequence of the call has an adapter for matrix `which` (0: first, 1: last) of its block.
  bool adapted(const BlockCall& call, int which) const;
  // y += scale * b (a x) for the rows whose sequence has an adapter there; x [rows, k], y [rows, n].
  void adapt(const BlockCall& call, int which, const float* x, int k, float* y, int n);

 private:
  friend class Head;
  const ed_model model_;
  const std::vector<ed_block> blocks_;
  const std::vector<ed_rope> ropes_;
  const Kernels& kernels_;
  ThreadPool pool_;
  std::mutex turn_;
  std::unordered_map<std::type_index, std::shared_ptr<void>> shared_;
  std::vector<std::unique_ptr<Block>> made_;
  size_t widest_ = 0, most_steps_ = 0;  // of all matrices: inputs, and steps that have a scale
  size_t weight_scratch_ = 0, scratch_stride_ = 0;
  Buffer<float> normed_, post_, scale_;
  Buffer<int8_t> q_;
  Buffer<int32_t> offset_;
  Buffer<uint8_t> scratch_;
};

inline Matrix matrix(const ed_tensor& t) {
  return {t.format, t.layout, t.n, t.k, t.block, 0, (const uint8_t*)t.data, (const uint16_t*)t.scales};
}

}  // namespace edgedec
