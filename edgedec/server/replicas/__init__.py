"""Several servers at one address: each is a process with a device or a share of the cores of its own."""
