"""A bundle: a folder with a manifest, weights, a tokenizer, and artifacts of runtimes."""
