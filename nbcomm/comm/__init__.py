"""The Communicator: the collectives, for data of any kind. Begin to read in `communicator`."""

from .communicator import Communicator

__all__ = ["Communicator"]
