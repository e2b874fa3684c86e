"""Golden cases of every kernel of the GPU engines: what the CPU engine computes, to compare a device's bytes with."""
