"""Speculative decoding: which drafters run, how much they draft, what that costs."""
