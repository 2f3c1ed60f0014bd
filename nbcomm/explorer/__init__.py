"""The explorer: a collective shown step by step, predicted or broken. It needs no ranks."""
