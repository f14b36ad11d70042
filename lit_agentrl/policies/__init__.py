"""Policies: a causal language model, its tokenizer and its chat format."""
