// How fast attention runs: decoding (one row, 8192 keys) and prefill (128 rows, 2048 keys), one thread.
//
//     attention_bench [head dim] [group] [repeats]
#include <chrono>

#include "attention_case.h"

static double seconds(const Kernels& k, const Case& c, int repeats) {
  Pages pages(c.keys, c.values, c.a.kv_heads, c.slots, c.row_bytes());
  Attention a = c.a;
  a.pages = pages.table.data();
  double best = 1e9;
  for (int i = 0; i < repeats; i++) {
    const auto begin = std::chrono::steady_clock::now();
    run(k, a, a.rows, false);
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (s < best) best = s;
  }
  return best;
}

int main(int argc, char** argv) {
  const int dim = argc > 1 ? std::atoi(argv[1]) : 64, group = argc > 2 ? std::atoi(argv[2]) : 4;
  const int repeats = argc > 3 ? std::atoi(argv[3]) : 30;
  const char* formats[] = {"", "f32", "f16", "int8", "int4"};
  for (const Unit& u : units())
    for (int format : {1, 2, 3, 4}) {
      // 8 heads, so that the cache is larger than the core's own.
      const Case decode({dim, 8, group, 8191, 1, 0, format, 0, 0, 0, false}, 1, *u.kernels);
      const double keys = 8192.0 * 8, step = seconds(*u.kernels, decode, repeats);
      const Case prefill({dim, 1, group, 1920, 128, 0, format, 0, 0, 0, false}, 1, *u.kernels);
      const double fma = 2.0 * dim * group * 128 * (1920 + 64.5), chunk = seconds(*u.kernels, prefill, repeats);
      std::printf("%-7s %-5s decode %6.2f ns a key, %6.2f GB/s;  prefill %6.1f G multiply-adds/s\n", u.name,
                  formats[format], step / keys * 1e9, 2 * keys * decode.row_bytes() / step * 1e-9, fma / chunk * 1e-9);
    }
  return 0;
}
