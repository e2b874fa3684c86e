// How products.cl reads weights where they are seen as an image: texels of 16 bytes, of f16 of 2, from `start` on. Texels
// are integers, so they are what lies there.
#undef NAMED
#undef WEIGHTS_PARAM
#undef KERNEL_PARAMS
#undef WEIGHTS
#undef LINE
#undef HALF_AT
#define THROUGH_IMAGE
#define NAMED(name) name##_image
// PoCL 3.1 crashes on kernels with an image and no pointer, so the image's buffer is an argument, too.
#define WEIGHTS_PARAM __read_only image1d_buffer_t weights,
#define KERNEL_PARAMS WEIGHTS_PARAM __global const uchar *matrix,
#define WEIGHTS weights,
#define Lines int
static inline int texel_at(ulong start, __global const uchar* data) { return (int)(((ulong)(size_t)data - start) / 16); }
#define lines_at texel_at
#define LINE(lines, i) read_imageui(weights, (lines) + (int)(i))
static inline float half_of(uint bits) {
  const ushort x = (ushort)bits;
  return vload_half(0, (const half*)&x);
}
#define HALF_AT(w, start, i) half_of(read_imageui(weights, (int)(((w).data - (start)) / 2 + (ulong)(i))).x)
