// Weights of experts that a call reads, counted at the products: of 8 rows the union of their experts, each once.
#include <atomic>
#include <cstdio>
#include <set>

#include "../../kernels/cpu/dispatch.h"
#include "../../kernels/cpu/engine.h"
#include "block_case.h"

namespace {

constexpr int EXPERTS = 16, TOP_K = 4, INNER = 32, HIDDEN = 64, ROWS = 8;

const edgedec::Kernels* real = nullptr;
const ed_tensor* watched[2];   // gate_up, down
std::atomic<int64_t> outputs;  // of experts' matrices that were multiplied
std::atomic<int> seen[EXPERTS];

void counted(const edgedec::Product& p, int group0, int group1, uint8_t* scratch) {
  for (const ed_tensor* t : watched) {
    const int64_t rows = t->n / EXPERTS, expert_bytes = rows * t->k * 4;
    const int64_t at = p.w.data - (const uint8_t*)t->data;
    if (at < 0 || at >= EXPERTS * expert_bytes) continue;
    outputs += (int64_t)(group1 - group0) * edgedec::LANES * (p.epilogue == edgedec::GLU ? 2 : 1);
    seen[at / expert_bytes] = 1;
  }
  real->product(p, group0, group1, scratch);
}

// What a call of these rows reads, as a number of experts; `union_of` collects which.
double read(edgedec::Engine& engine, const Floats& x, std::set<int>& union_of) {
  outputs = 0;
  for (auto& one : seen) one = 0;
  const int block = 0, rows = (int)x.size() / HIDDEN;
  Floats y(x.size());
  float* out = y.data();
  std::vector<int64_t> positions(rows);
  ed_sequence s{};
  s.rows = rows, s.n_blocks = 1, s.blocks = &block, s.logits_from = -1, s.input = x.data(), s.positions = positions.data();
  s.n_hidden = 1, s.hidden_blocks = &block, s.hidden = &out;
  check(engine.run(&s, 1) == 0, "a call");
  for (int e = 0; e < EXPERTS; e++)
    if (seen[e]) union_of.insert(e);
  return (double)outputs / (2 * INNER + HIDDEN);
}

// By softmax a row reads TOP_K experts; by ReLU any number.
void reads_of(const char* name, int router_kind) {
  edgedec::Kernels kernels = *real;
  kernels.product = counted;
  Random r(7);
  Arrays arrays;
  const Weight router = random_weight(r, arrays, F32, EXPERTS, HIDDEN);
  const Weight up = random_weight(r, arrays, F32, EXPERTS * 2 * INNER, HIDDEN);
  const Weight down = random_weight(r, arrays, F32, EXPERTS * HIDDEN, INNER);
  const Floats norm(HIDDEN, 1.0f), score_norm(EXPERTS, 1.0f);
  const bool relu = router_kind == 4;
  ed_moe m{};
  m.experts = EXPERTS, m.top_k = relu ? EXPERTS : TOP_K, m.inner = INNER, m.normalize = !relu, m.router = router_kind, m.scale = 1, m.groups = m.top_groups = 1;
  m.router_weight = router.tensor, m.gate_up = up.tensor, m.down = down.tensor;
  if (relu) m.score_norm = score_norm.data();
  watched[0] = &m.gate_up, watched[1] = &m.down;
  ed_block block{};
  block.kind = edgedec::MOE, block.moe = &m, block.norm = {1, 0, norm.data(), nullptr};
  ed_model model{};
  model.hidden = HIDDEN, model.n_blocks = 1, model.norm_eps = 1e-5f, model.embed_scale = 1, model.blocks = &block;
  edgedec::Engine engine(model, 2, &kernels);
  const Floats x = r.floats((size_t)ROWS * HIDDEN, 0, 2);
  double alone = 0;
  std::set<int> chosen, together;
  for (int i = 0; i < ROWS; i++)
    alone += read(engine, Floats(&x[(size_t)i * HIDDEN], &x[(size_t)i * HIDDEN] + HIDDEN), chosen);
  const double at_once = read(engine, x, together);
  std::printf("%s: %g read by %d rows one by one, %g at once, %d in their union\n", name, alone, ROWS, at_once, (int)chosen.size());
  check(relu ? alone > ROWS && alone < ROWS * EXPERTS : alone == ROWS * TOP_K, "a row reads its experts");
  check(together == chosen && at_once == (double)chosen.size(), "a call reads the union once");
  check(chosen.size() < alone && chosen.size() > TOP_K, "rows share some experts");
}

}  // namespace

int reads() {
  real = edgedec::choose(nullptr);
  reads_of("experts", 0), reads_of("experts by ReLU", 4);
  return failures;
}
