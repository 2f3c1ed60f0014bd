"""nbcomm: every notebook cell on N torch.distributed ranks."""

__version__ = "0.1.0"
