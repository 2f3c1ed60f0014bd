"""The puzzles of the lessons, one module for each lesson, and those of the notebook of collectives."""

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
    "collectives",
)
