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

}  // namespace edgedec
