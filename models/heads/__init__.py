"""Draft heads: small networks on top of a model's hidden states. None yet."""
