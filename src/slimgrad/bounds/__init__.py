"""How exact restored tensors have to be."""

from slimgrad.bounds.fixed import Absolute, Exact, Relative

__all__ = ["Absolute", "Exact", "Relative"]
