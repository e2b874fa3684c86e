"""Kernels in OpenCL C for GPUs of phones and laptops: the arithmetic of `kernels.cuda`, through any vendor's driver."""
