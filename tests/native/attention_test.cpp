// Attention kernels against double precision, and bit for bit against each other: instruction sets, row
// tiles, rows alone, chains written as trees, keys moved to other slots.
#include "attention_case.h"

static int failures = 0;

static void check(bool ok, const char* what, const Shape& s, const char* unit) {
  if (ok) return;
  failures++;
  std::printf("FAILED %s (%s): dim %d kv %d group %d length %d rows %d first %d format %d window %d sinks %d cap %g tree %d groups %d named %d text %d\n",
              what, unit, s.dim, s.kv_heads, s.group, s.length, s.rows, s.first, s.format, s.window, s.sinks,
              s.softcap, s.tree, s.groups, s.named, s.text);
}

static bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

// ---- the oracle ----------------------------------------------------------------------------------

struct Oracle {
  std::vector<double> out, sums;
};

// The slots a row sees, by what Attention says of slots, paths, windows and sinks.
static std::vector<int> seen(const Attention& a, int row) {
  std::vector<int> all, kept;
  for (int i = 0; i < a.length; i++) all.push_back(i);
  if (a.text) {
    for (int i = 0; i < a.length + a.text; i++)
      if (!a.window || i < a.sinks || std::abs(i - a.length - row) < a.window) kept.push_back(i);
    return kept;
  }
  if (a.begin)
    for (int i = a.begin[row]; i < a.end[row]; i++) all.push_back(a.length + a.path[i]);
  else
    for (int i = 0; i <= a.first + row; i++) all.push_back(a.length + i);
  const int own = (int)all.size() - 1;
  for (int rank = 0; rank <= own; rank++) {
    const int slot = all[rank];
    const bool inside = a.slot_positions ? a.slot_positions[slot] > a.row_positions[row] - a.window : rank > own - a.window;
    const bool sink = (a.slot_positions ? a.slot_positions[slot] : rank) < a.sinks;
    if (!a.window || inside || sink) kept.push_back(slot);
  }
  return kept;
}

// What products of integers leave of weights p of the keys `from` on, a chunk of them: 8 bits of the largest, each times the
// scale of its value.
static void round_chunk(const Case& c, int head, const std::vector<int>& slots, size_t from, std::vector<double>& p) {
  const size_t to = std::min(p.size(), from + edgedec::CHUNK);
  std::vector<double> scales;
  double most = 1e-30, top = 0;
  for (size_t j = from; j < to; j++) top = std::fmax(top, p[j]);
  for (size_t j = from; j < to; j++) {
    float scale;
    std::memcpy(&scale, &c.values[((size_t)head * c.slots + slots[j]) * c.row_bytes() + edgedec::kv_scale_at(c.s.dim, edgedec::INT8)], 4);
    scales.push_back(scale);
    most = std::fmax(most, p[j] / top * scale);
  }
  for (size_t j = from; j < to; j++) p[j] = std::nearbyint(p[j] / top * scales[j - from] * 255 / most) * most / 255 / scales[j - from] * top;
}

// rounded: with queries and weights as texts in lanes of int8 have them.
static Oracle oracle(const Kernels& k, const Case& c, bool rounded = false) {
  const Attention& a = c.a;
  Oracle r{std::vector<double>(c.q.size()), std::vector<double>(c.slots)};
  std::vector<float> keys((size_t)a.kv_heads * c.slots * a.dim), values(keys.size());
  for (int i = 0; i < a.kv_heads * c.slots; i++) {
    k.load_kv(c.keys.data() + i * c.row_bytes(), a.dim, a.format, &keys[(size_t)i * a.dim]);
    k.load_kv(c.values.data() + i * c.row_bytes(), a.dim, a.format, &values[(size_t)i * a.dim]);
  }
  std::vector<float> q = c.q;
  std::vector<uint8_t> bytes(c.row_bytes());
  for (size_t at = 0; rounded && at < q.size(); at += a.dim) {
    k.store_kv(&q[at], a.dim, edgedec::INT8, bytes.data());
    k.load_kv(bytes.data(), a.dim, edgedec::INT8, &q[at]);
  }
  for (int row = 0; row < a.rows; row++)
    for (int head = 0; head < a.heads; head++) {
      const size_t at = ((size_t)row * a.heads + head) * a.dim, from = (size_t)(head / a.group()) * c.slots;
      const std::vector<int> slots = seen(a, row);
      std::vector<double> p;
      double top = -1e300, sum = 0;
      for (int slot : slots) {
        double dot = 0;
        for (int i = 0; i < a.dim; i++) dot += (double)q[at + i] * keys[(from + slot) * a.dim + i];
        dot *= a.scale;
        if (a.softcap != 0.0f) dot = a.softcap * std::tanh(dot / a.softcap);
        p.push_back(dot);
        top = std::fmax(top, dot);
      }
      for (double& x : p) sum += x = std::exp(x - top);
      for (size_t j = 0; rounded && j < p.size(); j += edgedec::CHUNK) round_chunk(c, head / a.group(), slots, j, p);
      for (size_t j = 0; j < slots.size(); j++) {
        r.sums[slots[j]] += p[j] / sum;
        for (int i = 0; i < a.dim; i++) r.out[at + i] += p[j] / sum * values[(from + slots[j]) * a.dim + i];
      }
    }
  return r;
}

static bool close(const std::vector<float>& got, const std::vector<double>& want, double tolerance) {
  for (size_t i = 0; i < want.size(); i++)
    if (!(std::fabs(got[i] - want[i]) <= tolerance * (1 + std::fabs(want[i])))) {
      std::printf("  at %zu: %.9g, expected %.9g\n", i, got[i], want[i]);
      return false;
    }
  return true;
}

// The largest and the root of the mean square of what differs.
static bool close_on_average(const std::vector<float>& got, const std::vector<double>& want, double most, double mean) {
  double worst = 0, sum = 0;
  for (size_t i = 0; i < want.size(); i++) {
    const double off = std::fabs(got[i] - want[i]);
    sum += off * off, worst = off > worst || off != off ? off : worst;
  }
  const bool fits = worst <= most && std::sqrt(sum / (double)want.size()) <= mean;
  if (!fits) std::printf("  off by %g at most, %g on average\n", worst, std::sqrt(sum / (double)want.size()));
  return fits;
}

// ---- the same bits ---------------------------------------------------------------------------------

static Result whole_case(const Kernels& k, const Case& c, int tile, bool sums) {
  Pages pages(c.keys, c.values, c.a.kv_heads, c.slots, c.row_bytes());
  Attention a = c.a;
  a.pages = pages.table.data();
  return run(k, a, tile, sums);
}

static Result rows_alone(const Kernels& k, const Case& c, std::vector<int> rows) {
  Pages pages(c.keys, c.values, c.a.kv_heads, c.slots, c.row_bytes());
  Result all{std::vector<float>(c.q.size()), {}};
  const size_t width = (size_t)c.a.heads * c.a.dim;
  for (int row : rows) {
    Attention a = c.a;
    a.rows = 1, a.pages = pages.table.data();
    a.q += row * a.q_stride;
    if (a.begin) a.begin += row, a.end += row;
    else a.first += row;
    if (a.row_positions) a.row_positions += row;
    const Result one = run(k, a, 1, false);
    std::memcpy(&all.out[row * width], one.out.data(), width * 4);
  }
  return all;
}

// Keys of each row's path moved behind the dense ones, in order: a chain for this row alone.
static std::vector<float> as_a_chain(const Kernels& k, const Case& c, int row) {
  Attention a = c.a;
  const int n = a.end[row] - a.begin[row], slots = a.length + n;
  const size_t bytes = c.row_bytes();
  std::vector<uint8_t> keys(a.kv_heads * slots * bytes), values(keys.size());
  for (int h = 0; h < a.kv_heads; h++)
    for (int i = 0; i < slots; i++) {
      const int slot = i < a.length ? i : a.length + a.path[a.begin[row] + i - a.length];
      std::memcpy(&keys[(h * slots + i) * bytes], &c.keys[(h * c.slots + slot) * bytes], bytes);
      std::memcpy(&values[(h * slots + i) * bytes], &c.values[(h * c.slots + slot) * bytes], bytes);
    }
  Pages pages(keys, values, a.kv_heads, slots, bytes);
  a.pages = pages.table.data();
  a.q += row * a.q_stride;
  a.rows = 1, a.first = n - 1, a.begin = a.end = a.path = nullptr;
  return run(k, a, 1, false).out;
}

static void bitwise(const std::vector<Unit>& all, const Case& c) {
  const Kernels& best = *all.back().kernels;
  const bool sums = !c.s.lanes();
  const Result whole = whole_case(best, c, c.s.rows, sums);
  for (const Unit& u : all) {
    const Result other = whole_case(*u.kernels, c, c.s.rows, sums);
    check(same(whole.out, other.out), "same bits", c.s, u.name);
    check(same(whole.sums, other.sums), "same sums", c.s, u.name);
    Case again(c.s, 1, *u.kernels), first(c.s, 1, best);
    check(again.keys == first.keys && again.values == first.values, "same stored bytes", c.s, u.name);
  }
  // Of rows with paths of different lengths a slot may lie in different chunks, which are added in another order then.
  const bool apart = c.s.groups && c.s.length % edgedec::CHUNK + c.s.first + c.s.rows > edgedec::CHUNK;
  for (int tile : {1, 3, 16}) {
    const Result tiled = whole_case(best, c, tile, sums);
    check(same(whole.out, tiled.out), "same bits in tiles of rows", c.s, all.back().name);
    check(apart || same(whole.sums, tiled.sums), "same sums in tiles", c.s, all.back().name);
  }
  if (c.s.text && c.s.window) return;  // a row alone is the first of its text
  const size_t width = (size_t)c.a.heads * c.a.dim;
  for (int row : {0, c.s.rows / 2, c.s.rows - 1}) {
    const Result alone = rows_alone(best, c, {row});
    check(std::memcmp(&alone.out[row * width], &whole.out[row * width], width * 4) == 0, "a row alone", c.s, "");
    if (!c.s.tree || c.s.groups || c.s.named) continue;
    const std::vector<float> chain = as_a_chain(best, c, row);
    check(std::memcmp(chain.data(), &whole.out[row * width], width * 4) == 0, "a path as a chain", c.s, "");
  }
}

// What no row sees may hold anything.
static void unseen_garbage(const Kernels& k, const Shape& s) {
  Case c(s, 3, k);
  const Result clean = whole_case(k, c, s.rows, false);
  Case dirty = c;
  std::vector<char> used(c.slots);
  Attention unwindowed = c.a;
  if (s.named) unwindowed.window = 0;  // the window is applied key by key: what it hides is read
  for (int row = 0; row < s.rows; row++)
    for (int slot : seen(unwindowed, row)) used[slot] = 1;
  for (int i = 0; i < s.kv_heads * c.slots; i++)
    if (!used[i % c.slots]) {
      std::memset(&dirty.keys[i * c.row_bytes()], 0xff, c.row_bytes());
      std::memset(&dirty.values[i * c.row_bytes()], 0xff, c.row_bytes());
    }
  check(same(whole_case(k, dirty, s.rows, false).out, clean.out), "unseen slots do not matter", s, "");
}

// ---- formats ---------------------------------------------------------------------------------------

static double error_of(const Kernels& k, const std::vector<float>& x, int format) {
  std::vector<uint8_t> row(edgedec::kv_row_bytes((int)x.size(), format), 0xee);
  std::vector<float> y(x.size());
  k.store_kv(x.data(), (int)x.size(), format, row.data());
  k.load_kv(row.data(), (int)x.size(), format, y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); i++) {
    const double error = std::fabs((double)x[i] - y[i]);
    if (error > worst) worst = error;  // not fmax: GCC 12 for ARM fails to compile it here
  }
  return worst;
}

static void formats(const Unit& u) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (int dim : {1, 2, 3, 8, 16, 20, 31, 32, 33, 48, 63, 64, 80, 96, 100, 128, 256, 512})
    for (int format : {1, 2, 3, 4}) {
      const Shape s{dim, 1, 1, 0, 1, 0, format, 0, 0, 0, false};
      check(edgedec::kv_row_bytes(dim, format) % 4 == 0, "rows of whole words", s, u.name);
      std::vector<float> x(dim, 0.0f);
      check(error_of(*u.kernels, x, format) == 0, "zero stays zero", s, u.name);
      float top = 0, low = 1e9f, high = -1e9f;
      for (float& v : x) {
        v = normal(rng) + 0.5f;
        top = std::fmax(top, std::fabs(v)), low = std::fmin(low, v), high = std::fmax(high, v);
      }
      const double bound[] = {0, 0, top / 2000, top / 253, (high - low) / 29 + top / 200};
      check(error_of(*u.kernels, x, format) <= bound[format], "close to what was stored", s, u.name);
      for (float odd : {nan, inf, -inf, 3e38f, -3e38f, 1e-40f}) {  // must come back, whatever it is
        x[dim / 2] = odd;
        error_of(*u.kernels, x, format);
        std::vector<float> same_value(dim, odd);
        error_of(*u.kernels, same_value, format);
      }
    }
}

// ---- all of it -------------------------------------------------------------------------------------

static Shape random_shape(std::mt19937& rng) {
  auto any = [&](std::initializer_list<int> from) { return from.begin()[rng() % from.size()]; };
  Shape s{};
  s.dim = any({2, 8, 16, 20, 32, 64, 80, 128, 100});
  s.kv_heads = any({1, 2, 3});
  s.group = any({1, 2, 3, 4, 5, 7, 8});
  s.length = any({0, 1, 5, 15, 16, 17, 100, 200, 250, 255, 256, 257, 500, 1024, 1100});
  s.rows = any({1, 2, 3, 7, 20, 33, 64});
  s.first = any({0, 0, 0, 5});
  s.format = any({1, 2, 3, 4});
  s.window = any({0, 0, 1, 7, 64, 300});
  s.sinks = s.window ? any({0, 4, 20, 270}) : 0;
  s.softcap = (float)any({0, 0, 5, 30});
  s.tree = rng() % 2;
  s.groups = s.tree && rng() % 3 == 0;
  s.named = s.window && (s.groups || rng() % 2);
  return s;
}

// A text that sees all of itself, in lanes where that is possible.
static Shape random_text(std::mt19937& rng) {
  Shape s = random_shape(rng);
  s.text = true, s.tree = s.groups = s.named = false, s.first = s.sinks = 0;
  s.rows = 1 + (int)(rng() % 330);
  s.length = rng() % 3 ? 0 : s.length;
  if (rng() % 4) s.format = rng() % 2 ? edgedec::F32 : edgedec::INT8, s.window = 0, s.softcap = 0;
  return s;
}

int main(int argc, char** argv) {
  const std::vector<Unit> all = units();
  const int cases = argc > 1 ? std::atoi(argv[1]) : 150;
  for (const Unit& u : all) formats(u);
  std::mt19937 rng(argc > 2 ? (unsigned)std::atoi(argv[2]) : 11u);
  int lanes = 0, of_int8 = 0;
  for (int i = 0; i < cases; i++) {
    const Shape s = i % 3 ? random_shape(rng) : random_text(rng);
    const Case c(s, 100 + i, *all.back().kernels);
    const Oracle want = oracle(*all.back().kernels, c);
    const Result got = whole_case(*all.back().kernels, c, s.rows, !s.lanes());
    const bool int8 = s.lanes() && s.int8();
    lanes += s.lanes() && !int8, of_int8 += int8;
    if (int8) {
      // A weight may round to the other side: that is a 255th of the largest.
      check(close_on_average(got.out, oracle(*all.back().kernels, c, true).out, 3e-2, 5e-4), "near double precision, rounded", s, "");
      check(close_on_average(got.out, want.out, 0.3, 2e-2), "near what was not rounded", s, "");
    } else {
      check(close(got.out, want.out, 2e-5), "near double precision", s, "");
    }
    if (!s.lanes()) check(close(got.sums, want.sums, 2e-5), "sums near double precision", s, "");
    bitwise(all, c);
    unseen_garbage(*all.back().kernels, s);
  }
  if (cases >= 30 && !(lanes && of_int8)) failures++, std::printf("FAILED no text was computed as lanes\n");
  std::printf("%d cases on", cases);
  for (const Unit& u : all) std::printf(" %s", u.name);
  std::printf(": %d failures\n", failures);
  return failures ? 1 : 0;
}
