"""Golden cases of every kernel of the GPU engines: the CPU engine's results, compared with a device's byte for byte."""
