// Which instruction sets were compiled in, and which of them this CPU runs.
#include "dispatch.h"

#include <cstring>
#include <string>

#include "api.h"
#include "cpu_features.h"
#include "units.h"

namespace edgedec {

namespace {

struct Unit {
  const Kernels* (*table)();
  bool (*runs)();
};

bool always() { return true; }

// Best first.
const Unit UNITS[] = {
#ifdef ED_AMX
    {kernels_amx, has_amx},
#endif
#ifdef ED_HAVE_AVX512
    {kernels_avx512, has_avx512vnni},
#endif
#ifdef ED_HAVE_AVXVNNI
    {kernels_avxvnni, has_avxvnni},
#endif
#ifdef ED_HAVE_AVX2
    {kernels_avx2, has_avx2},
#endif
#ifdef ED_HAVE_I8MM
    {kernels_i8mm, has_i8mm},
#endif
#ifdef ED_HAVE_DOTPROD
    {kernels_dotprod, has_dotprod},
#endif
#ifdef ED_HAVE_RELAXED
    {kernels_relaxed, relaxed_is_exact},
#endif
#ifdef ED_HAVE_WASM
    {kernels_wasm, always},
#else
    {kernels_scalar, always},
#endif
};

const Kernels* find(const char* name) {
  for (const Unit& unit : UNITS) {
    // This check comes first: even reading the table of a unit may run instructions that this CPU lacks.
    if (!unit.runs()) continue;
    const Kernels* table = unit.table();
    if (!name || !std::strcmp(name, table->name)) return table;
  }
  return nullptr;
}

}  // namespace

// The best table is found once: CPU detection is slow in a virtual machine, and every sampler needs the table.
const Kernels* choose(const char* name) {
  static const Kernels* const best = find(nullptr);
  return name && *name ? find(name) : best;
}

}  // namespace edgedec

int ed_abi(void) { return ED_ABI; }

const char* ed_isa(void) { return edgedec::choose()->name; }

const char* ed_isas(void) {
  static const std::string names = [] {
    std::string all;
    for (const auto& unit : edgedec::UNITS) {
      if (!all.empty()) all += ',';
      all += unit.table()->name;
      if (unit.runs()) all += '+';
    }
    return all;
  }();
  return names.c_str();
}
