"""Host memory as a tier below an accelerator: pinned blocks, copied to and fro on a stream of their own.

    hosted = host.spill(values)            a flat tensor on the device; its memory is free once the copy has run
    hosted.take()                          the values on the device again, in memory of the caller's own
    host.begin_step()                      what was read last time is the order of reading ahead now

Note [Streams]. All copies of a device run on one side stream, in the order in which they were asked for. It waits for
the training stream before it reads a tensor, and the training stream waits before it uses one that came back; both
tell the allocator (record_stream), which otherwise reuses memory that the other stream still touches. Since the order
on the side stream is the order of the calls, a pinned block that is free can be reused at once.

Note [Pinned]. Only pinned memory is copied without the processor, and pinning is slow: blocks are kept and reused, by
size, until the session ends. Where the system refuses to pin more, ordinary memory serves, more slowly; `n_pageable`
counts that.

Written for every device of torch.accelerator; it has run on a fake asynchronous one, never on hardware.
"""

from __future__ import annotations

from collections import deque

import torch

from slimgrad.storage.schedule import AHEAD, Schedule

UNIT = 1 << 16  # bytes; block sizes are this times a power of two, or of one and a half


class Hosted:
    """Bytes of a device tensor in host memory. It owns them."""

    __slots__ = ("__weakref__", "_block", "_host", "_loaded", "_number", "device", "nbytes")

    def __init__(self, host: Host, block: torch.Tensor, values: torch.Tensor) -> None:
        self._host, self._block = host, block
        self.device, self.nbytes = values.device, values.numel()
        self._loaded: tuple[torch.Tensor, torch.Event] | None = None
        self._number = host.schedule.put(self)

    def take(self) -> torch.Tensor:
        """Return the bytes on the device, one-dimensional; the next ones are on their way then."""
        for other in self._host.schedule.read(self._number):
            other.load()
        self.load()
        assert self._loaded is not None
        (values, event), self._loaded = self._loaded, None
        stream = torch.accelerator.current_stream(self.device)
        stream.wait_event(event)
        values.record_stream(stream)
        return values

    def load(self) -> None:
        """Begin to copy the bytes back."""
        if self._loaded is None:
            stream = self._host.stream_of(self.device)
            with stream:
                values = torch.empty(self.nbytes, dtype=torch.uint8, device=self.device)
                values.copy_(self._block[: self.nbytes], non_blocking=True)
                event = torch.Event(self.device)
                event.record(stream)
            self._loaded = values, event

    def __del__(self) -> None:
        self._host.returned.append(self._block)


class Host:
    """Pinned blocks and side streams of one session."""

    def __init__(self, n_ahead: int = AHEAD) -> None:
        self.schedule = Schedule(n_ahead)
        self.returned: deque[torch.Tensor] = deque()  # blocks whose owner has died: destructors only append
        self._free: dict[int, list[torch.Tensor]] = {}
        self._streams: dict[torch.device, torch.Stream] = {}
        self.nbytes_peak = 0  # of all blocks; they are kept
        self.n_pageable = 0

    def spill(self, values: torch.Tensor) -> Hosted:
        """Return what owns a copy of a flat uint8 tensor of a device."""
        block = self._take(values.numel())
        stream = self.stream_of(values.device)
        stream.wait_stream(torch.accelerator.current_stream(values.device))
        with stream:
            block[: values.numel()].copy_(values, non_blocking=True)
        values.record_stream(stream)
        return Hosted(self, block, values)

    def stream_of(self, device: torch.device) -> torch.Stream:
        """Return the side stream of a device; see Note [Streams]."""
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.Stream(device)
        return stream

    def begin_step(self) -> None:
        """Learn the order of the last step's reads."""
        self.schedule.begin()

    def close(self) -> None:
        """Let go of the blocks that nobody uses."""
        self.returned.clear()
        self._free.clear()

    def _take(self, nbytes: int) -> torch.Tensor:
        while self.returned:
            block = self.returned.popleft()
            self._free.setdefault(block.numel(), []).append(block)
        size = _block_size(nbytes)
        free = self._free.get(size)
        if free:
            return free.pop()
        self.nbytes_peak += size
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:
            self.n_pageable += 1
            return torch.empty(size, dtype=torch.uint8)


def _block_size(nbytes: int) -> int:
    size = UNIT
    while size < nbytes:
        size *= 2
    return size * 3 // 4 if size > UNIT and size * 3 // 4 >= nbytes else size
