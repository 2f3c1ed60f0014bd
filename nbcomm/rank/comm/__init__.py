"""The Communicator: the collectives, for data of any kind. Begin to read in `communicator`."""

from .communicator import NAMES, Communicator

__all__ = ["NAMES", "Communicator"]
