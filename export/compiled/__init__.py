"""Blocks compiled ahead of time by TVM: kernels written as TIR, one emission a block kind, linked to one library.

What is computed, in which order, is the contract of `kernels/cpu/kernels.h`: a row's outputs are the native engine's
bytes. Nothing here is imported to run a library; that is `runtimes/tvm`.
"""
