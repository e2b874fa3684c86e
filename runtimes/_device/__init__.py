"""What the runtimes with a device's memory have in common: pages, caches, what a step's rows are, launches."""
