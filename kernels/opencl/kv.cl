// One key or value in and out of a cache page (kernels/cuda/kv.h); layouts: kernels/cpu/kv.h.
static inline int kv_scale_at(int dim, int format) { return ((format == INT8 ? dim : (dim + 1) / 2) + 3) / 4 * 4; }
static inline float inverse_of(float scale) { return scale >= LEAST ? divide(1.0f, scale) : 0.0f; }

// Storing is done by all threads of the block; `lanes` [16].
static inline float largest_of(__global const float* x, int dim, __local float* lanes) {
  float top = 0.0f;
  BARRIER;
  if (THREAD < LANES) {
    for (int i = THREAD; i < dim; i += LANES) top = larger(fabs(x[i]), top);
    lanes[THREAD] = top;
  }
  BARRIER;
  for (int i = 0; i < LANES; i++) top = larger(lanes[i], top);
  return top;
}

static inline void store_int8(__global const float* x, int dim, float top, __global uchar* out) {
  const int end = kv_scale_at(dim, INT8);
  float scale = divide(smaller(top, LARGEST), 127.0f);
  if (scale < LEAST) scale = 0.0f;
  const float unit = inverse_of(scale);
  for (int i = THREAD; i < end; i += THREADS)
    out[i] = i < dim ? (uchar)(round_int(smaller(larger(x[i] * unit, -127.0f), 127.0f)) & 255) : 0;
  if (THREAD == 0) *(__global float*)(out + end) = scale;
}

// The bfloat16 next to x on the side away from zero (toward zero if not `away`), in the high half.
static inline uint bf16_bits(float x, bool away) { return (as_uint(x) + (away ? 0xffffu : 0u)) & 0xffff0000u; }

// Of up to 16 values: scale (high half of the first) and least value, rounded so that 0 to 15 cover the group.
static inline uint int4_scale(__global const float* x, int n) {
  const float limit = 1e38f;
  float least = limit, most = -limit;
  for (int i = 0; i < n; i++) {
    if (x[i] < least) least = x[i];
    if (x[i] > most) most = x[i];
  }
  if (!(most >= least)) least = most = 0.0f;
  least = least < -limit ? -limit : least, most = most > limit ? limit : most;
  const uint low = bf16_bits(least, least < 0.0f);
  least = as_float(low);
  uint step = bf16_bits(divide(most - least, 15.0f), true);
  if (as_float(step) < LEAST) step = 0;
  return low | step >> 16;
}

static inline int int4_value(float x, uint pair) {
  const float scale = as_float(pair << 16), least = as_float(pair & 0xffff0000u);
  return round_int(smaller(larger((x - least) * inverse_of(scale), 0.0f), 15.0f)) & 15;
}

// 32 values a thread.
static inline void store_int4(__global const float* x, int dim, __global uchar* out) {
  const int bytes = kv_scale_at(dim, INT4);
  __global uint* scales = (__global uint*)(out + bytes);
  for (int g = THREAD; g * 32 < dim; g += THREADS) {
    __global const float* v = x + g * 32;
    const int n = min(dim - g * 32, 32);
    const uint low = int4_scale(v, min(n, 16)), high = n > 16 ? int4_scale(v + 16, n - 16) : 0;
    scales[2 * g] = low;
    if (n > 16) scales[2 * g + 1] = high;
    for (int i = 0; i < 16 && g * 16 + i < bytes; i++) {
      const int first = n == 32 ? i : 2 * i, second = n == 32 ? i + 16 : 2 * i + 1;
      const int a = first < n ? int4_value(v[first], first < 16 ? low : high) : 0;
      const int b = second < n ? int4_value(v[second], second < 16 ? low : high) : 0;
      out[g * 16 + i] = (uchar)(a | b << 4);
    }
  }
}

static inline void store_kv(__global const float* x, int dim, int format, __global uchar* out, __local float* lanes) {
  const float top = largest_of(x, format == INT8 ? dim : 0, lanes);
  if (format == INT8) {
    store_int8(x, dim, top, out);
  } else if (format == INT4) {
    store_int4(x, dim, out);
  } else if (format == F32) {
    for (int i = THREAD; i < dim; i += THREADS) ((__global float*)out)[i] = x[i];
  } else {
    for (int i = THREAD; i < (dim + 1) / 2 * 2; i += THREADS) {
      if (i < dim) vstore_half_rte(x[i], i, (__global half*)out);
      else ((__global ushort*)out)[i] = 0;
    }
  }
}

// Reading: element i of a row in local memory; of int8 not yet scaled.
static inline float kv_element(__local const uchar* row, int dim, int i, int format) {
  if (format == F32) return ((__local const float*)row)[i];
  if (format == F16) return vload_half(i, (__local const half*)row);
  if (format == INT8) return (float)((__local const char*)row)[i];
  const int g = i / 32, in = i % 32, whole = dim - g * 32 >= 32, byte = whole ? in % 16 : in / 2, high = whole ? in / 16 : in & 1;
  const uint pair = ((__local const uint*)(row + kv_scale_at(dim, INT4)))[2 * g + in / 16];
  return fma((float)(row[16 * g + byte] >> 4 * high & 15), as_float(pair << 16), as_float(pair & 0xffff0000u));
}
// The remaining scale of an element; 1 except for int8.
static inline float kv_factor(__local const uchar* row, int dim, int format) {
  return format == INT8 ? *(__local const float*)(row + kv_scale_at(dim, INT8)) : 1.0f;
}
