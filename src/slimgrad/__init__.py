"""slimgrad: PyTorch training in less memory, with activations kept compressed under an error bound.

This file holds the public names and nothing else. Importing it compiles nothing and starts no device.
"""

from slimgrad import codecs
from slimgrad.bounds.acgc import AcGc
from slimgrad.bounds.comet import Comet
from slimgrad.bounds.fixed import Absolute, Exact, Relative
from slimgrad.bounds.noise import Noise
from slimgrad.errors import (
    ChangedInPlace,
    ConfigError,
    CorruptPayload,
    InternalError,
    SlimgradError,
    StorageFull,
    UnknownCodec,
)
from slimgrad.planner.accumulation import Accumulation
from slimgrad.planner.batch_keeper import BatchKeeper
from slimgrad.planner.budget import Budget, Hybrid
from slimgrad.planner.fit_batch import fit_batch
from slimgrad.policy import Compress, Recompute, Swap
from slimgrad.session import Session, attach

__version__ = "0.1.0"

__all__ = [
    "Absolute",
    "AcGc",
    "Accumulation",
    "BatchKeeper",
    "Budget",
    "ChangedInPlace",
    "Comet",
    "Compress",
    "ConfigError",
    "CorruptPayload",
    "Exact",
    "Hybrid",
    "InternalError",
    "Noise",
    "Recompute",
    "Relative",
    "Session",
    "SlimgradError",
    "StorageFull",
    "Swap",
    "UnknownCodec",
    "attach",
    "codecs",
    "fit_batch",
]
