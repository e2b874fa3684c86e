"""A device as engines use it, and the structs that its kernels are given: for CUDA, OpenCL and compiled libraries."""
