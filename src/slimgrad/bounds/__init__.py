"""How exact restored tensors have to be."""

from slimgrad.bounds.acgc import AcGc
from slimgrad.bounds.comet import Comet
from slimgrad.bounds.fixed import Absolute, Exact, Relative
from slimgrad.bounds.noise import Noise

__all__ = ["Absolute", "AcGc", "Comet", "Exact", "Noise", "Relative"]
