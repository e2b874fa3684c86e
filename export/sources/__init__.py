"""A model's kernels as sources for GPUs: written once as TIR, printed by TVM as OpenCL C, CUDA, Metal or WGSL.

What is computed, in which order, is the contract of `kernels/cpu/kernels.h`, so a device that rounds as in IEEE 754
computes the native engine's bytes. A plan (`plan.py`) lists the kernels in order with their arrays. A program that
launches them according to the plan runs the model; edgedec itself launches none of them.
"""
