"""The device interface of engines, and the argument structs of kernels: for CUDA, OpenCL and compiled libraries."""
