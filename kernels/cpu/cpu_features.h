// Which of the units' instructions this CPU has and the operating system enables.
#pragma once
#include <cstdint>

#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64) || defined(_M_IX86)
#define ED_X86 1
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif (defined(__aarch64__) || defined(_M_ARM64)) && defined(_WIN32)
extern "C" __declspec(dllimport) int __stdcall IsProcessorFeaturePresent(unsigned long);
#endif

namespace edgedec {

#ifdef ED_X86

struct CpuId {
  uint32_t eax, ebx, ecx, edx;
};

// All zero if the CPU does not support the leaf.
inline CpuId cpu_id(uint32_t leaf, uint32_t subleaf) {
#ifdef _MSC_VER
  int r[4];
  __cpuid(r, 0);
  if (leaf > (uint32_t)r[0]) return {};
  __cpuidex(r, (int)leaf, (int)subleaf);
  return {(uint32_t)r[0], (uint32_t)r[1], (uint32_t)r[2], (uint32_t)r[3]};
#else
  CpuId r{};
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
#endif
}

// Whether the operating system saves these registers. 6: ymm; 0xe6: zmm and the masks too.
inline bool saves(uint32_t registers) {
  if (!(cpu_id(1, 0).ecx >> 27 & 1)) return false;
#ifdef _MSC_VER
  uint32_t low = (uint32_t)_xgetbv(0);
#else
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
#endif
  return (low & registers) == registers;
}

inline bool all(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

// With FMA and F16C.
inline bool has_avx2() {
  return saves(6) && all(cpu_id(1, 0).ecx, 1u << 12 | 1u << 28 | 1u << 29) && all(cpu_id(7, 0).ebx, 1u << 5);
}

inline bool has_avxvnni() { return has_avx2() && cpu_id(7, 0).eax >= 1 && all(cpu_id(7, 1).eax, 1u << 4); }

// With F, DQ, BW and VL.
inline bool has_avx512vnni() {
  return has_avx2() && saves(0xe6) && all(cpu_id(7, 0).ebx, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) &&
         all(cpu_id(7, 0).ecx, 1u << 11);
}

#ifdef SYS_arch_prctl
// Tiles of int8. Linux saves their 8 KB only for processes that ask.
inline bool has_amx() {
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM
  return has_avx512vnni() && all(cpu_id(7, 0).edx, 1u << 24 | 1u << 25) && saves(3u << 17) &&
         syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

inline bool has_dotprod() { return false; }
inline bool has_i8mm() { return false; }

#else

inline bool has_avx2() { return false; }
inline bool has_avxvnni() { return false; }
inline bool has_avx512vnni() { return false; }

#if defined(__aarch64__) && defined(__linux__)
inline bool has_dotprod() { return getauxval(16) >> 20 & 1; }               // AT_HWCAP, ASIMDDP
inline bool has_i8mm() { return has_dotprod() && getauxval(26) >> 13 & 1; }  // AT_HWCAP2, I8MM
#elif defined(__aarch64__) && defined(__APPLE__)
inline bool has_feature(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
inline bool has_dotprod() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
inline bool has_i8mm() { return has_dotprod() && has_feature("hw.optional.arm.FEAT_I8MM"); }
#elif (defined(__aarch64__) || defined(_M_ARM64)) && defined(_WIN32)
inline bool has_dotprod() { return IsProcessorFeaturePresent(43) != 0; }               // PF_ARM_V82_DP_...
inline bool has_i8mm() { return has_dotprod() && IsProcessorFeaturePresent(66) != 0; }  // PF_ARM_V82_I8MM_...
#else
inline bool has_dotprod() { return false; }
inline bool has_i8mm() { return false; }
#endif

#endif
#undef ED_X86

}  // namespace edgedec
