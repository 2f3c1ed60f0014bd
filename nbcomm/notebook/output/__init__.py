"""The output of several ranks under one cell: folded into one sequence, shown while it comes, and kept."""
