// The stack of blocks on the CPU: any blocks, any rows, of any number of sequences. engine.cpp checks a call and runs
// the blocks one after another; what a block does stands in its own file and uses the services below.
#pragma once
#include <algorithm>
#include <atomic>
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
#include "sample.h"

namespace edgedec {

// The router of a mixture whose experts a pre-router chooses.
constexpr int GIVEN = 5;

// Growing memory, aligned to cache lines; its content is lost when it grows.
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

// The rows of a call that the head runs on, and the addresses of their outputs.
struct HeadRow {
  const float* hidden;
  float* logits;  // null: not wanted
  int32_t* ids;   // [top], if top
  float* scores;  // or null
  double* logsum;  // null: not wanted
  double* entropy;  // null: not wanted
  int top;
  double temperature;
  const ed_sequence* drawing;  // whose sampler draws from it; null: none
};

class Engine {
 public:
  Engine(const ed_model& model, int threads, const Kernels* kernels);
  ~Engine();
  int run(const ed_sequence* sequences, int n);
  // Frees working memory now, or at the end of the call that runs.
  void trim();

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
  // The grain for n equal small tasks: several pieces per thread, so that free threads help late ones, at
  // little overhead.
  int grain(int n) const { return std::max(1, n / (6 * pool_.size())); }
  // Scratch of a thread: at least Matrix::scratch() of all matrices(), and `bytes` of the last need_scratch().
  uint8_t* scratch(int thread) const { return scratch_.p + thread * scratch_stride_; }
  void need_scratch(size_t bytes);

  // norm(x) of one row.
  void norm_row(const ed_norm& norm, const float* x, float* y) const;
  // Rows x [rows, hidden] normed into normed() and made ready for products with `w`.
  QuantizedActivations norm(const ed_norm& norm, const float* x, int rows, const Matrix& w);
  const float* normed() const { return normed_.p; }  // [rows, hidden], after norm()
  // Rows x [rows, width] normed in place.
  void norm_wide(const ed_norm& norm, float* x, int rows, int width);
  // Rows x [rows, w.k] made ready for products with `w`. One set of quantized rows exists at a time: norm() and
  // quantize() replace what the one before made.
  QuantizedActivations quantize(const float* x, int rows, const Matrix& w);
  // All groups of product `p` (its rows made ready before), on all threads.
  void multiply(const Product& p);
  // out [rows, stride] = w . a + bias (null: none).
  void multiply(const Matrix& w, const QuantizedActivations& a, int rows, const float* bias, float* out,
                int64_t stride);
  // out [rows, w.n] = w . norm(call.input) + bias + adapter: the first matrix of a block.
  void project(const BlockCall& call, const ed_block& block, const Matrix& w, const float* bias, float* out);
  // call.hidden += post_norm(w . a + bias + adapter); `x` [rows, w.k]: the rows that `a` was made of.
  void residual(const BlockCall& call, const ed_block& block, const Matrix& w, const QuantizedActivations& a,
                const float* x, const float* bias);
  // call.hidden += post_norm(y), y [rows, hidden], which is overwritten.
  void add_residual(const BlockCall& call, const ed_block& block, float* y);
  // Whether a sequence of the call has an adapter for matrix `which` (0: first, 1: last) of its block.
  bool adapted(const BlockCall& call, int which) const;
  // y += scale * b (a x) for the rows of sequences with an adapter for this matrix, or with a set of adapters; x [rows, k],
  // y [rows, n].
  void adapt(const BlockCall& call, int which, const float* x, int k, float* y, int n);

 private:
  // A sequence of the call that has rows; in the order of the rows.
  struct Planned {
    const ed_sequence* asked;
    Cache* cache;
    int row, next, text_length;  // its first row; the next of its blocks; committed tokens
    const void* lead;            // sequences with the same one begin with the same page
    PendingRows pending;
    Tree tree;
    std::shared_ptr<const RowNames> names;
    bool runs(int block) const {
      return asked->n_blocks < 0 || (next < asked->n_blocks && asked->blocks[next] == block);
    }
  };
  struct Best {
    float logit;
    int32_t id;
  };
  // Of a strip of logits: the largest, and the sum of exp((logit - max) / temperature).
  struct StripSum {
    float max, sum;
    double weighted;  // of exp(logit - max) * (logit - max), if the entropy is wanted
  };

  int blocks_of(const ed_sequence& s) const { return s.n_blocks < 0 ? model_.n_blocks : s.n_blocks; }
  static int block_of(const ed_sequence& s, int i) { return s.n_blocks < 0 ? i : s.blocks[i]; }
  // Whose slots a block reads: another's, or its own.
  int slots_of(int block) const { return blocks_[block].kind == SHARED_ATTENTION ? blocks_[block].slots_of : block; }
  // The block whose slots or values a block reads; -1: it reads no other's.
  int owner_of(int block) const {
    const int slots = slots_of(block);
    const ed_block& b = blocks_[block];
    return slots != block ? slots : b.rwkv7 || b.gmu || given(block) ? b.values_of : -1;
  }
  // Whether it is a mixture whose experts a pre-router chooses.
  bool given(int block) const { return blocks_[block].moe && blocks_[block].moe->router == GIVEN; }
  BlockState* state_of(const Planned& s, int block) const { return s.cache ? s.cache->state(slots_of(block)) : nullptr; }
  const BlockState* owner_state(const Planned& s, int block) const {
    return s.cache && owner_of(block) >= 0 ? s.cache->state(owner_of(block)) : nullptr;
  }

  // check.cpp
  int check(const ed_sequence* sequences, int n) const;
  int check_sequence(const ed_sequence& s) const;
  int check_tree(const ed_sequence& s) const;
  int check_cache(const ed_sequence& s) const;
  bool reads(const ed_sequence& s, int owner, PendingRows rows) const;
  // adapters.cpp
  void add_low_rank(const ed_lora& lora, const float* x, int k, int rows, const float* weights, float* y, int n, int epilogue);
  void add_routed(const ed_route& route, const float* x, int k, int rows, float* y, int n);
  void add_taken(const ed_lora& lora, const float* x, int k, int rows, const float* weights, int stride, float* y, int n, int count);
  // engine.cpp
  int run_in_turn(const ed_sequence* sequences, int n);
  std::vector<std::unique_ptr<Block>> make_blocks();
  bool shares(int block) const;
  void release();
  void prepare(const ed_sequence* sequences, int n);
  void reserve(int rows);
  void begin(Planned& s, const ed_sequence& asked);
  void embed();
  void embed_row(const ed_sequence& s, int at, float* to) const;
  bool lookups() const { return model_.lookup.format != 0; }
  void norm_values(const ed_norm& norm, const float* x, int n, float* y) const;
  void run_block(int block);
  void read_ahead(int block);
  void keep_input();
  void point_input(int block);
  const float* kept_input();
  // Whether a block's router reads the state before the block before it.
  bool early(int block) const { return block < model_.n_blocks && blocks_[block].moe && blocks_[block].moe->early; }
  bool beside(int block) const { return block > 0 && blocks_[block - 1].branch; }
  bool fed(int block) const { return block > 0 && blocks_[block - 1].feeds; }
  void feed(int block);
  void norm_states(const ed_norm& norm);
  void keep_before(const ed_norm& norm);
  void norm_again(const ed_norm& norm);
  bool joined(int block) const;
  void begin_sum();
  void join(const ed_norm& norm);
  void scale_states(float by);
  void choose(int block);
  void gather();
  void scatter();
  // Whether rows after a block have streams beside the state.
  bool inside(int block) const { return enter_ <= block && block < leave_; }
  size_t beside_size() const { return (size_t)model_.streams * model_.hidden; }
  void keep_hidden(const Planned& s, int block, const float* from, const float* streams) const;
  QuantizedActivations activations(const Matrix& w, const float* x) const;
  template <class At>
  QuantizedActivations norm_rows(const ed_norm& norm, int rows, const Matrix& w, At at);
  QuantizedActivations norm_head(const Matrix& w);
  // head.cpp
  void head(const ed_sequence* sequences, int n);
  void head_of(const ed_sequence* sequences, int n, const ed_readout* readout);
  void head_rows(const ed_sequence* sequences, int n, const ed_readout* readout);
  void strips(const Product& p, bool made);
  bool only_draws() const;
  void draw_in_parts(const Product& p);
  void draw_apart();
  void draw(int from, int n);
  void take_best(int r, const float* logits, int from, int count, int thread);
  void merge_best(int r, const int32_t* ids);
  StripSum strip_sum(int r, const float* logits, int count) const;
  void merge_sums(int r);

  const ed_model model_;
  const std::vector<ed_block> blocks_;
  const std::vector<ed_rope> ropes_;
  const Kernels& kernels_;
  ThreadPool pool_;
  std::mutex turn_;
  std::atomic<bool> trim_{false};  // wanted, and not done yet
  const uint64_t shape_;  // of the caches
  bool paired_ = false;   // whether a block reads embeddings besides the state
  int enter_ = 0, leave_ = 0;  // the first and the last altup block
  std::unordered_map<std::type_index, std::shared_ptr<void>> shared_;
  std::vector<std::unique_ptr<Block>> made_;
  size_t widest_ = 0;  // of all matrices: bytes of a row made ready for them
  size_t weight_scratch_ = 0, scratch_stride_ = 0;

  // Of the call that runs.
  int rows_ = 0;
  int begun_ = 0;       // the last mixture whose experts began to be read before its turn
  int64_t active_ = 0;  // changes with the sequences that a block runs on
  std::vector<Planned> planned_;
  std::vector<int> running_, choice_;  // those that a block runs on, of planned_
  std::vector<int> gathered_;          // those whose rows lie in gather_ now
  BlockCall call_{};
  std::vector<HeadRow> head_rows_;
  int top_ = 0;           // of all head rows the most
  int draws_ = 0;         // head rows that a token is drawn from
  bool logsums_ = false;  // whether any logsum or entropy is requested

  Buffer<float> hidden_, input_, input_gather_, before_, fed_, dense_, gather_, embeddings_, embeddings_gather_, lookups_, lookups_gather_, streams_, streams_gather_, normed_, post_, strip_, drawn_;
  std::vector<DrawScratch> draws_of_;  // threads
  Buffer<Best> best_;      // [threads, head rows, top_]
  Buffer<StripSum> sums_;  // [head rows, strips]
  Buffer<int8_t> records_;
  Buffer<uint8_t> scratch_;
};

inline Matrix matrix(const ed_tensor& t) {
  return {t.format, t.layout, t.n, t.k, t.block, t.offsets, (const uint8_t*)t.data, (const uint16_t*)t.scales,
          (const uint8_t*)t.zeros};
}

}  // namespace edgedec
