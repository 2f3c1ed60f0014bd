"""Lightning Fabric's names, signatures, defaults and semantics over nbcomm's world; Lightning is not needed."""

from .fabric import Fabric

__all__ = ["Fabric"]
