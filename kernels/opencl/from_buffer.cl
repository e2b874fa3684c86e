// How products.cl reads weights: by their addresses.
#define NAMED(name) name
#define WEIGHTS_PARAM
#define KERNEL_PARAMS
#define WEIGHTS
typedef __global const uint4* Lines;
static inline Lines lines_at(ulong start, __global const uchar* data) { return (Lines)data; }
#define LINE(lines, i) (lines)[i]
#define HALF_AT(w, start, i) half_at(AT(const ushort, (w).data), i)
