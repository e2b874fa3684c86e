// Parts of matrix products by dot products (kernels/cuda/product.h): four threads a step of 16 outputs, whole lines of
// weights read once for all rows of the tile; the floats are added up by one thread an output and row, step after step.
#define PRODUCT_STEPS 64

#ifdef PACKED_DOT
static inline int dot4(uint a, uint b, int c) { return c + dot_4x8packed_ss_int(a, b); }
#else
static inline int dot4(uint a, uint b, int c) {
  const int4 p = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
  return c + p.x + p.y + p.z + p.w;
}
#endif

// Four products of a number of four bits (8 less of which is meant) and one of eight.
#ifdef HALF_DOT
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
// Two of them are at most 2,032 away from zero: halves hold all whole numbers up to 2,048.
static inline int dot4_bits(uint a, uint b, int c) {
  const half4 x = convert_half4(as_uchar4(a)) - (half4)8.0h, y = convert_half4(as_char4(b));
  const half2 p = fma(x.hi, y.hi, x.lo * y.lo);
  return c + convert_int(p.x) + convert_int(p.y);
}
#define BITS_OFFSET 0
#else
static inline int dot4_bits(uint a, uint b, int c) { return dot4(a, b, c); }
#define BITS_OFFSET 8
#endif

// Of a group of 16 outputs: where it begins in each array.
typedef struct {
  __global const uchar* data;
  __global const ushort* scales;
  __global const uchar* zeros;
} Group;

static inline Group group_of(Weights w, long group) {
  const int each = w.format == INT4 ? 2 : 1;  // zero points in a byte
  Group g;
  g.data = AT(const uchar, w.data) + group * group_bytes(w);
  g.scales = AT(const ushort, w.scales) + group * blocks_of(w) * LANES;
  g.zeros = AT(const uchar, w.zeros) + (w.zeros ? group * blocks_of(w) * LANES / each : 0);
  return g;
}

// 8 or 128 less the zero point of an output in a block of its group.
static inline float off_zero(Weights w, Group g, int block, int output) {
  if (w.format == INT8) return (float)(128 - g.zeros[block * LANES + output]);
  return (float)(8 - (g.zeros[block * 8 + output % 8] >> output / 8 * 4 & 15));
}

typedef struct { float all, of_block; } Total;

// Adds step t of a row to the sum of an output.
static inline void add_step(Weights w, Group g, Prepared row, int sum, int output, int t, Total* x) {
  const int each = block_steps(w), block = t / each;
  const float weight_scale = half_at(g.scales, block * LANES + output), row_scale = AT(const float, row.scale)[t];
  if (!zeros_by_block(w)) {
    if (w.zeros) sum += (int)off_zero(w, g, block, output) * AT(const int, row.sum)[t];
    x->all = fma((float)sum, weight_scale * row_scale, x->all);
    return;
  }
  if (t % each == 0) x->of_block = off_zero(w, g, block, output) * AT(const float, row.block_sum)[block];
  x->of_block = fma((float)sum, row_scale, x->of_block);
  if (t % each == each - 1) x->all = fma(weight_scale, x->of_block, x->all);
}

// Of planes, the codes of inputs 4 i to 4 i + 3 of a step times their step, in bytes, of four outputs.
static inline uint4 plane_bytes(const uint4* line, int format, int i) {
  const uint4 codes = line[i / 4] >> 2 * (i & 3) & 0x03030303u;
  return format == INT2 ? codes << 1 : codes | (line[2] >> i & 0x01010101u) << 2;
}

// The integer sums of four outputs in one step of a row; `line`: their weights.
static inline int4 dot_step(const uint4* line, __global const uint* x, int sum, int format, int lines) {
  int4 total = (int4)(format == INT4 ? -BITS_OFFSET * sum : -off_code(format) * sum);
  for (int i = 0; i < (in_planes(format) ? 8 : 0); i++) {
    const uint4 w = plane_bytes(line, format, i);
    const uint a = x[i];
    total.x = dot4(w.x, a, total.x), total.y = dot4(w.y, a, total.y);
    total.z = dot4(w.z, a, total.z), total.w = dot4(w.w, a, total.w);
  }
  for (int j = 0; j < (in_planes(format) ? 0 : lines); j++) {
    const uint4 w = line[j];
    if (format == INT4) {
      const uint4 low = w & 0x0f0f0f0fu, high = w >> 4 & 0x0f0f0f0fu;
      const uint a = x[2 * j], b = x[2 * j + 1];
      total.x = dot4_bits(high.x, b, dot4_bits(low.x, a, total.x));
      total.y = dot4_bits(high.y, b, dot4_bits(low.y, a, total.y));
      total.z = dot4_bits(high.z, b, dot4_bits(low.z, a, total.z));
      total.w = dot4_bits(high.w, b, dot4_bits(low.w, a, total.w));
    } else {
      const uint4 s = w ^ 0x80808080u;
      const uint a = x[j];
      total.x = dot4(s.x, a, total.x), total.y = dot4(s.y, a, total.y);
      total.z = dot4(s.z, a, total.z), total.w = dot4(s.w, a, total.w);
    }
  }
  return total;
}

// Applies the epilogue to a sum and stores it, if there is such an output. (A branch around the call would be
// enough, but PoCL 3.1 lets all threads through it.)
static inline void put(const ProductArgs* a, int row, int output, float y, float gate) {
  const int middle = a->w.n / 2;
  if (output >= (a->epilogue == GLU ? middle : a->w.n)) return;
  if (a->bias) {
    __global const float* bias = AT(const float, a->bias) + (a->experts ? (long)AT(const int, a->experts)[row] * a->w.n : 0);
    y = y + bias[a->epilogue == GLU ? middle + output : output];
    if (a->epilogue == GLU) gate = gate + bias[output];
  }
  if (a->epilogue == GLU) y = glu(gate, y, a->activation);
  if (a->epilogue == ACTIVATE) y = activate(y, a->activation);
  if (a->softcap > 0.0f) y = tanh_(divide(y, a->softcap)) * a->softcap;
  __global float* out = AT(float, a->out) + (long)row * a->stride + output;
  *out = a->epilogue == ADD ? *out + y : y;
}

static inline int product_rows(const ProductArgs* a) {
  return a->head ? STEP_OF(*a)->n_head : STEP_OF(*a)->rows * a->copies;
}

// The weights that a row's expert has; n, k: of one expert.
static inline Weights expert_weights(const ProductArgs* a, int row) {
  Weights w = a->w;
  if (!a->experts) return w;
  const long outputs = (long)AT(const int, a->experts)[row] * w.n;
  if (w.format < INT8) {
    w.data += outputs * w.k * (w.format == F32 ? 4 : 2);
    return w;
  }
  const Group g = group_of(w, outputs / LANES);
  w.data = (ulong)(size_t)g.data, w.scales = (ulong)(size_t)g.scales;
  if (w.zeros) w.zeros = (ulong)(size_t)g.zeros;
  return w;
}

// Of float weights: sixteen lanes an output.
#define FLOAT_ROWS 4
#ifdef SUBGROUPS
#define FLOAT_LANES 1  // what lanes hold stays in registers
#else
#define FLOAT_LANES (FLOAT_ROWS * 256)
#endif
