#include "engine.h"

#include <algorithm>
#include <new>

namespace edgedec {

namespace {

constexpr int MAX_ROWS = 1 << 20;
constexpr int MAX_TREE = 1 << 13;  // a row's path is kept, so a tree may cost its size squared

std::vector<Matrix> matrices(const ed_model& m, const std::vector<ed_layer>& layers) {
  std::vector<Matrix> all{matrix(m.embed), matrix(m.head)};
  for (const ed_layer& l : layers)
    for (const ed_tensor* t : {&l.qkv, &l.o, &l.gate_up, &l.down}) all.push_back(matrix(*t));
  return all;
}

}  // namespace

Engine::Engine(const ed_model& model, int threads, const Kernels* kernels)
    : m_(model),
      layers_(model.layers, model.layers + model.n_layers),
      ropes_(model.ropes, model.ropes + model.n_ropes),
      k_(*kernels),
      team_(threads),
      group_(model.heads / model.kv_heads),
      kv_dim_(model.kv_heads * model.head_dim),
      q_dim_(model.heads * model.head_dim) {
  for (const Matrix& w : matrices(m_, layers_)) {
    weight_scratch_ = std::max(weight_scratch_, w.scratch());
    widest_ = std::max(widest_, (size_t)w.kpad());
    if (w.quantized()) most_steps_ = std::max(most_steps_, (size_t)w.steps());
  }
  for (const ed_layer& l : layers_) windowed_ |= l.window > 0;
}

int Engine::run(const ed_call& asked) {
  std::lock_guard<std::mutex> lock(turn_);
  if (int wrong = check(asked)) return wrong;
  if (asked.rows == 0) return 0;
  ed_call call = asked;
  try {
    prepare(call);
    if (!call.hidden) call.hidden = hidden_.p;
    work(call);
  } catch (const std::bad_alloc&) {
    return -1;
  }
  return 0;
}

// 1: rows, 2: a token, 3: a position, 4: a block, 5: a sequence's rows, 6: its slots, 7: a parent,
// 8: a cache.
int Engine::check(const ed_call& call) const {
  if (call.rows < 0 || call.rows > MAX_ROWS || call.head_from > call.rows || call.top < 0) return 1;
  if (call.rows && !call.tokens && !call.hidden) return 1;
  for (int r = 0; call.tokens && r < call.rows; r++)
    if (call.tokens[r] < 0 || call.tokens[r] >= m_.vocab) return 2;
  for (int i = 0; i < call.n_blocks; i++)
    if (call.blocks[i] < 0 || call.blocks[i] >= 2 * m_.n_layers) return 4;
  if (call.n_blocks == 0) return 0;
  for (int r = 0; r < call.rows; r++)
    for (const ed_rope& rope : ropes_)
      if (call.positions[r] < 0 || call.positions[r] >= rope.positions) return 3;
  int next = 0;
  for (int i = 0; i < call.n_sequences; i++) {
    const ed_sequence& s = call.sequences[i];
    if (s.row != next || s.rows < 0 || s.rows > call.rows - next) return 5;
    if (!kv_row_bytes(m_.head_dim, s.kv) || (s.rows && !s.cache) || (s.shared && !s.shared_cache)) return 8;
    next += s.rows;
    if (s.shared < 0 || s.shared > s.length || s.shared > s.shared_allocated) return 6;
    if (s.first < 0 || (int64_t)s.length - s.shared + s.first + s.rows > s.allocated) return 6;
    if (s.parents && s.first + s.rows > MAX_TREE) return 1;
    for (int r = 0; s.parents && r < s.first + s.rows; r++)
      if (s.parents[r] < -1 || s.parents[r] >= r) return 7;
  }
  return next == call.rows ? 0 : 5;
}

void Engine::prepare(const ed_call& call) {
  const size_t rows = call.rows;
  x_.need(rows * m_.hidden);
  if (!call.hidden) hidden_.need(rows * m_.hidden);
  q_.need(rows * widest_);
  scale_.need(rows * most_steps_);
  offset_.need(rows * most_steps_);
  post_.need(rows * m_.hidden);
  if (call.n_blocks) {
    qkv_.need(rows * (q_dim_ + 2 * kv_dim_));
    mixed_.need(rows * q_dim_);
    both_.need(m_.intermediate % LANES ? rows * 2 * m_.intermediate : 0);
    inner_.need(rows * m_.intermediate);
    prepare_paths(call);
    prepare_items(call);
  }
  if (call.head_from >= 0 && call.top) {
    size_t each = (size_t)(call.rows - call.head_from) * team_.size();
    best_.need(each * call.top);
    strip_.need(each * HEAD_STRIP * LANES);
  }
  scratch_stride_ = (std::max(weight_scratch_, attend_scratch_) + 127) / 64 * 64;
  scratch_.need(scratch_stride_ * team_.size());
}

void Engine::work(const ed_call& call) {
  if (call.tokens)
    team_.share(call.rows, 1, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++)
        k_.embed(matrix(m_.embed), (int)call.tokens[r], m_.embed_scale, call.hidden + (size_t)r * m_.hidden);
    });
  for (int i = 0; i < call.n_blocks; i++) {
    int layer = call.blocks[i] / 2;
    call.blocks[i] % 2 ? mlp(call, layer) : attention(call, layer);
  }
  if (call.head_from >= 0 && call.head_from < call.rows) head(call);
}

Rows Engine::rows_for(const Matrix& w, const float* x) const {
  return {q_.p, scale_.p, offset_.p, x, w.kpad(), w.quantized() ? w.steps() : 0};
}

// Rows of the hidden state made ready for `w`, normed if there is a weight.
void Engine::normed(const float* x, int rows, const float* weight, const Matrix& w) {
  Rows a = rows_for(w, x_.p);
  team_.share(rows, grain(rows), [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      const float* from = x + (size_t)r * m_.hidden;
      float* to = x_.p + (size_t)r * m_.hidden;
      if (weight) k_.norm(from, weight, m_.hidden, m_.norm_eps, to);
      else std::copy(from, from + m_.hidden, to);
      if (w.quantized()) k_.quantize(to, w.k, w.format, w.step(), a, r, 0, a.steps);
    }
  });
}

// Rows x [rows, w.k] made ready for `w`.
void Engine::ready(const float* x, int rows, const Matrix& w) {
  if (!w.quantized()) return;
  Rows a = rows_for(w, x);
  // Few rows are cut, so that all threads have some.
  int cuts = rows < 2 * team_.size() ? std::min(a.steps, 2 * team_.size()) : 1;
  team_.share(rows * cuts, grain(rows * cuts), [&](int begin, int end, int) {
    for (int i = begin; i < end; i++) {
      int r = i / cuts, part = i % cuts;
      k_.quantize(x + (size_t)r * w.k, w.k, w.format, w.step(), a, r, a.steps * part / cuts, a.steps * (part + 1) / cuts);
    }
  });
}

// All groups of a product, a few at a time.
void Engine::multiply(const Matrix& w, Product p) {
  p.w = w;
  int groups = p.epilogue == GLU ? w.groups() / 2 : w.groups();
  int most = p.rows < 16 ? 32 : 8;
  int grain = std::max(2, std::min(most, groups / (8 * team_.size())) & ~1);
  team_.share(groups, grain, [&](int begin, int end, int thread) {
    k_.product(p, begin, end, scratch_.p + thread * scratch_stride_);
  });
}

// hidden += w . x (+ bias), normed first if the model does so; x has been made ready.
void Engine::residual(const ed_call& call, const Matrix& w, const float* x, const float* bias,
                      const float* post_norm) {
  Product p{};
  p.a = rows_for(w, x), p.bias = bias, p.stride = m_.hidden, p.rows = call.rows;
  p.out = post_norm ? post_.p : call.hidden;
  p.epilogue = post_norm ? STORE : ADD;
  multiply(w, p);
  if (!post_norm) return;
  team_.share(call.rows, 1, [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      float* y = post_.p + (size_t)r * m_.hidden;
      k_.norm(y, post_norm, m_.hidden, m_.norm_eps, y);
      k_.add(y, m_.hidden, call.hidden + (size_t)r * m_.hidden);
    }
  });
}

void Engine::mlp(const ed_call& call, int layer) {
  const ed_layer& l = layers_[layer];
  Matrix gate_up = matrix(l.gate_up), down = matrix(l.down);
  int inner = m_.intermediate;
  normed(call.hidden, call.rows, l.mlp_norm, gate_up);
  bool fused = inner % LANES == 0;
  Product p{};
  p.a = rows_for(gate_up, x_.p), p.bias = l.gate_up_bias, p.rows = call.rows, p.activation = m_.activation;
  p.out = fused ? inner_.p : both_.p, p.stride = fused ? inner : 2 * inner, p.epilogue = fused ? GLU : STORE;
  multiply(gate_up, p);
  if (!fused)
    team_.share(call.rows, 1, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        const float* gate = both_.p + (size_t)r * 2 * inner;
        k_.glu(gate, gate + inner, inner, m_.activation, inner_.p + (size_t)r * inner);
      }
    });
  ready(inner_.p, call.rows, down);
  residual(call, down, inner_.p, l.down_bias, l.mlp_post_norm);
}

}  // namespace edgedec

// ---- the C interface ---------------------------------------------------------------------------

#include "dispatch.h"

struct ed_engine {
  edgedec::Engine engine;
};

ed_engine* ed_open(const ed_model* model, int threads, const char* isa) {
  const edgedec::Kernels* kernels = edgedec::choose(isa);
  if (!kernels) return nullptr;
  try {
    return new ed_engine{{*model, threads, kernels}};
  } catch (...) {
    return nullptr;
  }
}

void ed_close(ed_engine* engine) { delete engine; }

const char* ed_engine_isa(const ed_engine* engine) { return engine->engine.isa(); }

int ed_run(ed_engine* engine, const ed_call* call) { return engine->engine.run(*call); }

uint64_t ed_kv_row_bytes(int dim, int kv) { return edgedec::kv_row_bytes(dim, kv); }
