"""The CUDA engine: kernels (`engine.cu`), compiled for GPUs by NVRTC at build time (`build.py`), launched through a
driver (`driver.py`) or, on a machine without a GPU, run by the emulation (`emulate.h`). Its arguments are addresses and
numbers; `edgedec.runtimes.cuda` makes them from a bundle."""
