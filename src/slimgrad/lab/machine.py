"""What the numbers of a measurement, or a report of a fault, depend on: versions, processor, kernels, extras."""

from __future__ import annotations

import os
import platform
import sys
import warnings
from importlib import metadata
from pathlib import Path

import torch

import slimgrad
from slimgrad import kernels
from slimgrad.kernels import native
from slimgrad.storage.freed import HUGE_PAGES, has_huge_pages

EXTRAS = {
    "gpu": ("triton",),
    "lightning": ("lightning",),
    "hf": ("transformers", "accelerate"),
    "rivals": ("pysz", "zfpy", "zstandard"),
    "tensorboard": ("tensorboard",),
}
VARIABLES = {
    "SLIMGRAD_ISA": "instruction set of the compiled kernels: avx512, avx2 or portable",
    "SLIMGRAD_KERNELS": "native or reference",
    "SLIMGRAD_DEBUG": "1: the command line shows whole tracebacks",
    HUGE_PAGES: "1, before Python starts: torch asks for huge pages, and freed memory goes back to the system",
    "SLIMGRAD_LIBRARY": "path of another compiled library",
}

# For processes that train: freed memory goes back to the system, and plain training gets faster by it too.
ASK_FOR_HUGE_PAGES = {HUGE_PAGES: "1"} if sys.platform == "linux" else {}


def describe() -> dict[str, str]:
    """Return the facts as words, in the order a reader wants them."""
    return {
        "slimgrad": slimgrad.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "accelerator": accelerator(),
        "kernels": kernels_in_use(),
        "threads": f"{torch.get_num_threads()} of torch, {os.cpu_count()} processors",
        "huge pages": "asked for" if has_huge_pages() else "not asked for",
    }


def kernels_in_use() -> str:
    """Return which kernels run on CPU tensors, with the instruction set, or why the slow ones do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same sentence is part of the answer
        module = kernels.active()
    if module is native:
        return f"native, {native.isa()}"
    if os.environ.get("SLIMGRAD_KERNELS") == "reference":
        return "reference (slow), as SLIMGRAD_KERNELS asks"
    return f"reference (slow), because {native.why_unavailable()}"


def processor() -> str:
    """Return the name of the processor as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def accelerator() -> str:
    """Return the kind of accelerator that torch would use."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return "none" if device is None else str(device)


def extras() -> dict[str, dict[str, str | None]]:
    """Return, for every extra, the version of each of its packages; None where it is missing."""
    return {extra: {package: _version(package) for package in packages} for extra, packages in EXTRAS.items()}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
