"""Plain torch: what every other kernel must equal, byte for byte."""

from slimgrad.kernels.reference.nested import nested_decode, nested_encode
from slimgrad.kernels.reference.statistics import channel_scales, moments

__all__ = ["channel_scales", "moments", "nested_decode", "nested_encode"]
