// Matrix products. A tile is M rows by V native vectors of outputs: its sums stay in registers while it
// runs along the inputs, and every weight byte that is read serves all M rows.
#pragma once
#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "simd/wide.h"

namespace ED_NS {

using namespace edgedec;

constexpr int AHEAD = 2048;  // prefetch distance of weights, in bytes

// Where V neighbouring native vectors of outputs have their weights and scales.
template <int V>
struct Strip {
  const uint8_t* w[V];
  const uint16_t* s[V];
  const uint8_t* z[V];  // null: no zero points
  size_t skip;       // from the end of its groups to where the next strip begins
  size_t next_zero;  // from a zero point to that of the next strip
};

// Of int4: where in its byte the zero point of vector `vec` of a strip lies.
constexpr int zero_shift(int vec) { return vec * W % LANES / 8 * 4; }

// Where zero points go: of int4 into the integer sum of a step, of int8 beside the sums of a block, which may be a step.
// OFFSET: of blocks that are a step, added to the products. PARTS: no zero points, but parts of scales; OFFSET_PARTS: of
// offsets too.
enum Zeros { NO_ZEROS, IN_STEP, BY_BLOCK, BY_STEP, OFFSET, PARTS, OFFSET_PARTS };

// Bytes of the zero points, offsets or parts of a block of a group.
constexpr int zero_line(int format, int zeros) { return LANES * 2 / (zeros == OFFSET ? 1 : format == INT4 ? 4 : 2); }

// 8 or 128 less the zero points of W outputs in the block at z, or the offsets; z goes to the next block.
template <int FORMAT, int ZEROS>
ED_IN nf next_zeros(const uint8_t*& z, int shift) {
  const uint8_t* at = z;
  z += zero_line(FORMAT, ZEROS);
  if constexpr (ZEROS == OFFSET) return nload_f16((const uint16_t*)at);
  else return FORMAT == INT4 ? nload_zeros4(at, shift) : nload_zeros8(at);
}

// How zero points of int4 are applied in tiles of many rows and of few: added to weight bytes, or as the
// initial value of the sum.
enum Begin { OFFSETS, ADDED, BEGUN };

// The codes of a format in planes, times their step (of MX4 what its table has for them), in bytes: of inputs 4 * AT to 4 * AT + 3 of 32. A plane of four bits
// is a line for 8 inputs, of two a line for 16, of one a line for all: the bits of inputs in a row lie 4, 2 or 1 apart.
template <int FORMAT, int AT>
ED_IN auto plane_bytes(const uint8_t* step) {
  if constexpr (FORMAT == INT5 || FORMAT == INT6 || FORMAT == MX4) {
    const auto low = nbits<AT % 2 * 4, 15>(nbytes(step + 64 * (AT / 2)));
    if constexpr (FORMAT == MX4) return nlooked(low);
    else if constexpr (FORMAT == INT5) return nor8(low, nbits<AT - 4, 16>(nbytes(step + 256)));
    else return nor8(low, nbits<2 * (AT % 4) - 4, 48>(nbytes(step + 256 + 64 * (AT / 4))));
  } else {
    const auto low = nbytes(step + 64 * (AT / 4));
    if constexpr (FORMAT == UINT2) return nbits<2 * (AT % 4), 3>(low);
    else if constexpr (FORMAT == INT2) return nbits<2 * (AT % 4) - 1, 6>(low);
    else return nor8(nbits<2 * (AT % 4), 3>(low), nbits<AT - 2, 4>(nbytes(step + 128)));
  }
}

#ifndef ED_OWN_STEP
// The nibbles of 64 bytes, and what is added to each.
template <int HOW, class Bytes>
ED_IN Pair shifted_nibbles(const uint8_t* p, [[maybe_unused]] Bytes shifted) {
  Pair pair = nibbles(nbytes(p));
  if constexpr (HOW == ADDED) pair = {nadd8(pair.lo, shifted), nadd8(pair.hi, shifted)};
  return pair;
}

template <int HOW, class Zeros>
ED_IN acc4 begun4(int c, [[maybe_unused]] Zeros zeros) {
  if constexpr (HOW == BEGUN) return begin_zeros4(zeros, c);
  else return begin4(c);
}

// Products of four inputs whose sum 16 bits hold, where they are added up in as many.
constexpr int dots_of(int format, int step) { return !SUMS16 ? step / 4 : format == INT6 ? 2 : format == INT5 || format == MX4 ? 4 : 8; }

// sum[m][v] = the STEP inputs at x[m] times the weights at w[v], and c[m] (BEGUN: times zeros[v]); ADDED: zeros[v] is added to
// each of those weights. In planes: from the four inputs FIRST of 32 on.
template <int FORMAT, int STEP, int M, int V, int HOW, int FIRST>
ED_IN void step_sums(const uint8_t* const* w, size_t ahead, const int8_t* const* x, const int* c, const ni* zeros,
                     ni (&sum)[M][V]) {
  if constexpr (FORMAT == INT4) {
    acc4 part[M][V];
    each<M>([&](auto m) ED_INLINED { each<V>([&](auto v) ED_INLINED { part[m][v] = begun4<HOW>(c[m], zeros[v]); }); });
    each<STEP / 8>([&](auto j) ED_INLINED {
      Pair pair[V];
      each<V>([&](auto v) ED_INLINED {
        nprefetch(w[v] + ahead + 64 * j);
        pair[v] = shifted_nibbles<HOW>(w[v] + 64 * j, zeros[v]);
      });
      each<M>([&](auto m) ED_INLINED {
        const auto x0 = nspread(x[m] + 8 * j), x1 = nspread(x[m] + 8 * j + 4);
        each<V>([&](auto v) ED_INLINED { part[m][v] = dot4(part[m][v], pair[v].lo, x0); });
        each<V>([&](auto v) ED_INLINED { part[m][v] = dot4(part[m][v], pair[v].hi, x1); });
      });
    });
    each<M>([&](auto m) ED_INLINED { each<V>([&](auto v) ED_INLINED { sum[m][v] = end4(part[m][v], c[m]); }); });
  } else if constexpr (in_planes(FORMAT)) {
    constexpr int DOTS = std::min(dots_of(FORMAT, STEP), STEP / 4);
    if constexpr (FIRST == 0)
      each<V>([&](auto v) ED_INLINED {
        each<step_lines(FORMAT, 32)>([&](auto j) ED_INLINED { nprefetch(w[v] + ahead + 64 * j); });
      });
    each<STEP / 4 / DOTS>([&](auto k) ED_INLINED {
      acc4 part[M][V];
      const auto begun = [&](auto m) ED_INLINED { return k == 0 ? c[m] : 0; };
      each<M>([&](auto m) ED_INLINED { each<V>([&](auto v) ED_INLINED { part[m][v] = begin4(begun(m)); }); });
      each<DOTS>([&](auto i) ED_INLINED {
        constexpr int j = k * DOTS + i;
        w4 ready[V];
        each<V>([&](auto v) ED_INLINED { ready[v] = ready4(plane_bytes<FORMAT, FIRST + j>(w[v])); });
        each<M>([&](auto m) ED_INLINED {
          const auto x0 = nspread(x[m] + 4 * j);
          each<V>([&](auto v) ED_INLINED { part[m][v] = dot4(part[m][v], ready[v], x0); });
        });
      });
      each<M>([&](auto m) ED_INLINED {
        each<V>([&](auto v) ED_INLINED {
          const ni all = end4(part[m][v], begun(m));
          sum[m][v] = k == 0 ? all : niadd(sum[m][v], all);
        });
      });
    });
  } else if constexpr (FORMAT == NL4) {
    acc8 part[M][V];
    each<M>([&](auto m) ED_INLINED { each<V>([&](auto v) ED_INLINED { part[m][v] = begin8(c[m]); }); });
    each<STEP / 8>([&](auto j) ED_INLINED {
      Looked pair[V];
      each<V>([&](auto v) ED_INLINED {
        nprefetch(w[v] + ahead + 64 * j);
        pair[v] = looked_up(nbytes(w[v] + 64 * j));
      });
      each<M>([&](auto m) ED_INLINED {
        const auto x0 = nspread(x[m] + 8 * j), x1 = nspread(x[m] + 8 * j + 4);
        each<V>([&](auto v) ED_INLINED { part[m][v] = dot8(part[m][v], pair[v].lo, x0); });
        each<V>([&](auto v) ED_INLINED { part[m][v] = dot8(part[m][v], pair[v].hi, x1); });
      });
    });
    each<M>([&](auto m) ED_INLINED { each<V>([&](auto v) ED_INLINED { sum[m][v] = end8(part[m][v], c[m]); }); });
  } else {
    acc8 part[M][V];
    each<M>([&](auto m) ED_INLINED { each<V>([&](auto v) ED_INLINED { part[m][v] = begin8(c[m]); }); });
    each<STEP / 4>([&](auto j) ED_INLINED {
      w8 ready[V];
      each<V>([&](auto v) ED_INLINED {
        nprefetch(w[v] + ahead + 64 * j);
        ready[v] = ready8(nbytes(w[v] + 64 * j));
      });
      each<M>([&](auto m) ED_INLINED {
        const auto x0 = nspread(x[m] + 4 * j);
        each<V>([&](auto v) ED_INLINED { part[m][v] = dot8(part[m][v], ready[v], x0); });
      });
    });
    each<M>([&](auto m) ED_INLINED { each<V>([&](auto v) ED_INLINED { sum[m][v] = end8(part[m][v], c[m]); }); });
  }
}
#endif

// A product of a row with one scale each.
ED_IN nf scaled_sum(ni sum, const uint16_t* weights, float scale) { return nmul(nfloat(sum), nmul(nload_f16(weights), nset(scale))); }

// Sums of M rows by V vectors: in registers where there is room for them beside those of a step, else in memory.
template <int M, int V, bool KEPT>
struct Sums {
  nf kept[KEPT ? M : 1][KEPT ? V : 1];
  float* memory;

  ED_METHOD nf get(int m, int v) const { return KEPT ? kept[m][v] : nload(memory + (m * V + v) * W); }
  ED_METHOD void set(int m, int v, nf x) { KEPT ? (void)(kept[m][v] = x) : nstore(memory + (m * V + v) * W, x); }
};

// sums[m * V + v] = row m0 + m times vector v. Not inlined, because its registers would be shared with the caller's.
template <int FORMAT, int STEP, int M, int V, int ZEROS>
ED_APART void tile(const Strip<V>& at, int per_block, const QuantizedActivations& a, int m0, float* sums) {
  constexpr bool PARTED = ZEROS == PARTS || ZEROS == OFFSET_PARTS;  // whose planes are of two steps
  constexpr int AT_ONCE = PARTED ? 2 : 1;
  constexpr int LINES = step_lines(FORMAT, AT_ONCE * STEP);  // 64 bytes each
  // Of one or two rows there are more bytes than sums.
  constexpr int HOW = ZEROS != IN_STEP || !ZERO_BYTES ? OFFSETS : M > 2 ? ADDED : BEGUN;
  constexpr int S = step_vectors(M, V);
  constexpr bool KEEPS = keeps_sums(M, V), KEEPS_BOTH = keeps_sums(2 * M, V);
  static_assert(V % NV == 0, "a strip begins with a group");
  const int8_t* x[M];
  const uint8_t* w[V];
  const uint16_t* s[V];
  [[maybe_unused]] const uint8_t* z[V];
  alignas(64) float of_block[ZEROS == BY_BLOCK ? M * V * W : 1];
  Sums<M, V, KEEPS> acc;  // with zero points by block, of the block: `whole` has those before
  [[maybe_unused]] Sums<M, V, KEEPS_BOTH> whole;
  acc.memory = ZEROS == BY_BLOCK ? of_block : sums, whole.memory = sums;
  const auto about = [&](int m) ED_INLINED -> const QuantizedActivations::Step& {
    return *(const QuantizedActivations::Step*)(x[m] + STEP);
  };
  each<M>([&](auto m) ED_INLINED { x[m] = a.record(m0 + m, 0); });
  each<V>([&](auto v) ED_INLINED { w[v] = at.w[v], s[v] = at.s[v], z[v] = at.z[v]; });
  each<M>([&](auto m) ED_INLINED { each<V>([&](auto v) ED_INLINED { acc.set(m, v, nzero()); }); });
  if constexpr (ZEROS == BY_BLOCK)
    each<M>([&](auto m) ED_INLINED { each<V>([&](auto v) ED_INLINED { whole.set(m, v, nzero()); }); });
  // After the last weights of this strip, those of the next one are prefetched.
  const int last = a.steps - AT_ONCE * (AHEAD / (64 * LINES));
  size_t ahead = AHEAD;
  [[maybe_unused]] nf zero[V], scales[V];
  [[maybe_unused]] ni int_zero[V];
  const auto begin_block = [&](auto v) ED_INLINED {
    // The next strip's weights: the run is too short for hardware prefetching. Once per cache line where
    // loads are the bottleneck.
    if (M > 2 || ((uintptr_t)z[v] & 63) < (uintptr_t)zero_line(FORMAT, ZEROS)) nprefetch(z[v] + at.next_zero);
    if constexpr (ZEROS == PARTS) {
      scales[v] = nmul(nload_i8((const int8_t*)z[v]), nload_f16(s[v])), z[v] += LANES;
    } else if constexpr (ZEROS == OFFSET_PARTS) {
      nf low, high;
      nload_nibbles(z[v], low, high);
      scales[v] = nmul(low, nload_f16(s[v])), zero[v] = nmul(high, nload_f16(s[v] + LANES)), z[v] += LANES;
    } else if constexpr (HOW == ADDED) {
      int_zero[v] = nspread_zeros4(z[v], zero_shift(v)), z[v] += LANES / 2;
    } else if constexpr (HOW == BEGUN) {
      int_zero[v] = nint_zeros4(z[v], zero_shift(v)), z[v] += LANES / 2;
    } else {
      zero[v] = next_zeros<FORMAT, ZEROS>(z[v], zero_shift(v));
      if (ZEROS == BY_BLOCK) each<M>([&](auto m) ED_INLINED { acc.set(m, v, nmul(zero[v], nset(about(m).sum))); });
    }
  };
  const auto add = [&](auto m, auto v, ni sum, nf ws) ED_INLINED {
    const nf scale = nset(about(m).scale);
    nf y = nfloat(sum);
    if (ZEROS == BY_BLOCK) return acc.set(m, v, nfma(y, scale, acc.get(m, v)));
    if (ZEROS == BY_STEP) return acc.set(m, v, nfma(ws, nfma(y, scale, nmul(zero[v], nset(about(m).sum))), acc.get(m, v)));
    if (ZEROS == OFFSET || ZEROS == OFFSET_PARTS) return acc.set(m, v, nfma(ws, nmul(y, scale), nfma(zero[v], nset(about(m).sum), acc.get(m, v))));
    if (ZEROS == IN_STEP && HOW == OFFSETS) y = nfma(zero[v], nset(about(m).sum), y);  // exact: below 2^24
    acc.set(m, v, nfma(y, nmul(ws, scale), acc.get(m, v)));
  };
  const auto step = [&](auto v0, auto half) ED_INLINED {  // of vectors v0 to v0 + S - 1
    constexpr int FIRST = half * STEP / 4;
    ni sum[M][S];
    int c[M];
    each<M>([&](auto m) ED_INLINED { c[m] = HOW == BEGUN ? about(m).less : about(m).offset; });
#ifdef ED_OWN_STEP
    step_sums<FORMAT, STEP, M, S, FIRST>(w + v0, x, c, sum);
#else
    step_sums<FORMAT, STEP, M, S, HOW, FIRST>(w + v0, ahead, x, c, int_zero + v0, sum);
#endif
    each<S>([&](auto i) ED_INLINED {
      [[maybe_unused]] const nf ws = ZEROS == BY_BLOCK ? nzero() : PARTED ? scales[v0 + i] : nload_f16(s[v0 + i]);
      each<M>([&](auto m) ED_INLINED { add(m, v0 + i, sum[m][i], ws); });
    });
  };
  const auto end_block = [&](auto v) ED_INLINED {
    if constexpr (ZEROS == BY_BLOCK) {
      const nf ws = nload_f16(s[v]);
      each<M>([&](auto m) ED_INLINED { whole.set(m, v, nfma(ws, acc.get(m, v), whole.get(m, v))); });
    }
    s[v] += LANES;
  };
  const auto steps = [&](auto half) ED_INLINED {  // one, of all vectors
#ifdef ED_OWN_STEP
    if constexpr (half == 0)
      for (int j = 0; j < LINES; j++) nprefetch(w[0] + ahead + 64 * j);
#pragma GCC unroll 1  // or else sums leave their registers
    for (int v = 0; v < V; v += S) step(v, half);
#else
    each<V / S>([&](auto part) ED_INLINED { step(std::integral_constant<int, part * S>(), half); });
#endif
    each<M>([&](auto m) ED_INLINED { x[m] += QuantizedActivations::record_bytes(STEP); });
  };
  const auto next_weights = [&](auto v) ED_INLINED { w[v] += 64 * LINES; };
  if constexpr (PARTED) {
    for (int t = 0; t < a.steps; t += 2) {
      if (t == last) ahead += at.skip;
      each<2>([&](auto half) ED_INLINED { each<V>(begin_block), steps(half); });
      each<V>(next_weights);
      if (t % (SUPER / STEP) == SUPER / STEP - 2)
        each<V>([&](auto v) ED_INLINED { s[v] += LANES * (ZEROS == OFFSET_PARTS ? 2 : 1); });
    }
  } else {
    for (int t = 0; t < a.steps;) {
      if constexpr (ZEROS) each<V>(begin_block);
      for (const int end = t + per_block; t < end; t++) {
        if (t == last) ahead += at.skip;
        steps(std::integral_constant<int, 0>());
        each<V>(next_weights);
      }
      each<V>(end_block);
    }
  }
  const auto store = [&](const auto& from) ED_INLINED {
    each<M>([&](auto m) ED_INLINED { each<V>([&](auto v) ED_INLINED { nstore(sums + (m * V + v) * W, from.get(m, v)); }); });
  };
  if constexpr (ZEROS == BY_BLOCK && KEEPS_BOTH) store(whole);
  if constexpr (ZEROS != BY_BLOCK && KEEPS) store(acc);
}

// sums[m * V + v] = row m0 + m times vector v, of matrices with one scale a row.
template <int M, int V>
ED_APART void row_tile(const Strip<V>& at, int kpad, const QuantizedActivations& a, int m0, float* sums) {
  const int8_t* x[M];
  const uint8_t* w[V];
  ni acc[M][V];
  each<M>([&](auto m) ED_INLINED { x[m] = a.record(m0 + m, 0); });
  each<V>([&](auto v) ED_INLINED { w[v] = at.w[v]; });
  each<M>([&](auto m) ED_INLINED { each<V>([&](auto v) ED_INLINED { acc[m][v] = niset(a.about(m0 + m, 0).offset); }); });
  // As in `tile`.
  const int last = kpad - 32 * (AHEAD / (64 * 8));
  size_t ahead = AHEAD;
  for (int k = 0; k < kpad; k += 32) {
    if (k == last) ahead += at.skip;
#ifdef ED_OWN_STEP
    constexpr int S = step_vectors(M, V);
    const int none[M] = {};
    for (int j = 0; j < 8; j++) nprefetch(w[0] + ahead + 64 * j);
#pragma GCC unroll 1
    for (int v0 = 0; v0 < V; v0 += S) {
      ni sum[M][S];
      step_sums<INT8, 32, M, S, 0>(w + v0, x, none, sum);
      each<M>([&](auto m) ED_INLINED { each<S>([&](auto i) ED_INLINED { acc[m][v0 + i] = niadd(acc[m][v0 + i], sum[m][i]); }); });
    }
#else
    each<8>([&](auto j) ED_INLINED {
      w8 ready[V];
      each<V>([&](auto v) ED_INLINED {
        nprefetch(w[v] + ahead + 64 * j);
        ready[v] = ready8(nbytes(w[v] + 64 * j));
      });
      each<M>([&](auto m) ED_INLINED {
        const auto x0 = nspread(x[m] + 4 * j);
        each<V>([&](auto v) ED_INLINED { acc[m][v] = dot8(acc[m][v], ready[v], x0); });
      });
    });
#endif
    each<M>([&](auto m) ED_INLINED { x[m] += 32; });
    each<V>([&](auto v) ED_INLINED { w[v] += 64 * 8; });
  }
  each<M>([&](auto m) ED_INLINED {
    each<V>([&](auto v) ED_INLINED {
      nstore(sums + (m * V + v) * W, scaled_sum(acc[m][v], at.s[v], a.about(m0 + m, 0).scale));
    });
  });
}

// m rows by tiles of M, M / 2, ... rows.
template <int FORMAT, int STEP, int V, int ZEROS, int M>
ED_IN void tiles_of(int m, const Strip<V>& at, int per_block, const QuantizedActivations& a, int m0, float* sums) {
  for (; m >= M; m -= M, m0 += M, sums += M * V * W) tile<FORMAT, STEP, M, V, ZEROS>(at, per_block, a, m0, sums);
  if constexpr (M > 1) tiles_of<FORMAT, STEP, V, ZEROS, M / 2>(m, at, per_block, a, m0, sums);
}

// m rows by a tile for so many. Rare cases (a remaining vector, blocks of 16, zero points of int8 in blocks
// of 32, its offsets, types of GGUF) have few tiles, because each takes long to compile.
template <int FORMAT, int STEP, int V, int ZEROS = NO_ZEROS, int M = TILE_M>
ED_IN void tile_of(int m, const Strip<V>& at, int per_block, const QuantizedActivations& a, int m0, float* sums) {
  if constexpr (V < TILE_V || STEP == 16 || FORMAT > INT2 || ZEROS == BY_STEP || (ZEROS == OFFSET && FORMAT == INT8)) {
    tiles_of<FORMAT, STEP, V, ZEROS, std::min(TILE_M, 4)>(m, at, per_block, a, m0, sums);
  } else {
    if constexpr (M > 1)
      if (m < M) return tile_of<FORMAT, STEP, V, ZEROS, M - 1>(m, at, per_block, a, m0, sums);
    tile<FORMAT, STEP, M, V, ZEROS>(at, per_block, a, m0, sums);
  }
}

// Rows of the largest `row_tile` of V vectors; a remaining vector has few tiles here, too.
constexpr int row_tile_rows(int v) { return v < TILE_V ? std::min(ROWS_M, 4) : ROWS_M; }

template <int V, int M = row_tile_rows(V)>
static void row_tile_of(int m, const Strip<V>& at, int kpad, const QuantizedActivations& a, int m0, float* sums) {
  if constexpr (M > 1)
    if (m < M) return row_tile_of<V, M - 1>(m, at, kpad, a, m0, sums);
  row_tile<M, V>(at, kpad, a, m0, sums);
}

template <int V>
static void quantized_tile(const Matrix& w, const Strip<V>& at, int m, const QuantizedActivations& a, int m0, float* sums) {
  int per_block = w.block == 16 ? 1 : w.block / 32;
  if (w.parts())
    w.format == UINT2  ? tile_of<UINT2, 16, V, OFFSET_PARTS>(m, at, per_block, a, m0, sums)
    : w.format == INT3 ? tile_of<INT3, 16, V, PARTS>(m, at, per_block, a, m0, sums)
                       : tile_of<INT6, 16, V, PARTS>(m, at, per_block, a, m0, sums);
  else if (w.offsets)
    w.format == INT4   ? tile_of<INT4, 32, V, OFFSET>(m, at, per_block, a, m0, sums)
    : w.format == INT5 ? tile_of<INT5, 32, V, OFFSET>(m, at, per_block, a, m0, sums)
                       : tile_of<INT8, 32, V, OFFSET>(m, at, per_block, a, m0, sums);
  else if (w.zeros_in_steps())
    tile_of<INT4, 32, V, IN_STEP>(m, at, per_block, a, m0, sums);
  else if (w.zeros)
    per_block == 1 ? tile_of<INT8, 32, V, BY_STEP>(m, at, per_block, a, m0, sums)
                   : tile_of<INT8, 32, V, BY_BLOCK>(m, at, per_block, a, m0, sums);
  else if (w.format == NL4)
    tile_of<NL4, 32, V>(m, at, per_block, a, m0, sums);
  else if (w.format == MX4)
    tile_of<MX4, 32, V>(m, at, per_block, a, m0, sums);
  else if (w.format == INT5)
    tile_of<INT5, 32, V>(m, at, per_block, a, m0, sums);
  else if (w.format == INT3)
    tile_of<INT3, 32, V>(m, at, per_block, a, m0, sums);
  else if (w.format == INT2)
    tile_of<INT2, 32, V>(m, at, per_block, a, m0, sums);
  else if (w.format == INT4)
    w.step() == 32 ? tile_of<INT4, 32, V>(m, at, per_block, a, m0, sums)
                   : tile_of<INT4, 16, V>(m, at, per_block, a, m0, sums);
  else
    w.step() == 32 ? tile_of<INT8, 32, V>(m, at, per_block, a, m0, sums)
                   : tile_of<INT8, 16, V>(m, at, per_block, a, m0, sums);
}

// The zero points, offsets or parts of group `group` of a matrix that lies row by row, in the packed layout.
static void pack_zeros(const Matrix& w, int group, uint8_t* zeros) {
  const int blocks = w.blocks(), rows = std::min(LANES, w.n - group * LANES);
  std::memset(zeros, 0, w.packed_zero_bytes());
  if (w.parts()) {
    for (int r = 0; r < rows; r++)
      for (int b = 0; b < blocks; b++) zeros[b * LANES + r] = w.zeros[(size_t)(group * LANES + r) * blocks + b];
    return;
  }
  if (w.offsets) {
    const uint16_t* from = (const uint16_t*)w.zeros + (size_t)group * LANES * blocks;
    for (int r = 0; r < rows; r++)
      for (int b = 0; b < blocks; b++) ((uint16_t*)zeros)[b * LANES + r] = from[(size_t)r * blocks + b];
    return;
  }
  for (int r = 0; r < rows; r++)
    for (int b = 0; b < blocks; b++) {
      const int zero = w.zero(group * LANES + r, b);
      if (w.format == INT4) zeros[b * 8 + r % 8] |= (uint8_t)(zero << r / 8 * 4);
      else zeros[b * LANES + r] = (uint8_t)zero;
    }
}

// What missing rows are made of, by format; their scales are 0.
constexpr uint8_t FILLERS[] = {0, 0, 0, 0x80, 0x88, 0, 0, 0, 0, 0, 0, 0};

// Group `group` of a matrix that lies row by row, in the packed layout; missing rows stand for zero.
static void pack_group(const Matrix& w, int group, uint8_t* data, uint16_t* scales, uint8_t* zeros) {
  size_t row_bytes = w.group_bytes() / LANES;
  const int count = w.scale_count();
  if (w.zeros) pack_zeros(w, group, zeros);
  if ((group + 1) * LANES <= w.n && row_bytes % 16 == 0) {
    const uint8_t* from = w.data + (size_t)group * LANES * row_bytes;
    for (size_t at = 0; at < row_bytes; at += 16)
      for (int r = 0; r < LANES; r += 4) transpose4x4(from + r * row_bytes + at, row_bytes, data + at * 16 + r * 4, 64);
    const uint16_t* scale = w.scales + (size_t)group * LANES * count;
    for (int b = 0; b < count; b++)
      for (int r = 0; r < LANES; r++) scales[b * LANES + r] = scale[(size_t)r * count + b];
    return;
  }
  for (int r = 0; r < LANES; r++) {
    int n = group * LANES + r;
    if (n >= w.n) {
      for (size_t j = 0; j < row_bytes / 4; j++) std::memset(data + j * 64 + r * 4, FILLERS[w.format], 4);
      for (int b = 0; b < count; b++) scales[b * LANES + r] = 0;
      continue;
    }
    const uint8_t* from = w.data + n * row_bytes;
    for (size_t j = 0; j < row_bytes / 4; j++) std::memcpy(data + j * 64 + r * 4, from + j * 4, 4);
    for (int b = 0; b < count; b++) scales[b * LANES + r] = w.scales[(size_t)n * count + b];
  }
}

// The strip of native vectors vec to vec + V - 1 of the outputs (NV of them a group).
template <int V>
ED_IN Strip<V> strip(const Matrix& w, int vec, uint8_t* scratch) {
  Strip<V> at;
  at.skip = w.layout == ROWS ? 0 : (size_t)((V - 1) / NV) * w.group_bytes();
  at.next_zero = w.layout == ROWS ? 0 : (size_t)((V - 1) / NV + 1) * w.zero_bytes();
  int packed = -1;
  size_t group_bytes = w.group_bytes(), group_scales = (size_t)w.scale_count() * LANES;
  for (int v = 0; v < V; v++) {
    int group = (vec + v) / NV, lane = (vec + v) % NV * W;
    const uint8_t* data = w.data + group * group_bytes;
    const uint16_t* scales = w.scales + group * group_scales;
    const uint8_t* zeros = w.zeros;
    if (w.layout == ROWS) {
      uint8_t* to = scratch + (group - vec / NV) * w.packed_bytes();
      uint8_t* packed_zeros = to + group_bytes + group_scales * 2;
      if (group != packed) pack_group(w, group, to, (uint16_t*)(to + group_bytes), packed_zeros);
      packed = group;
      data = to, scales = (const uint16_t*)(to + group_bytes), zeros = zeros ? packed_zeros : nullptr;
    } else if (zeros) {
      zeros += group * w.zero_bytes();
    }
    at.w[v] = data + lane * 4, at.s[v] = scales + lane;
    at.z[v] = !zeros ? nullptr : zeros + (w.offsets == 1 ? 2 * lane : w.zeros_in_steps() ? lane % 8 : lane);
  }
  return at;
}

// ---- float weights -----------------------------------------------------------------------------

template <int FORMAT>
ED_IN vf float_weights(const Matrix& w, int n, int k) {
  int left = w.k - k;
  size_t at = (size_t)n * w.k + k;
  if constexpr (FORMAT == F32) return vload_n((const float*)w.data + at, left);
  const uint16_t* p = (const uint16_t*)w.data + at;
  if (left >= 16) return vload_f16(p);
  uint16_t t[16] = {};
  std::memcpy(t, p, 2 * left);
  return vload_f16(t);
}

// sums[m * stride] = rows m0 .. m0 + M - 1 times output n, in sixteen lanes.
template <int FORMAT, int M>
ED_IN void float_dots(const Matrix& w, int n, const float* x, int m0, float* sums, int stride) {
  vf acc[M];
  for (int m = 0; m < M; m++) acc[m] = vset(0.0f);
  for (int k = 0; k < w.k; k += 16) {
    vf weights = float_weights<FORMAT>(w, n, k);
    for (int m = 0; m < M; m++) acc[m] = vfma(vload_n(x + (size_t)(m0 + m) * w.k + k, w.k - k), weights, acc[m]);
  }
  for (int m = 0; m < M; m++) sums[m * stride] = vsum(acc[m]);
}

template <int FORMAT>
static void float_tile(const Matrix& w, int n, int count, int m, const float* x, int m0, float* sums, int stride) {
  for (int i = 0; i < count; i++) {
    if (n + i >= w.n) {
      for (int j = 0; j < m; j++) sums[j * stride + i] = 0.0f;
      continue;
    }
    int j = 0;
    for (; j + 4 <= m; j += 4) float_dots<FORMAT, 4>(w, n + i, x, m0 + j, sums + j * stride + i, stride);
    for (; j < m; j++) float_dots<FORMAT, 1>(w, n + i, x, m0 + j, sums + j * stride + i, stride);
  }
}

// ---- the epilogue ------------------------------------------------------------------------------

// What a product's sums become: with its bias, and of GLU with the sums of the gate and their bias.
ED_IN nf finished(const Product& p, nf y, nf bias, [[maybe_unused]] nf gate, [[maybe_unused]] nf gate_bias) {
  if (p.bias) y = nadd(y, bias);
  if (p.epilogue == GLU) y = nglu(p.bias ? nadd(gate, gate_bias) : gate, y, p.activation);
  if (p.epilogue == ACTIVATE) y = nactivate(y, p.activation);
  if (p.softcap > 0.0f) y = nmul(ntanh(ndiv(y, nset(p.softcap))), nset(p.softcap));
  return y;
}

// The first `left` of a vector: a copy of whole ones would wait for its own stores.
ED_IN nf nload_edge(const float* from, int left) {
  if (left >= W) return nload(from);
  float edge[W] = {};
  for (int j = 0; j < left; j++) edge[j] = from[j];
  return nload(edge);
}

// sums of m rows from row m0 and output n on, V vectors each -> out.
template <int V>
ED_IN void put(const Product& p, int m0, int m, int n, const float* sums, const float* gates) {
  const int total = p.epilogue == GLU ? p.w.n / 2 : p.w.n, ups = p.epilogue == GLU ? total : 0;
  nf bias[V], gate_bias[V];
  for (int v = 0; v < V; v++) {
    const int left = p.bias ? total - n - v * W : 0;
    bias[v] = left > 0 ? nload_edge(p.bias + ups + n + v * W, left) : nzero();
    gate_bias[v] = left > 0 && ups ? nload(p.bias + n + v * W) : nzero();  // GLU has whole groups only
  }
  for (int j = 0; j < m; j++, sums += V * W, gates += V * W) {
    float* out = p.out + (m0 + j) * p.stride + n;
    for (int v = 0; v < V; v++, out += W) {
      const int left = total - n - v * W;
      if (left <= 0) break;
      const nf y = finished(p, nload(sums + v * W), bias[v], ups ? nload(gates + v * W) : nzero(), gate_bias[v]);
      if (left >= W) {
        nstore(out, p.epilogue == ADD ? nadd(nload(out), y) : y);
      } else {
        float edge[W];
        nstore(edge, y);
        for (int i = 0; i < left; i++) out[i] = p.epilogue == ADD ? out[i] + edge[i] : edge[i];
      }
    }
  }
}

// `run(strip, first vector, m0, m, sums)` sums a tile of up to `most` rows, at most MOST; more are cut into tiles of `many`,
// as equal as can be (7 rows are 4 and 3, not 6 and 1) or as large.
template <int V, int MOST, bool EQUAL, class Run>
ED_IN void strip_product(const Product& p, int vec, uint8_t* scratch, int most, int many, Run run) {
  constexpr int WIDE = V * W;
  alignas(64) float sums[MOST * WIDE], gate[MOST * WIDE];
  bool quantized = p.w.quantized(), glu = p.epilogue == GLU;
  int up = glu ? p.w.n / 2 / W : 0;  // the vector where the second half begins
  Strip<V> first{}, second{};
  if (quantized) {
    second = strip<V>(p.w, vec + up, scratch);
    if (glu) first = strip<V>(p.w, vec, scratch + p.w.scratch() / 2);
  }
  const int tiles = p.rows <= most ? 1 : (p.rows + many - 1) / many;
  const auto cut = [&](int i) ED_INLINED { return i == tiles ? p.rows : EQUAL ? (int)((int64_t)p.rows * i / tiles) : i * many; };
  for (int i = 0; i < tiles; i++) {
    const int m0 = cut(i), m = cut(i + 1) - m0;
    if (glu) run(first, vec, m0, m, gate);
    run(second, vec + up, m0, m, sums);
    put<V>(p, m0, m, vec * W, sums, gate);
  }
}

template <int V>
static void strip_product(const Product& p, int vec, uint8_t* scratch) {
  constexpr int ROWS = row_tile_rows(V);
  const bool by_row = p.w.row_scales();
  const int most = by_row ? ROWS : TILE_M, many = by_row ? ROWS : TILE_MANY;
  const auto run = [&](const Strip<V>& at, int from, int m0, int m, float* to) {
    constexpr int WIDE = V * W;
    if (by_row) row_tile_of<V>(m, at, p.w.kpad(), p.a, m0, to);
    else if (p.w.quantized()) quantized_tile<V>(p.w, at, m, p.a, m0, to);
    else if (p.w.format == F32) float_tile<F32>(p.w, from * W, WIDE, m, p.a.x, m0, to, WIDE);
    else float_tile<F16>(p.w, from * W, WIDE, m, p.a.x, m0, to, WIDE);
  };
  strip_product<V, std::max(TILE_M, ROWS), true>(p, vec, scratch, most, many, run);
}

static void product(const Product& p, int group0, int group1, uint8_t* scratch) {
  int vec = group0 * NV, end = group1 * NV;
  for (; vec + TILE_V <= end; vec += TILE_V) strip_product<TILE_V>(p, vec, scratch);
  if constexpr (NV % TILE_V != 0)
    for (; vec < end; vec++) strip_product<1>(p, vec, scratch);
}

}  // namespace ED_NS
