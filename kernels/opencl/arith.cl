// What all kernels use: names, addresses, the CPU engine's functions of one float (kernels/cpu/simd/wide.h).
//
// OpenCL C 1.2. Every float operation rounds once: a multiply-add is fused only where `fma` stands. Addresses are shared
// with the host (shared virtual memory) and come as 64-bit numbers, so that structs are those of kernels/cuda/args.h.
// Lanes of a sum exchange values through local memory, or (SUBGROUPS) through registers.
#pragma OPENCL FP_CONTRACT OFF

#define THREAD ((int)get_local_id(0))
#define THREADS ((int)get_local_size(0))
#define BLOCK_X ((int)get_group_id(0))
#define BLOCK_Y ((int)get_group_id(1))
#define AT(type, address) ((__global type*)(size_t)(address))
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)

enum { F32 = 1, F16 = 2, INT8 = 3, INT4 = 4, INT3 = 5, INT2 = 6 };
enum { SILU = 0, GELU_TANH = 1, GELU = 2, RELU = 3, CLAMPED_SWIGLU = 4, RELU2 = 5, XIELU = 6 };
enum { NO_NORM = 0, RMS = 1, LAYER = 2 };
enum { STORE = 0, ADD = 1, GLU = 2, ACTIVATE = 3 };
#define LANES 16        // outputs of a group in the packed layout; lanes of a sum along a row
#define CHUNK 256       // keys of an attention chunk
#define PAGE_SLOTS 64
#define LARGEST 3.402823466e+38f
#define LEAST 1.175494351e-38f

// Codes of weights (edgedec/bundle/integers.py): their bits, whether those lie in planes, and what is taken off a code
// times its step in sums of integers; nothing of INT8, whose bytes are made signed.
static inline int bits_of(int format) { return format == INT8 ? 8 : format == INT4 ? 4 : format == INT3 ? 3 : 2; }
static inline bool in_planes(int format) { return format == INT3 || format == INT2; }
static inline int off_code(int format) { return format == INT4 ? 8 : format == INT3 ? 4 : format == INT2 ? 3 : 0; }

// As the CPU engine's vectors compare: what is not larger (a NaN) gives the second.
static inline float larger(float a, float b) { return a > b ? a : b; }
static inline float smaller(float a, float b) { return a < b ? a : b; }

// a / b to nearest. For drivers without exact division (no EXACT_DIVISION) one remainder corrects the result.
static inline float divide(float a, float b) {
  const float q = a / b;
#ifdef EXACT_DIVISION
  return q;
#else
  const float r = fma(-q, b, a), better = fma(r, 1.0f / b, q);
  return r - r == 0.0f && r != 0.0f && better - better == 0.0f ? better : q;  // of no remainder: -0 stays
#endif
}
static inline float root(float x) {
  const float y = sqrt(x);
#ifdef EXACT_DIVISION
  return y;
#else
  return y > 0.0f && y < LARGEST ? fma(fma(-y, y, x), 0.5f / y, y) : y;
#endif
}

// To nearest, ties to even; what no int holds becomes the smallest.
static inline int round_int(float x) { return fabs(x) < 2147483648.0f ? (int)rint(x) : (int)0x80000000; }

static inline float exp_(float x) {
  x = smaller(larger(x, -87.0f), 88.0f);
  const int n = round_int(x * 1.44269504088896341f);
  float r = fma((float)n, -0.693359375f, x);
  r = fma((float)n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fma(p, r, 1.3981999507e-3f);
  p = fma(p, r, 8.3334519073e-3f);
  p = fma(p, r, 4.1665795894e-2f);
  p = fma(p, r, 1.6666665459e-1f);
  p = fma(p, r, 5.0000001201e-1f);
  p = fma(p, r * r, r) + 1.0f;
  return p * as_float(((uint)n + 127u) << 23);
}
static inline float tanh_(float x) { return 1.0f - divide(2.0f, exp_(x + x) + 1.0f); }
// erf(|x| / sqrt 2) is z times a polynomial in u = 2 (z / 5.5)^2 - 1, z = |x| up to 5.5, from where on it is 1.
static inline float gelu(float x) {
  const float z = smaller(5.5f, fabs(x)), u = fma(z * z, 0.0661157025f, -1.0f);
  float p = -0.00182441855f;
  p = fma(p, u, 0.00518571865f);
  p = fma(p, u, -0.00503447885f);
  p = fma(p, u, 0.00494790031f);
  p = fma(p, u, -0.0125868116f);
  p = fma(p, u, 0.0228529368f);
  p = fma(p, u, -0.0307461657f);
  p = fma(p, u, 0.0400581807f);
  p = fma(p, u, -0.0518837906f);
  p = fma(p, u, 0.0642273426f);
  p = fma(p, u, -0.0776093975f);
  p = fma(p, u, 0.0954712108f);
  p = fma(p, u, -0.12834394f);
  p = fma(p, u, 0.25710389f);
  return 0.5f * fma(fabs(x), smaller(1.0f, z * p), x);
}
static inline float sigmoid(float x) { return divide(1.0f, 1.0f + exp_(0.0f - x)); }
static inline float activate(float x, int kind) {
  if (kind == SILU) return divide(x, 1.0f + exp_(0.0f - x));
  if (kind == GELU) return gelu(x);
  if (kind == RELU) return larger(0.0f, x);
  if (kind == RELU2) return larger(0.0f, x) * larger(0.0f, x);
  const float t = tanh_(0.7978845608028654f * fma(0.044715f, x * x * x, x));
  return 0.5f * x * (1.0f + t);
}

// Two halves of a gated MLP: activation(gate) * up; CLAMPED_SWIGLU, of gates up to 7 and ups from -7 to 7:
// gate * sigmoid(1.702 gate) * (up + 1).
static inline float glu(float gate, float up, int kind) {
  if (kind != CLAMPED_SWIGLU) return activate(gate, kind) * up;
  gate = smaller(7.0f, gate), up = larger(-7.0f, smaller(7.0f, up));
  return divide(gate, 1.0f + exp_(0.0f - 1.702f * gate)) * (up + 1.0f);
}

static inline float half_at(__global const ushort* x, long i) { return vload_half(i, (__global const half*)x); }

// Sixteen lanes added up, halves to halves: i + (i + 8), 4, 2, 1.
static inline float sum_lanes(__local const float* x) {
  float a[8];
  for (int i = 0; i < 8; i++) a[i] = x[i] + x[i + 8];
  for (int i = 0; i < 4; i++) a[i] = a[i] + a[i + 4];
  for (int i = 0; i < 2; i++) a[i] = a[i] + a[i + 2];
  return a[0] + a[1];
}
#ifdef SUBGROUPS
#ifdef cl_khr_subgroups
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
// The same of sixteen threads side by side, each of which has it then.
static inline float sum_threads(float x) {
  for (uint n = 8; n; n /= 2) x = x + sub_group_shuffle_xor(x, n);
  return x;
}
#define IN_SUBGROUPS __attribute__((intel_reqd_sub_group_size(LANES)))
#else
#define IN_SUBGROUPS
#endif
// The same of lanes that one thread holds.
static inline float sum_own(float* x) {
  for (int n = 8; n; n /= 2)
    for (int i = 0; i < n; i++) x[i] = x[i] + x[i + n];
  return x[0];
}
