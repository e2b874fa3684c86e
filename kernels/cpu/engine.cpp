#include "engine.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "tree.h"

namespace edgedec {

namespace {

// What is read of experts before their turn, at most: where memory is short, more would be dropped again before it is used.
constexpr size_t READ_AHEAD = 64 << 20;

// Whether rows of one group may be taken as those of a text, which needs no list of what each sees: in a decoder nothing
// may look behind the row itself in another way.
bool like_texts(const ed_model& model, const ed_sequence& s) {
  if (model.texts) return true;
  if (!s.groups || s.attention_sums || s.views) return false;
  return std::none_of(model.blocks, model.blocks + model.n_blocks, [](const ed_block& block) {
    return block.attention && (block.attention->window || block.attention->slopes);
  });
}

}  // namespace

Engine::Engine(const ed_model& model, int threads, const Kernels* kernels)
    : model_(model),
      blocks_(model.blocks, model.blocks + model.n_blocks),
      ropes_(model.ropes, model.ropes + model.n_ropes),
      kernels_(*kernels),
      pool_(threads),
      shape_(state_shape(model)),
      draws_of_(threads) {
  std::vector<Matrix> all{matrix(model_.embed), matrix(model_.head)};
  if (model_.head_layer.format) all.push_back(matrix(model_.head_layer));
  for (const ed_block& block : blocks_)
    paired_ |= block.lookup || (block.kind == ATTENTION && (block.attention->embedding_norm.kind != NO_NORM || block.attention->with_embedding));
  for (int i = 0; i < model.n_blocks; i++) {
    if (!blocks_[i].altup) continue;
    if (blocks_[i].altup->step == ED_ENTER) enter_ = i;
    leave_ = i;
  }
  made_ = make_blocks();
  for (const auto& block : made_)
    for (const Matrix& w : block->matrices()) all.push_back(w);
  for (const Matrix& w : all) {
    weight_scratch_ = std::max(weight_scratch_, w.scratch());
    widest_ = std::max(widest_, QuantizedActivations::row_bytes(w));
  }
}

Engine::~Engine() = default;

std::vector<std::unique_ptr<Block>> Engine::make_blocks() {
  std::vector<std::unique_ptr<Block>> made;
  for (const ed_block& block : blocks_) {
    const int number = (int)made.size();
    if (early(number) && (!number || block.branch || blocks_[number - 1].branch || beside(number - 1)))
      throw std::invalid_argument("an early router without a block before it that stands alone");
    if (owner_of(number) >= 0 && !shares(number)) throw std::invalid_argument("slots or values of other heads");
    made.push_back(block_kind(block.kind)->make(*this, block));
    if (!made.back()) throw std::invalid_argument("a block that is not supported");
  }
  return made;
}

// Whether the slots or values that a block reads are those of a block before it, of the same heads or channels.
bool Engine::shares(int block) const {
  const int owner = owner_of(block);
  if (owner >= block) return false;
  if (const ed_gmu* unit = blocks_[block].gmu) {
    const ed_s6* memory = blocks_[owner].s6;
    return memory && memory->keeps && memory->inner == unit->inner;
  }
  if (const ed_moe* given = blocks_[block].moe) {
    const ed_pre_router* router = blocks_[owner].pre_router;
    return router && router->experts == given->experts && given->top_k == 1;
  }
  if (blocks_[owner].kind != (blocks_[block].rwkv7 ? RWKV7 : ATTENTION)) return false;
  if (const ed_rwkv7* mixed = blocks_[block].rwkv7)
    return mixed->heads * mixed->head_dim == blocks_[owner].rwkv7->heads * blocks_[owner].rwkv7->head_dim;
  const ed_attention &own = *blocks_[block].attention, &other = *blocks_[owner].attention;
  return own.kv_heads == other.kv_heads && own.head_dim == other.head_dim && !own.gate && !own.slopes;
}

int Engine::run(const ed_sequence* sequences, int n) {
  int wrong;
  {
    std::lock_guard<std::mutex> lock(turn_);
    wrong = run_in_turn(sequences, n);
  }
  if (trim_) trim();
  return wrong;
}

// This does not block: if a call runs, it frees the memory at its end.
void Engine::trim() {
  trim_ = true;
  while (trim_ && turn_.try_lock()) {
    std::lock_guard<std::mutex> lock(turn_, std::adopt_lock);
    if (trim_.exchange(false)) release();
  }
}

// Blocks are made anew, because they hold nothing but working memory.
void Engine::release() {
  auto shared = std::exchange(shared_, {});
  try {
    made_ = make_blocks();
  } catch (const std::bad_alloc&) {
    shared_ = std::move(shared);
    return;
  }
  for (Buffer<float>* each : {&hidden_, &input_, &input_gather_, &before_, &fed_, &dense_, &gather_, &embeddings_, &embeddings_gather_, &lookups_, &lookups_gather_, &streams_, &streams_gather_, &normed_, &post_, &strip_, &drawn_})
    *each = {};
  best_ = {}, sums_ = {}, records_ = {}, scratch_ = {}, scratch_stride_ = 0;
  draws_of_.assign(pool_.size(), {});
}

int Engine::run_in_turn(const ed_sequence* sequences, int n) {
  if (int wrong = check(sequences, n)) return wrong;
  try {
    prepare(sequences, n);
    if (rows_) embed();
    for (int block = 0; rows_ && block < model_.n_blocks; block++) run_block(block);
    scatter();
    head(sequences, n);
  } catch (const std::bad_alloc&) {
    gathered_.clear();
    return -1;
  }
  return 0;
}

// ---- before the blocks -----------------------------------------------------------------------------

// Rows of one sequence lie side by side; sequences that begin with the same pages are neighbours, so that they can
// attend to them together.
void Engine::prepare(const ed_sequence* sequences, int n) {
  planned_.resize(n);
  int count = 0;
  for (int i = 0; i < n; i++)
    if (sequences[i].rows) begin(planned_[count++], sequences[i]);
  planned_.resize(count);
  // Equal ones stay in order by their index: a stable sort would allocate memory in every step.
  if (count > 1)
    std::sort(planned_.begin(), planned_.end(), [](const Planned& a, const Planned& b) {
      return std::tie(a.lead, a.asked) < std::tie(b.lead, b.asked);
    });
  rows_ = 0;
  for (Planned& s : planned_) s.row = rows_, rows_ += s.asked->rows;
  hidden_.need((size_t)rows_ * model_.hidden);
  if (paired_) embeddings_.need((size_t)rows_ * model_.hidden);
  if (lookups()) lookups_.need((size_t)rows_ * model_.lookup.k);
  streams_.need(rows_ * beside_size());
  reserve(rows_);
  for (auto& block : made_) block->reserve(rows_);
  need_scratch(0);
  running_.clear(), gathered_.clear(), begun_ = 0;
}

void Engine::reserve(int rows) {
  normed_.need((size_t)rows * model_.hidden);
  post_.need((size_t)rows * model_.hidden);
  records_.need(rows * widest_);
}

void Engine::begin(Planned& s, const ed_sequence& asked) {
  s.asked = &asked, s.cache = asked.cache ? &asked.cache->cache : nullptr;
  s.next = 0, s.text_length = s.cache ? s.cache->length() : 0, s.lead = nullptr;
  s.pending = {asked.first, asked.first + asked.rows, asked.positions, asked.parents, asked.numbers};
  if (!asked.n_blocks) return;
  build_tree(asked, like_texts(model_, asked), s.tree);
  s.names = RowNames::of(s.pending);
  if (!s.cache) return;
  s.cache->begin(asked.n_blocks < 0 ? nullptr : asked.blocks, blocks_of(asked), s.pending, s.names);
  for (int i = 0; !s.lead && i < blocks_of(asked); i++)
    if (const BlockState* state = state_of(s, block_of(asked, i))) s.lead = state->lead();
}

void Engine::embed() {
  const size_t width = model_.hidden;
  pool_.parallel_for(rows_, 1, [&](int begin, int end, int) {
    size_t i = 0;
    for (int row = begin; row < end; row++) {
      while (row >= planned_[i].row + planned_[i].asked->rows) i++;
      const ed_sequence& s = *planned_[i].asked;
      const int at = row - planned_[i].row;
      const bool wide = blocks_of(s) && inside(block_of(s, 0) - 1);
      const size_t given = width + (wide ? beside_size() : 0);
      if (wide && s.input) std::memcpy(streams_.p + row * beside_size(), s.input + at * given + width, 4 * beside_size());
      else if (model_.streams) std::fill_n(streams_.p + row * beside_size(), beside_size(), 0.0f);
      if (s.input) std::memcpy(hidden_.p + row * width, s.input + at * given, 4 * width);
      else embed_row(s, at, hidden_.p + row * width);
      if (lookups()) kernels_.embed(matrix(model_.lookup), (int)s.tokens[s.first + at], 1.0f, lookups_.p + (size_t)row * model_.lookup.k);
      if (!paired_) continue;
      if (s.embeddings) std::memcpy(embeddings_.p + row * width, s.embeddings + at * width, 4 * width);
      else embed_row(s, at, embeddings_.p + row * width);
    }
  });
  for (const Planned& s : planned_) keep_hidden(s, -1, hidden_.p + s.row * width, nullptr);
}

void Engine::embed_row(const ed_sequence& s, int at, float* to) const {
  kernels_.embed(matrix(model_.embed), (int)s.tokens[s.first + at], model_.embed_scale, to);
  if (model_.types) kernels_.add(model_.types + (s.types ? s.types[s.first + at] : 0) * model_.hidden, model_.hidden, to);
  if (model_.positions) kernels_.add(model_.positions + s.positions[s.first + at] * model_.hidden, model_.hidden, to);
  norm_row(model_.entry_norm, to, to);
}

// ---- the blocks ------------------------------------------------------------------------------------

void Engine::run_block(int block) {
  const bool first_fed = blocks_[block].feeds && !fed(block);
  if ((blocks_[block].branch && !beside(block)) || first_fed || early(block + 1)) keep_input();
  choose(block);
  if (running_.empty()) return;
  call_.sequences.clear(), call_.rows = 0, call_.active = active_;
  for (int i : running_) {
    Planned& s = planned_[i];
    const int at = s.asked->n_blocks < 0 ? block : s.next++;
    call_.sequences.push_back({call_.rows, s.asked->rows, s.pending, &s.tree, state_of(s, block), owner_state(s, block),
                               s.text_length,
                               s.asked->attention_sums ? s.asked->attention_sums[at] : nullptr,
                               s.asked->adapter ? s.asked->adapter->parts + ED_LORA_PARTS * block : nullptr,
                               s.asked->queries ? s.asked->queries[at] : nullptr,
                               s.asked->views ? s.asked->views[at] : nullptr});
    call_.rows += s.asked->rows;
  }
  point_input(block);
  if (blocks_[block].branch && !beside(block) && joined(block)) begin_sum();
  feed(block);
  keep_before(blocks_[block].again_norm);
  if (given(block)) read_ahead(block);
  made_[block]->run(call_);
  if (blocks_[block].pre_router) read_ahead(block);
  if (blocks_[block].joined_norm.kind != NO_NORM) join(blocks_[block].joined_norm);
  if (blocks_[block].after_norm.kind != NO_NORM) norm_states(blocks_[block].after_norm);
  norm_again(blocks_[block].again_norm);
  if (blocks_[block].state_scale) scale_states(*blocks_[block].state_scale);
  for (const SequenceRows& s : call_.sequences)
    keep_hidden(planned_[running_[&s - call_.sequences.data()]], block, call_.hidden + (size_t)s.row * model_.hidden,
                inside(block) ? call_.streams + s.row * beside_size() : nullptr);
}

// The experts that a pre-router chose for the call's rows are known before their blocks run: after it, and with each of
// its mixtures, those that follow begin to be read, READ_AHEAD bytes of them.
void Engine::read_ahead(int block) {
  const int owner = given(block) ? owner_of(block) : block;
  if (owner == block) begun_ = block;
  size_t room = READ_AHEAD;
  for (int b = block + 1; b < model_.n_blocks; b++) {
    if (!given(b) || owner_of(b) != owner) continue;
    const size_t bytes = made_[b]->read_given(call_, b > begun_ ? room : 0);
    if (bytes > room) return;
    room -= bytes, begun_ = std::max(begun_, b);
  }
}

// The states of all rows, also of those that the block does not run on, before blocks that read them, from here on.
void Engine::keep_input() {
  if (!gathered_.empty()) scatter(), running_.clear();
  input_.need((size_t)rows_ * model_.hidden);
  std::memcpy(input_.p, hidden_.p, (size_t)rows_ * model_.hidden * 4);
}

// What the block reads of the call's rows: their states, or those that were kept for it and the blocks beside it; and
// what its router reads, if those were kept for that.
void Engine::point_input(int block) {
  const bool kept = blocks_[block].branch || beside(block) || blocks_[block].feeds || fed(block);
  call_.input = kept ? kept_input() : call_.hidden;
  call_.before = early(block) ? kept_input() : nullptr;
}

// The states that were kept, of the call's rows.
const float* Engine::kept_input() {
  if (gathered_.empty()) return input_.p + (size_t)planned_[running_[0]].row * model_.hidden;
  input_gather_.need((size_t)rows_ * model_.hidden);
  float* to = input_gather_.p;
  for (int i : running_) {
    const size_t size = (size_t)planned_[i].asked->rows * model_.hidden;
    std::memcpy(to, input_.p + (size_t)planned_[i].row * model_.hidden, 4 * size);
    to += size;
  }
  return input_gather_.p;
}

// Of blocks that feed one another: what the block reads, and what its output is added to. The kept states are call_.input.
void Engine::feed(int block) {
  const bool first = !fed(block), last = !blocks_[block].feeds;
  if (first && last) return;
  const float* kept = call_.input;
  const size_t size = (size_t)call_.rows * model_.hidden;
  if (!first) {
    fed_.need(size);
    std::memcpy(fed_.p, call_.hidden, 4 * size);
    if (last) kernels_.add(kept, (int)size, fed_.p);
    call_.input = fed_.p;
  }
  if (last) std::memcpy(call_.hidden, kept, 4 * size);
  else std::fill_n(call_.hidden, size, 0.0f);
}

// Whether what a block and those after it, up to the first without `branch`, add is normed as one sum.
bool Engine::joined(int block) const {
  while (blocks_[block].branch) block++;
  return blocks_[block].joined_norm.kind != NO_NORM;
}

// The states of the call's rows become what the blocks side by side have added so far: nothing.
void Engine::begin_sum() { std::fill_n(call_.hidden, (size_t)call_.rows * model_.hidden, 0.0f); }

// The states of the call's rows: what the blocks side by side read, and the normed sum of what they added.
void Engine::join(const ed_norm& norm) {
  pool_.parallel_for(call_.rows, grain(call_.rows), [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      float* row = call_.hidden + (size_t)r * model_.hidden;
      norm_row(norm, row, row);
      kernels_.add(call_.input + (size_t)r * model_.hidden, model_.hidden, row);
    }
  });
}

void Engine::scale_states(float by) {
  const size_t n = (size_t)call_.rows * model_.hidden;
  for (size_t i = 0; i < n; i++) call_.hidden[i] *= by;
}

// The states of the call's rows normed in place.
void Engine::norm_states(const ed_norm& norm) {
  pool_.parallel_for(call_.rows, grain(call_.rows), [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      float* row = call_.hidden + (size_t)r * model_.hidden;
      norm_row(norm, row, row);
    }
  });
}

// The states of the call's rows before a block that adds them twice.
void Engine::keep_before(const ed_norm& norm) {
  if (norm.kind == NO_NORM) return;
  const size_t size = (size_t)call_.rows * model_.hidden;
  before_.need(size);
  std::memcpy(before_.p, call_.hidden, 4 * size);
}

// These added to the states of the call's rows, and the sums normed.
void Engine::norm_again(const ed_norm& norm) {
  if (norm.kind == NO_NORM) return;
  kernels_.add(before_.p, call_.rows * model_.hidden, call_.hidden);
  norm_states(norm);
}

// The sequences that a block runs on, and where their rows lie side by side: where they are, or gathered.
void Engine::choose(int block) {
  std::vector<int>& now = choice_;
  now.clear();
  for (int i = 0; i < (int)planned_.size(); i++)
    if (planned_[i].runs(block)) now.push_back(i);
  if (now == running_) return;
  active_++;
  scatter();
  running_ = now;
  if (now.empty()) return;
  const bool neighbours = now.back() - now.front() + 1 == (int)now.size();
  call_.hidden = hidden_.p + (size_t)planned_[now[0]].row * model_.hidden;
  call_.embeddings = paired_ ? embeddings_.p + (size_t)planned_[now[0]].row * model_.hidden : nullptr;
  call_.lookups = lookups() ? lookups_.p + (size_t)planned_[now[0]].row * model_.lookup.k : nullptr;
  call_.streams = model_.streams ? streams_.p + planned_[now[0]].row * beside_size() : nullptr;
  if (!neighbours) gather();
}

void Engine::gather() {
  gather_.need((size_t)rows_ * model_.hidden);
  call_.hidden = gather_.p;
  if (paired_) embeddings_gather_.need((size_t)rows_ * model_.hidden), call_.embeddings = embeddings_gather_.p;
  if (lookups()) lookups_gather_.need((size_t)rows_ * model_.lookup.k), call_.lookups = lookups_gather_.p;
  if (model_.streams) streams_gather_.need(rows_ * beside_size()), call_.streams = streams_gather_.p;
  size_t to = 0, looked = 0, beside = 0;
  for (int i : running_) {
    const size_t streams = planned_[i].asked->rows * beside_size();
    if (streams) std::memcpy(streams_gather_.p + beside, streams_.p + planned_[i].row * beside_size(), 4 * streams);
    beside += streams;
    const size_t wide = (size_t)planned_[i].asked->rows * model_.lookup.k;
    if (lookups()) std::memcpy(lookups_gather_.p + looked, lookups_.p + (size_t)planned_[i].row * model_.lookup.k, 4 * wide);
    looked += wide;
    const size_t size = (size_t)planned_[i].asked->rows * model_.hidden, from = (size_t)planned_[i].row * model_.hidden;
    std::memcpy(gather_.p + to, hidden_.p + from, 4 * size);
    if (paired_) std::memcpy(embeddings_gather_.p + to, embeddings_.p + from, 4 * size);
    to += size;
  }
  gathered_ = running_;
}

// Gathered rows back to where they were.
void Engine::scatter() {
  const float *from = gather_.p, *beside = streams_gather_.p;
  for (int i : gathered_) {
    const size_t streams = planned_[i].asked->rows * beside_size();
    if (streams) std::memcpy(streams_.p + planned_[i].row * beside_size(), beside, 4 * streams);
    beside += streams;
    const size_t size = (size_t)planned_[i].asked->rows * model_.hidden;
    std::memcpy(hidden_.p + (size_t)planned_[i].row * model_.hidden, from, 4 * size);
    from += size;
  }
  gathered_.clear();
}

// The states of a sequence's rows, each followed by its streams, if there are any.
void Engine::keep_hidden(const Planned& s, int block, const float* from, const float* streams) const {
  const size_t width = model_.hidden, beside = streams ? beside_size() : 0;
  for (int i = 0; i < s.asked->n_hidden; i++) {
    if (s.asked->hidden_blocks[i] != block) continue;
    for (int r = 0; r < s.asked->rows; r++) {
      float* to = s.asked->hidden[i] + r * (width + beside);
      std::memcpy(to, from + r * width, 4 * width);
      if (beside) std::memcpy(to + width, streams + r * beside, 4 * beside);
    }
  }
}

// ---- services for blocks ---------------------------------------------------------------------------

void Engine::need_scratch(size_t bytes) {
  const size_t stride = (std::max(weight_scratch_, bytes) + 127) / 64 * 64;
  if (stride > scratch_stride_) scratch_stride_ = stride;
  scratch_.need(scratch_stride_ * pool_.size());
}

QuantizedActivations Engine::activations(const Matrix& w, const float* x) const {
  return {records_.p, x, w.quantized() ? w.steps() : 0, w.step()};
}

void Engine::norm_row(const ed_norm& norm, const float* x, float* y) const {
  norm_values(norm, x, model_.hidden, y);
}

void Engine::norm_values(const ed_norm& norm, const float* x, int n, float* y) const {
  switch (norm.kind) {
    case RMS: return kernels_.norm(x, norm.weight, n, model_.norm_eps, y);
    case LAYER: return kernels_.layer_norm(x, norm.weight, norm.bias, n, model_.norm_eps, y);
    case SCALE:
      for (int i = 0; i < n; i++) y[i] = x[i] * norm.weight[i];
      return;
    default:
      if (x != y) std::copy(x, x + n, y);
  }
}

void Engine::norm_wide(const ed_norm& norm, float* x, int rows, int width) {
  if (norm.kind == NO_NORM) return;
  pool_.parallel_for(rows, grain(rows), [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) norm_values(norm, x + (size_t)r * width, width, x + (size_t)r * width);
  });
}

// Rows of the hidden state, row r at `at(r)`, normed and made ready for `w`.
template <class At>
QuantizedActivations Engine::norm_rows(const ed_norm& norm, int rows, const Matrix& w, At at) {
  reserve(rows);
  const QuantizedActivations a = activations(w, normed_.p);
  pool_.parallel_for(rows, grain(rows), [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      float* to = normed_.p + (size_t)r * model_.hidden;
      norm_row(norm, at(r), to);
      if (w.quantized()) kernels_.quantize(to, w, a, r, 0, a.steps);
    }
  });
  return a;
}

QuantizedActivations Engine::norm(const ed_norm& norm, const float* x, int rows, const Matrix& w) {
  return norm_rows(norm, rows, w, [&](int r) { return x + (size_t)r * model_.hidden; });
}

QuantizedActivations Engine::norm_head(const Matrix& w) {
  const int rows = (int)head_rows_.size();
  const auto state = [&](int r) { return head_rows_[r].hidden; };
  if (!model_.head_layer.format) return norm_rows(model_.final_norm, rows, w, state);
  Product p{};
  p.w = matrix(model_.head_layer), p.a = norm_rows(model_.final_norm, rows, p.w, state), p.bias = model_.head_layer_bias;
  dense_.need((size_t)rows * model_.hidden);
  p.rows = rows, p.out = dense_.p, p.stride = model_.hidden, p.activation = model_.head_activation, p.epilogue = ACTIVATE;
  multiply(p);
  norm_wide(model_.head_layer_norm, dense_.p, rows, model_.hidden);
  return quantize(dense_.p, rows, w);
}

QuantizedActivations Engine::quantize(const float* x, int rows, const Matrix& w) {
  reserve(rows);
  const QuantizedActivations a = activations(w, x);
  if (!w.quantized()) return a;
  // Few rows are split, so that all threads have work; blocks with zero points stay whole.
  const int whole = w.zeros ? w.block_steps() : 1, pieces = a.steps / whole;
  const int cuts = rows < 2 * pool_.size() ? std::min(pieces, 2 * pool_.size()) : 1;
  pool_.parallel_for(rows * cuts, grain(rows * cuts), [&](int begin, int end, int) {
    for (int i = begin; i < end; i++) {
      const int r = i / cuts, part = i % cuts;
      kernels_.quantize(x + (size_t)r * w.k, w, a, r, pieces * part / cuts * whole, pieces * (part + 1) / cuts * whole);
    }
  });
  return a;
}

// All groups of a product, a few at a time.
void Engine::multiply(const Product& p) {
  const int groups = p.epilogue == GLU ? p.w.groups() / 2 : p.w.groups();
  const int most = p.rows < 16 ? 32 : 8;
  const int grain = std::max(2, std::min(most, groups / (8 * pool_.size())) & ~1);
  pool_.parallel_for(groups, grain, [&](int begin, int end, int thread) {
    kernels_.product(p, begin, end, scratch(thread));
  });
}

void Engine::multiply(const Matrix& w, const QuantizedActivations& a, int rows, const float* bias, float* out,
                      int64_t stride) {
  Product p{};
  p.w = w, p.a = a, p.rows = rows, p.bias = bias, p.out = out, p.stride = stride;
  multiply(p);
}

void Engine::project(const BlockCall& call, const ed_block& block, const Matrix& w, const float* bias, float* out) {
  multiply(w, norm(block.norm, call.input, call.rows, w), call.rows, bias, out, w.n);
  adapt(call, 0, normed(), hidden(), out, w.n);
}

void Engine::residual(const BlockCall& call, const ed_block& block, const Matrix& w, const QuantizedActivations& a,
                      const float* x, const float* bias) {
  const bool stored = block.post_norm.kind != NO_NORM;
  Product p{};
  p.w = w, p.a = a, p.bias = bias, p.stride = model_.hidden, p.rows = call.rows;
  p.out = stored ? post_.p : call.hidden;
  p.epilogue = stored ? STORE : ADD;
  multiply(p);
  adapt(call, 1, x, w.k, p.out, model_.hidden);
  if (stored) add_residual(call, block, post_.p);
}

void Engine::add_residual(const BlockCall& call, const ed_block& block, float* y) {
  pool_.parallel_for(call.rows, 1, [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      float* row = y + (size_t)r * model_.hidden;
      norm_row(block.post_norm, row, row);
      kernels_.add(row, model_.hidden, call.hidden + (size_t)r * model_.hidden);
    }
  });
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
  for (int i = 0; i < model->n_blocks; i++)
    if (!edgedec::block_kind(model->blocks[i].kind)) return nullptr;
  try {
    return new ed_engine{{*model, threads, kernels}};
  } catch (...) {
    return nullptr;
  }
}

void ed_close(ed_engine* engine) { delete engine; }

const char* ed_engine_isa(const ed_engine* engine) { return engine->engine.kernels().name; }

int ed_run(ed_engine* engine, const ed_sequence* sequences, int n) { return engine->engine.run(sequences, n); }

void ed_trim(ed_engine* engine) { engine->engine.trim(); }
