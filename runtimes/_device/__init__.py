"""Shared parts of the runtimes that keep pages in a device's memory: pages, caches, step inputs, launches."""
