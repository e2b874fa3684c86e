// Operations before products: embedding rows, norms, quantization of rows (kernels/cuda/prepare.h).
typedef struct { float mean, scale; } Stats;

// Of one row, by all threads of the block, sixteen of which read it; `lanes` [16]. No barrier is inside a
// branch, here and in all kernels: OpenCL compilers for CPUs duplicate the code after such a branch.
static inline Stats row_stats(__global const float* x, Norm norm, int n, __local float* lanes) {
  Stats s = {0.0f, 1.0f};
  float sum = 0.0f, squares = 0.0f;
  BARRIER;
  if (THREAD < LANES) {
    for (int i = THREAD; i < (norm.kind == LAYER ? n : 0); i += LANES) sum = sum + x[i];
    lanes[THREAD] = sum;
  }
  BARRIER;
  if (norm.kind == LAYER) s.mean = divide(sum_lanes(lanes), (float)n);
  BARRIER;
  if (THREAD < LANES) {
    for (int i = THREAD; i < (norm.kind == NO_NORM ? 0 : n); i += LANES) {
      const float d = norm.kind == LAYER ? x[i] - s.mean : x[i];
      squares = fma(d, d, squares);
    }
    lanes[THREAD] = squares;
  }
  BARRIER;
  const float size = divide(sum_lanes(lanes), (float)n);
  if (norm.kind != NO_NORM) s.scale = size <= LARGEST ? divide(1.0f, root(size + norm.eps)) : as_float(0x7fc00000u);
  return s;
}

static inline float normed(float x, Norm norm, Stats s, int i) {
  if (norm.kind == NO_NORM) return x;
  const float weight = AT(const float, norm.weight)[i];
  if (norm.kind == RMS) return x * s.scale * weight;
  const float y = (x - s.mean) * s.scale * weight;
  return norm.bias ? y + AT(const float, norm.bias)[i] : y;
}

// All threads go around equally often: of a loop from THREAD to n, PoCL runs threads from n on too, if n has been the
// bound of an earlier loop that wrote x.
static inline void norm_in_place(__global float* x, Norm norm, Stats s, int n) {
  for (int from = 0; from < (norm.kind == NO_NORM ? 0 : n); from += THREADS) {
    const int i = from + THREAD;
    if (i < n) x[i] = normed(x[i], norm, s, i);
  }
}

// One step of a row: 32 inputs, or 16, zeros after the last; of int4 every eight in the order 0 2 4 6 1 3 5 7.
static inline void quantize_step(__global const float* x, Norm norm, Stats stats, Weights w, Prepared to, int t) {
  const int size = step_size(w), from = t * size;
  float v[32], top = 0.0f, nothing = 0.0f;  // 0; NaN of a NaN or an infinity: then the scale is, and so all outputs
  for (int j = 0; j < size; j++) {
    v[j] = from + j < w.k ? normed(x[from + j], norm, stats, from + j) : 0.0f;
    top = larger(fabs(v[j]), top);
    nothing = nothing + (v[j] - v[j]);
  }
  const float scale = top + nothing, inverse = scale > 0.0f ? divide(127.0f, scale) : 0.0f;
  __global uint* q = AT(uint, to.q) + from / 4;
  int sum = 0;
  for (int e = 0; e < size; e += 8) {
    uint words[2] = {0, 0};
    for (int j = 0; j < 8; j++) {
      const int value = (char)(round_int(v[e + j] * inverse) & 255), word = w.format == INT4 ? j & 1 : j >> 2;
      words[word] |= (uint)(value & 255) << 8 * (w.format == INT4 ? j >> 1 : j & 3);
      sum += value;
    }
    q[e / 4] = words[0], q[e / 4 + 1] = words[1];
  }
  AT(float, to.scale)[t] = scale * (1.0f / 127.0f);
  AT(int, to.sum)[t] = sum;
}

// The sums of blocks, after all steps of the row are there.
static inline void sum_blocks(Weights w, Prepared to) {
  const int each = block_steps(w);
  for (int b = THREAD; b < blocks_of(w); b += THREADS) {
    float total = 0.0f;
    for (int t = b * each; t < (b + 1) * each; t++) total = total + AT(float, to.scale)[t] * (float)AT(int, to.sum)[t];
    AT(float, to.block_sum)[b] = total;
  }
}

// A row a block.
__kernel void prepare(PrepareArgs a, __local uchar* memory) {
  __local float lanes[LANES];
  __global const Step* step = STEP_OF(a);
  const int row = BLOCK_X;
  if (row >= (a.head ? step->n_head : step->rows * a.copies)) return;
  __global const float* x = AT(const float, a.x) + (long)(a.head ? AT(const int, step->head_rows)[row] : row) * a.k;
  const Stats s = row_stats(x, a.norm, a.k, lanes);
  if (a.normed)
    for (int i = THREAD; i < a.k; i += THREADS) AT(float, a.normed)[(long)row * a.k + i] = normed(x[i], a.norm, s, i);
  const bool quantized = a.w.format >= INT8;
  const Prepared to = quantized ? prepared_row(a.out, a.w, row) : a.out;
  for (int t = THREAD; t < (quantized ? steps_of(a.w) : 0); t += THREADS) quantize_step(x, a.norm, s, a.w, to, t);
  BARRIER;
  if (quantized && zeros_by_block(a.w)) sum_blocks(a.w, to);
}

static inline float zero_point(Weights w, int row, int block) {
  if (!w.zeros) return w.format == INT8 ? 128.0f : (float)off_code(w.format);
  const long at = (long)(row / LANES) * blocks_of(w) + block;
  __global const uchar* zeros = AT(const uchar, w.zeros);
  if (w.format == INT8) return (float)zeros[at * LANES + row % LANES];
  return (float)(zeros[at * 8 + row % 8] >> row % LANES / 8 * 4 & 15);
}

// The code of input i of an output, times its step; lines: of its group, from its own four bytes on.
static inline int code_at(int format, __global const uchar* lines, int i) {
  if (format == INT8) return lines[i / 4 * 64 + i % 4];
  if (format == INT4) return lines[i / 8 * 64 + i % 8 / 2] >> (i & 1) * 4 & 15;
  __global const uchar* step = lines + i / 32 * bits_of(format) * 64 + i % 4;
  const int low = step[i % 32 / 16 * 64] >> i / 4 % 4 * 2 & 3;
  return format == INT2 ? 2 * low : low | (step[128] >> i % 32 / 4 & 1) << 2;
}

static inline float embedding(Weights w, int row, int i) {
  if (w.format == F32) return AT(const float, w.data)[(long)row * w.k + i];
  if (w.format == F16) return half_at(AT(const ushort, w.data), (long)row * w.k + i);
  const int block = i / w.block;
  const long group = row / LANES;
  const int q = code_at(w.format, AT(const uchar, w.data) + group * group_bytes(w) + row % LANES * 4, i);
  return ((float)q - zero_point(w, row, block)) *
         half_at(AT(const ushort, w.scales), (group * blocks_of(w) + block) * LANES + row % LANES);
}

__kernel void embed(EmbedArgs a, __local uchar* memory) {
  __local float lanes[LANES];
  __global const Step* step = STEP_OF(a);
  const int row = BLOCK_X;
  if (row >= step->rows) return;
  const int token = AT(const int, step->tokens)[row];
  __global float* out = AT(float, a.out) + (long)row * a.hidden;
  __global const float* given = AT(const float, step->given) + (long)(-1 - token) * a.hidden;
  __global const float* place = AT(const float, a.positions) + (long)AT(const int, step->positions)[row] * a.hidden;
  for (int i = THREAD; i < a.hidden; i += THREADS) {
    out[i] = token < 0 ? given[i] : embedding(a.w, token, i) * a.scale;
    if (token >= 0 && a.positions) out[i] = out[i] + place[i];
  }
  const Norm none = {0, 0, NO_NORM, 0.0f};
  const Norm norm = token < 0 ? none : a.norm;
  const Stats s = row_stats(out, norm, a.hidden, lanes);
  norm_in_place(out, norm, s, a.hidden);
}

// Rows normed by parts and added to, or stored in, `out`: a row a block.
__kernel void norm_rows(RowsArgs a, __local uchar* memory) {
  __local float lanes[LANES];
  const int row = BLOCK_X;
  if (row >= STEP_OF(a)->rows) return;
  for (int part = 0; part * a.part < a.width; part++) {
    __global const float* x = AT(const float, a.x) + (long)row * a.stride + part * a.part;
    __global float* out = AT(float, a.out) + (long)row * a.stride + part * a.part;
    const Stats s = row_stats(x, a.norm, a.part, lanes);
    for (int i = THREAD; i < a.part; i += THREADS) {
      const float y = normed(x[i], a.norm, s, part * a.part + i);
      out[i] = a.add ? out[i] + y : y;
    }
  }
}

// linear * x + above * x^2 above 0, linear * x + below * (exp(min(x, most)) - 1 - x) below.
static inline float xielu(const GluArgs* a, float x) {
  const float bent = x > 0.0f ? a->above * (x * x) : a->below * (exp_(smaller(a->most, x)) - 1.0f - x);
  return a->linear * x + bent;
}

// Activations where the product could not do them: its halves are no whole groups, or they are XIELU.
__kernel void gated(GluArgs a, __local uchar* memory) {
  const int row = BLOCK_X;
  if (row >= STEP_OF(a)->rows * a.copies) return;
  __global const float* x = AT(const float, a.x) + (long)row * a.inner * (a.gated ? 2 : 1);
  __global float* out = AT(float, a.out) + (long)row * a.inner;
  for (int i = THREAD; i < a.inner; i += THREADS) {
    if (a.activation == XIELU) out[i] = xielu(&a, x[i]);
    else out[i] = a.gated ? glu(x[i], x[a.inner + i], a.activation) : activate(x[i], a.activation);
  }
}

__kernel void copy_rows(CopyArgs a, __local uchar* memory) {
  const int row = BLOCK_X;
  if (row >= STEP_OF(a)->rows) return;
  for (int i = THREAD; i < a.width; i += THREADS) {
    const float x = AT(const float, a.x)[(long)row * a.stride + i];
    const float cut = x > a.limit ? a.limit : x < 0.0f - a.limit ? 0.0f - a.limit : x;
    AT(float, a.out)[(long)row * a.width + i] = a.limit == 0.0f ? x : cut;
  }
}
