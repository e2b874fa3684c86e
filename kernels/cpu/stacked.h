// Matrices that lie one after another in one tensor, and rows made ready for products with them.
#pragma once
#include <cstring>

#include "engine.h"

namespace edgedec {

// Rows made ready for products, in memory of their own.
class Activations {
 public:
  void need(size_t rows, const Matrix& w) {
    if (w.quantized()) records_.need(rows * QuantizedActivations::row_bytes(w));
    else x_.need(rows * w.k);
  }
  QuantizedActivations rows(const Matrix& w) const {
    return {records_.p, x_.p, w.quantized() ? w.steps() : 0, w.step()};
  }

 private:
  Buffer<int8_t> records_;
  Buffer<float> x_;
};

inline QuantizedActivations from_row(QuantizedActivations a, size_t row, const Matrix& w) {
  if (w.quantized()) a.records = a.record(row, 0);
  else a.x += row * w.k;
  return a;
}

// Outputs n0 .. n0 + n - 1 of a matrix, whole groups of them.
inline Matrix slice(Matrix w, int64_t n0, int n) {
  if (w.quantized()) w.zeros = w.zeros_from(n0), w.data += n0 / LANES * w.group_bytes(), w.scales += n0 * w.blocks();
  else w.data += n0 * w.k * (w.format == F32 ? 4 : 2);
  w.n = n;
  return w;
}

}  // namespace edgedec
