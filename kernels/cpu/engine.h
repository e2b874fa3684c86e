// The stack of layers on the CPU: any blocks, any rows, of any number of sequences.
#pragma once
#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "api.h"
#include "kernels.h"
#include "pool.h"

namespace edgedec {

constexpr int HEAD_STRIP = 32;  // groups of the vocabulary between two looks for better ones

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

class Engine {
 public:
  Engine(const ed_model& model, int threads, const Kernels* kernels);
  int run(const ed_call& asked);
  const char* isa() const { return k_.name; }

 private:
  struct Best {
    float logit;
    int32_t id;
  };
  // Rows row0 to row1 of a sequence (counted from its first), one kv head, chunks chunk0 to chunk1.
  struct Item {
    int32_t sequence, kv_head, row0, row1, chunk0, chunk1;
    int64_t part;  // where its first partial sum stands, if chunks are summed apart
  };
  // `rows` rows from `row` on, of several sequences, begin with the same `chunks` chunks of one shared cache.
  // Their partial sums [kv_heads, chunks, rows] stand at `part`.
  struct Common {
    int32_t row, rows, chunks;
    int64_t part;
    size_t at(int head, int chunk, int r) const { return ((size_t)head * chunks + chunk) * rows + r; }
  };

  // engine.cpp
  int check(const ed_call& call) const;
  void prepare(const ed_call& call);
  void work(const ed_call& call);
  void mlp(const ed_call& call, int layer);
  void normed(const float* x, int rows, const float* weight, const Matrix& w);
  void ready(const float* x, int rows, const Matrix& w);
  void multiply(const Matrix& w, Product p);
  void residual(const ed_call& call, const Matrix& w, const float* x, const float* bias, const float* post_norm);
  Rows rows_for(const Matrix& w, const float* x) const;
  // Pieces of n equal small tasks: some for each thread, as who is late is helped, but not each by itself.
  int grain(int n) const { return std::max(1, n / (6 * team_.size())); }

  // attend.cpp
  void prepare_paths(const ed_call& call);
  size_t prepare_common(const ed_call& call);
  void prepare_items(const ed_call& call);
  void split_by_chunks();
  void attention(const ed_call& call, int layer);
  void rotate(const ed_call& call, int layer, int row, int kv_head);
  void attend(const ed_call& call, int layer);
  void attend_whole(const ed_call& call, const Attention& a, const Item& item, int layer, int thread);
  void add_up(const ed_call& call, int layer, const Item& item, int thread);
  void begin_sum(const ed_call& call, const Item& item, float* total) const;
  Attention view(const ed_call& call, int sequence, int layer) const;
  Attention view_of_all(const ed_call& call, int sequence, int layer) const;

  // head.cpp
  void head(const ed_call& call);
  void best_of(const ed_call& call, int row, const float* logits, int from, int count, int thread);
  void merge_best(const ed_call& call, int row);

  const ed_model m_;
  const std::vector<ed_layer> layers_;
  const std::vector<ed_rope> ropes_;
  const Kernels& k_;
  Team team_;
  std::mutex turn_;
  const int group_, kv_dim_, q_dim_;

  std::vector<int32_t> sequence_of_, path_, path_start_;
  std::vector<size_t> path_at_, start_at_;
  std::vector<Item> items_, sums_;  // what is attended; and, if by chunks, what is added up behind it
  std::vector<Item> together_;      // before that: the chunks that several sequences share
  std::vector<Common> commons_;
  std::vector<int> common_of_;  // of each sequence; -1: none
  size_t widest_ = 0, most_steps_ = 0;  // of all matrices: inputs, and steps that have a scale
  size_t attend_scratch_ = 0, weight_scratch_ = 0, scratch_stride_ = 0;
  bool by_chunk_ = false, windowed_ = false;
  int item_grain_ = 1;
  Buffer<float> hidden_, x_, qkv_, mixed_, both_, inner_, post_, scale_, parts_, totals_, strip_;
  Buffer<int8_t> q_;
  Buffer<int32_t> offset_;
  Buffer<uint8_t> scratch_;
  Buffer<Best> best_;
};

inline Matrix matrix(const ed_tensor& t) {
  return {t.format, t.layout, t.n, t.k, t.block, 0, (const uint8_t*)t.data, (const uint16_t*)t.scales};
}

}  // namespace edgedec
