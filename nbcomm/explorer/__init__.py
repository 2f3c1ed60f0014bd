"""The explorer: a collective step by step, predicted or broken. It needs no ranks."""
