"""The puzzles of the lessons, one module for each lesson."""

LESSONS = (
    "four_processes",
    "costs",
    "verdicts",
    "samples",
    "ddp",
    "zero",
    "tensor_parallel",
    "pipelines",
    "long_sequences",
    "checkpoints",
)
