// Matrix products: twice in the program where it has images, with weights read by their addresses and through an image
// (from_buffer.cl, from_image.cl). `start`: the address of the matrix, where its image begins.
// The sum of (row, output) that thread `16 row + output` gets. `sums` [M, PRODUCT_STEPS, 16].
static inline float NAMED(group_product)(WEIGHTS_PARAM ulong start, Weights w, Group g, Prepared a, int rows, int format,
                                        __local int* sums) {
  const int steps = steps_of(w), size = step_size(w), at_once = min(THREADS / 4, PRODUCT_STEPS);
  const int own = THREAD >> 2, quarter = THREAD & 3, row = THREAD >> 4, output = THREAD & 15;
  const int lines = size * bits_of(format) / 32;
  const Lines from = lines_at(start, g.data);
  Total total = {0.0f, 0.0f};
  for (int t0 = 0; t0 < steps; t0 += at_once) {
    const int t = t0 + own;
    if (own < at_once && t < steps) {
      uint4 line[8];
      const long first = (long)t * lines * 4 + quarter;
      for (int j = 0; j < lines; j++) line[j] = LINE(from, first + j * 4);
      for (int m = 0; m < rows; m++) {
        const Prepared of = prepared_row(a, w, m);
        __global const uint* x = AT(const uint, of.q) + t * (size / 4);
        const int4 made = dot_step(line, x, AT(const int, of.sum)[t], format, lines);
        vstore4(made, (m * PRODUCT_STEPS + own) * 4 + quarter, sums);
      }
    }
    BARRIER;
    if (row < rows) {
      const Prepared of = prepared_row(a, w, row);
      for (int s = t0; s < min(t0 + at_once, steps); s++)
        add_step(w, g, of, sums[(row * PRODUCT_STEPS + s - t0) * LANES + output], output, s, &total);
    }
    BARRIER;
  }
  return total.all;
}

// 16 outputs (of GLU: 16 gates and what they gate) of up to M rows a block.
static inline void NAMED(product_block)(WEIGHTS_PARAM const ProductArgs* a, int format, int m_most, __local int* sums) {
  const int row0 = BLOCK_Y * m_most, rows = min(m_most, product_rows(a) - row0), group = BLOCK_X;
  if (rows <= 0) return;
  const Weights w = expert_weights(a, row0);
  const Prepared x = prepared_row(a->a, w, a->spread ? row0 / a->spread : row0);
  float gate = 0.0f, y = 0.0f;
  for (int pass = a->epilogue == GLU ? 0 : 1; pass < 2; pass++) {
    gate = y;
    const Group g = group_of(w, group + (a->epilogue == GLU && pass ? w.n / 2 / LANES : 0));
    y = NAMED(group_product)(WEIGHTS a->w.data, w, g, x, rows, format, sums);
  }
  const int row = THREAD >> 4;
  put(a, row0 + row, row < rows ? group * LANES + (THREAD & 15) : a->w.n, y, gate);
}

#undef PRODUCT
#define PRODUCT(name, FORMAT, M) \
  __kernel void NAMED(name)(ProductArgs a, KERNEL_PARAMS __local uchar* memory) { \
    NAMED(product_block)(WEIGHTS &a, FORMAT, M, (__local int*)memory); \
  }
PRODUCT(product_int4_1, INT4, 1)
PRODUCT(product_int4_2, INT4, 2)
PRODUCT(product_int4_4, INT4, 4)
PRODUCT(product_int4_8, INT4, 8)
PRODUCT(product_int8_1, INT8, 1)
PRODUCT(product_int8_2, INT8, 2)
PRODUCT(product_int8_4, INT8, 4)
PRODUCT(product_int8_8, INT8, 8)
PRODUCT(product_int3_1, INT3, 1)
PRODUCT(product_int3_2, INT3, 2)
PRODUCT(product_int3_4, INT3, 4)
PRODUCT(product_int3_8, INT3, 8)
PRODUCT(product_int2_1, INT2, 1)
PRODUCT(product_int2_2, INT2, 2)
PRODUCT(product_int2_4, INT2, 4)
PRODUCT(product_int2_8, INT2, 8)

// ---- float weights: sixteen lanes an output ---------------------------------------------------------

// Of an output and up to four rows the sums of each lane, put together by lanes 0 .. rows - 1; `lanes` [rows, THREADS].
static inline float NAMED(float_dots)(WEIGHTS_PARAM ulong start, Weights w, int output, __global const float* x, int rows,
                                     bool halves, __local float* lanes) {
  const int lane = THREAD & 15;
  float found = 0.0f;
#ifndef SUBGROUPS
  BARRIER;
#endif
  for (int m = 0; m < rows; m++) {
    float sum = 0.0f;
    for (int k = lane; k < (output < w.n ? w.k : 0); k += LANES) {
      const long at = (long)output * w.k + k;
      const float weight = halves ? HALF_AT(w, start, at) : AT(const float, w.data)[at];
      sum = fma(x[(long)m * w.k + k], weight, sum);
    }
#ifdef SUBGROUPS
    sum = sum_threads(sum);
    found = lane == m ? sum : found;
  }
#else
    lanes[m * THREADS + THREAD] = sum;
  }
  BARRIER;
  if (lane < rows) found = sum_lanes(lanes + lane * THREADS + (THREAD & ~15));
#endif
  return found;
}

static inline void NAMED(float_block)(WEIGHTS_PARAM const ProductArgs* a, bool halves, __local float* lanes) {
  const int row0 = BLOCK_Y * a->tile, rows = min(a->tile, product_rows(a) - row0), lane = THREAD & 15;
  if (rows <= 0) return;
  const int output = BLOCK_X * (THREADS / LANES) + THREAD / LANES;
  const Weights w = expert_weights(a, row0);
  __global const float* x = AT(const float, a->x) + (long)(a->spread ? row0 / a->spread : row0) * w.k;
  float gate = 0.0f, y = 0.0f;
  for (int pass = a->epilogue == GLU ? 0 : 1; pass < 2; pass++) {
    gate = y;
    const int of = a->epilogue == GLU && pass ? w.n / 2 + output : output;
    y = NAMED(float_dots)(WEIGHTS a->w.data, w, of, x, rows, halves, lanes);
  }
  put(a, row0 + lane, lane < rows ? output : a->w.n, y, gate);
}

#ifndef THROUGH_IMAGE
IN_SUBGROUPS __kernel void product_f32(ProductArgs a, __local uchar* memory) {
  __local float lanes[FLOAT_LANES];
  float_block(&a, false, lanes);
}
#endif
IN_SUBGROUPS __kernel void NAMED(product_f16)(ProductArgs a, KERNEL_PARAMS __local uchar* memory) {
  __local float lanes[FLOAT_LANES];
  NAMED(float_block)(WEIGHTS &a, true, lanes);
}
