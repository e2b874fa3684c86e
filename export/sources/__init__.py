"""A model's kernels as sources for GPUs: written once as TIR, printed by TVM as OpenCL C, CUDA, Metal or WGSL.

What is computed, in which order, is the contract of `kernels/cpu/kernels.h`, so that a device which rounds as IEEE 754
says gives the native engine's bytes. With the sources goes a plan (`plan.py`): which kernels run one after another on
which arrays. A program that launches what the plan says runs the model; edgedec itself launches none of them.
"""
