"""The codec layer: tensors to blobs and back. See base.py for the contract, docs/format.md for the bytes.

    blob = codecs.encode(tensor, "nested", bound=slimgrad.Absolute(0.01), axis=1)
    again = codecs.decode(blob)

This file owns what is the same for every codec: looking one up, checking the tensor and the bound, flattening to memory
order, and keeping the values raw when coding does not pay.
"""

from __future__ import annotations

import math

import torch

from slimgrad.codecs import wire
from slimgrad.codecs.acgc import Acgc
from slimgrad.codecs.base import Blob, Bound, Channels, Codec, Ready, Room
from slimgrad.codecs.cast import Cast
from slimgrad.codecs.deflate import Deflate
from slimgrad.codecs.index import Index
from slimgrad.codecs.mask import Mask
from slimgrad.codecs.nested import Nested
from slimgrad.codecs.raw import Raw
from slimgrad.codecs.rle import Rle
from slimgrad.codecs.zvc import Zvc
from slimgrad.errors import ConfigError, UnknownCodec

__all__ = [
    "Acgc",
    "Blob",
    "Cast",
    "Channels",
    "Codec",
    "Deflate",
    "Index",
    "Mask",
    "Nested",
    "Raw",
    "Ready",
    "Rle",
    "Zvc",
    "decode",
    "encode",
    "from_bytes",
    "get",
    "names",
    "to_bytes",
]

CODECS: dict[str, type[Codec]] = {  # one entry per file, by tag
    codec.name: codec for codec in (Raw, Nested, Mask, Index, Zvc, Rle, Deflate, Cast, Acgc)
}
DEVICES = frozenset({"cpu"})  # where kernels run


def names() -> list[str]:
    """Return the names of all codecs."""
    return list(CODECS)


def get(codec: str | Codec) -> Codec:
    """Return the codec of that name in its default configuration; a codec passes through."""
    if isinstance(codec, Codec):
        return codec
    if not isinstance(codec, str) or codec not in CODECS:
        raise UnknownCodec(codec, names())
    return CODECS[codec]()


def encode(
    tensor: torch.Tensor,
    codec: str | Codec = "nested",
    bound: Bound | None = None,
    axis: int | None = None,
    room: Room | None = None,
) -> Blob:
    """Return `tensor` as a blob whose restored values meet `bound` (None: exact, which only lossless codecs give)."""
    codec = get(codec)
    _check(tensor, codec, bound)
    flat, order = flatten(tensor)
    channels = channels_of(tensor, order, axis)
    payload = codec.encode(flat, bound, channels, room or _fresh_bytes) if flat.numel() else None
    if payload is None or payload.numel() >= flat.numel() * flat.element_size():
        codec, payload = Raw(), None  # whose room is free now
        payload = codec.encode(flat, None, None, room or _fresh_bytes)
    elif room is None:
        payload = payload.clone()  # the room was for the worst case; a blob holds no more than its bytes
    return Blob(codec.name, tensor.dtype, tuple(tensor.shape), order, payload, codec.eps_of(payload))


def decode(blob: Blob, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the restored tensor, in the memory layout of the original; `out` may give flat room for the values."""
    if out is None:
        out = torch.empty(blob.numel, dtype=blob.dtype, device=blob.payload.device)
    get(blob.codec).decode(blob.payload, out)
    return unflatten(out, blob.shape, blob.order)


def to_bytes(blob: Blob) -> bytes:
    """Return the blob as blob.nbytes bytes, for disk or another process; see docs/format.md."""
    return wire.to_bytes(blob, CODECS)


def from_bytes(data: bytes | bytearray | memoryview) -> Blob:
    """Return the blob that to_bytes wrote; anything else raises CorruptPayload here or in decode."""
    return wire.from_bytes(data, CODECS)


def flatten(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return the values in memory order without a copy where the tensor is dense, and the order of its dimensions."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.numel() <= 1:  # torch calls it contiguous whatever its strides are
        tensor = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    if tensor.is_contiguous():
        return tensor.reshape(-1), tuple(range(tensor.dim()))
    stride = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda d: -stride[d]))
    return tensor.permute(order).reshape(-1).contiguous(), order  # reshape alone keeps the gaps of a single dimension


def unflatten(flat: torch.Tensor, shape: tuple[int, ...], order: tuple[int, ...]) -> torch.Tensor:
    """Return the flat values as a tensor of that shape whose dimensions lie in memory in that order."""
    permuted = flat.view([shape[d] for d in order])
    back = sorted(range(len(order)), key=order.__getitem__)
    return permuted.permute(back)


def channels_of(tensor: torch.Tensor, order: tuple[int, ...], axis: int | None) -> Channels:
    """Return where the channel axis and neighbours of the last one lie once the tensor is flattened in this order."""
    apart = 1 if tensor.dim() == 0 else _n_within(tensor, order, tensor.dim() - 1)
    if axis is None:
        return Channels(1, 1, apart)
    if not isinstance(axis, int) or not -tensor.dim() <= axis < tensor.dim():
        raise ConfigError(f"expected axis within the {tensor.dim()} dimensions of the tensor, got {axis!r}")
    axis %= tensor.dim()
    return Channels(tensor.shape[axis], _n_within(tensor, order, axis), apart)


def _n_within(tensor: torch.Tensor, order: tuple[int, ...], axis: int) -> int:
    """Return how many values lie between two neighbours along an axis."""
    return max(1, math.prod(tensor.shape[dim] for dim in order[order.index(axis) + 1 :]))


def _check_kinds(tensor: object, bound: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(f"expected a tensor, got {type(tensor).__name__}; pass torch.tensor(values)")
    is_fixed = not isinstance(bound, type) and hasattr(bound, "eps") and hasattr(bound, "needs_rms")
    if bound is not None and not is_fixed:
        value = bound if isinstance(bound, (int, float)) and bound > 0 else 0.01
        raise ConfigError(
            f"expected a fixed bound, got {bound!r}; pass bound=slimgrad.Absolute({value}) or Relative(0.25): "
            "bounds that adapt are for slimgrad.attach()"
        )


def _check(tensor: torch.Tensor, codec: Codec, bound: Bound | None) -> None:
    _check_kinds(tensor, bound)
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantised" if tensor.is_quantized else str(tensor.layout)
        raise ConfigError(f"expected a dense tensor, got a {kind} one; pass tensor.to_dense() or tensor.dequantize()")
    if tensor.device.type not in DEVICES:
        raise ConfigError(
            f"expected a tensor on {' or '.join(sorted(DEVICES))}, got one on {tensor.device}; pass tensor.cpu()"
        )
    if codec.dtypes and tensor.dtype not in codec.dtypes:
        allowed = ", ".join(sorted(str(dtype) for dtype in codec.dtypes))
        raise ConfigError(
            f"codec {codec.name!r} expected one of {allowed}, got {tensor.dtype}; use codec='raw' or a lossless codec"
        )
    if not codec.is_lossless and (bound is None or (not bound.needs_rms and bound.eps(1.0) == 0.0)):
        raise ConfigError(
            f"codec {codec.name!r} is lossy and needs a bound, got {bound!r}; pass bound=slimgrad.Absolute(0.01), "
            "or a lossless codec such as 'zvc'"
        )


def _fresh_bytes(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8)
