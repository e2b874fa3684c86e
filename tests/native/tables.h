// The instruction sets that were compiled in and that this CPU runs; plain C++, which defines them all, first.
#pragma once
#include <vector>

#include "../../kernels/cpu/cpu_features.h"
#include "../../kernels/cpu/units.h"

struct Unit {
  const char* name;
  const edgedec::Kernels* kernels;
};

inline std::vector<Unit> units() {
  std::vector<const edgedec::Kernels*> tables = {edgedec::kernels_scalar()};
#ifdef ED_HAVE_AVX2
  if (edgedec::has_avx2()) tables.push_back(edgedec::kernels_avx2());
#endif
#ifdef ED_HAVE_AVXVNNI
  if (edgedec::has_avxvnni()) tables.push_back(edgedec::kernels_avxvnni());
#endif
#ifdef ED_HAVE_AVX512
  if (edgedec::has_avx512vnni()) tables.push_back(edgedec::kernels_avx512());
#endif
#ifdef ED_AMX
  if (edgedec::has_amx()) tables.push_back(edgedec::kernels_amx());
#endif
#ifdef ED_HAVE_DOTPROD
  if (edgedec::has_dotprod()) tables.push_back(edgedec::kernels_dotprod());
#endif
#ifdef ED_HAVE_I8MM
  if (edgedec::has_i8mm()) tables.push_back(edgedec::kernels_i8mm());
#endif
  std::vector<Unit> all;
  for (const edgedec::Kernels* table : tables) all.push_back({table->name, table});
  return all;
}
