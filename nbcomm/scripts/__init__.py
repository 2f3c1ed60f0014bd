"""A notebook's distributed cells as a script for torchrun: text to text, without ranks. Start reading in `writer`."""

from .history import Called, Entry, Pushed, Ran, RanFile, Replaced

__all__ = ["Called", "Entry", "Pushed", "Ran", "RanFile", "Replaced"]
