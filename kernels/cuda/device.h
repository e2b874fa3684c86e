// The GPU functions of kernels under one set of names, from CUDA or from the emulation on the CPU (emulate.h).
//
// Threads of a block are one-dimensional and whole warps; collectives are of whole warps. Every float operation is
// written out and rounds once: a multiply-add is fused only where `fma_` stands (--fmad=false, -ffp-contract=off).
#pragma once

#ifdef ED_EMULATE
#include "emulate.h"
#else

typedef unsigned char uint8_t;
typedef signed char int8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;

#define DEVICE __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
#define THREAD ((int)threadIdx.x)
#define THREADS ((int)blockDim.x)
#define BLOCK_X ((int)blockIdx.x)
#define BLOCK_Y ((int)blockIdx.y)
#define BLOCK_Z ((int)blockIdx.z)
// One struct of arguments a kernel; at most `threads` threads a block.
#define KERNEL(name, Args, threads) extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ Args a)
// At least so many blocks share a multiprocessor: the compiler keeps to the registers that they leave each other.
#define KERNEL_SHARED(name, Args, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Args a)
// The block's shared memory, of the launch's size, 16-byte aligned.
#define SHARED(name) extern __shared__ __align__(16) uint8_t name[]
#define UNROLL _Pragma("unroll")
#define UNROLL_8 _Pragma("unroll 8")
#define ONCE _Pragma("unroll 1")  // the loop's body stands once in the kernel

#define barrier() __syncthreads()
#define warp_barrier() __syncwarp()
#define shuffle_xor(x, i) __shfl_xor_sync(0xffffffffu, x, i)
#define shuffle(x, lane) __shfl_sync(0xffffffffu, x, lane)

DEVICE float fma_(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float sqrt_(float x) { return __fsqrt_rn(x); }
DEVICE float round_(float x) { return rintf(x); }
DEVICE float abs_(float x) { return fabsf(x); }
DEVICE float as_float(uint32_t bits) { return __uint_as_float(bits); }
DEVICE uint32_t as_bits(float x) { return __float_as_uint(x); }
DEVICE int dp4a(uint32_t a, uint32_t b, int c) { return __dp4a((int)a, (int)b, c); }
// d[16 x 8] += a[16 x 32] . b[32 x 8], int8, exact; fragments as PTX lays them out (mma.m16n8k32). Turing has quarters.
#if __CUDA_ARCH__ >= 800
DEVICE void mma_s8(int* d, const uint32_t* a, const uint32_t* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
DEVICE void mma_quarter(int* d, uint32_t a, uint32_t b) {
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+r"(d[0]), "+r"(d[1])
               : "r"(a), "r"(b));
}
DEVICE void mma_s8(int* d, const uint32_t* a, const uint32_t* b) {
  mma_quarter(d, a[0], b[0]), mma_quarter(d, a[2], b[1]);
  mma_quarter(d + 2, a[1], b[0]), mma_quarter(d + 2, a[3], b[1]);
}
#endif
DEVICE float half_to_float(uint16_t h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
DEVICE uint16_t float_to_half(float f) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

#endif

struct alignas(16) Quad {
  uint32_t v[4];
};

#define FLOAT_MAX 3.402823466e+38f
#define FLOAT_LEAST 1.175494351e-38f
DEVICE float infinity() { return as_float(0x7f800000u); }
DEVICE float not_a_number() { return as_float(0x7fc00000u); }
DEVICE int min_(int a, int b) { return a < b ? a : b; }
DEVICE int max_(int a, int b) { return a > b ? a : b; }
// As the CPU engine's vectors compare: what is not larger (a NaN) gives the second.
DEVICE float larger(float a, float b) { return a > b ? a : b; }
DEVICE float smaller(float a, float b) { return a < b ? a : b; }
