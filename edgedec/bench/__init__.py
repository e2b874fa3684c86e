"""Measurements of engines, drafts, caches, batches and devices, and the facts of this host."""
