"""One piece of memory for coded bytes and decode buffers: ranges of a large region, the lowest gap that fits first.

    with heap.lock:
        region, start = heap.reserve(nbytes)     [start, start + nbytes) of region.pages.values is the caller's
        heap.lend(region, end)                   for a buffer: it is written now
    region.dead.append((start, end, ...))        from anywhere, without the lock: the range is given back

Note [Why one heap]. In a usual step coded bytes pile up during forward and shrink during backward, while decode buffers
are needed the more, the earlier the layer. With both in one piece, buffers just above the coded bytes, the high-water
mark is that of the sum and not the sum of two high-water marks. docs/decisions/0002-one-heap.md has the measurements.

Note [What stays warm]. Forward has its own peak, at its first layers, when next to nothing is stored yet. Pages that
only the last backward needed would add to it, so trim(), once per step, gives them back where huge pages make it cheap
to touch them anew: 0.09 s per GB, against 0.94 s without. Where they are dear, and below WARM bytes everywhere, pages
stay until PATIENCE steps have not used them: small models pay nothing, and one large step is forgotten.

Note [Within a step]. Backward of a U-Net needs its largest buffers first, then those of its depth, then large ones
again, and peaks in its depth, where the gradients of all skip connections wait. So where pages are cheap, those that
none of the LATEST buffers needed go back at once.

Note [Who gives back]. A range comes back by a destructor, and a destructor may run at any moment in any thread, also in
a garbage collection in the middle of reserve(). It therefore takes no lock: it appends to a deque of the region, and
whoever next holds the lock works that off.

Note [Any order]. Gaps are merged, so whatever the order of release, an empty region is one gap again and starts at 0.
An encoder asks for the worst case and keeps a part; nothing else is put into the region while that part is not
known, or else the two would lie a worst case apart. A second thread that encodes at that moment gets another region.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable

from slimgrad.errors import StorageFull
from slimgrad.storage.gaps import Gaps
from slimgrad.storage.pages import HUGE, Pages, default_nbytes, unlock_in_child

ALIGNMENT = 64  # bytes: a cache line, and the widest vector a kernel may load
PATIENCE = 16  # trims for which a region stays that nobody used, and pages where new ones are dear
WARM = 1 << 24  # bytes of a region that are not given back after every step; eight huge pages, about a millisecond
LATEST = 5  # buffers: one more than the narrow layers of a bottleneck ask for; see Note [Within a step]
DROPPED = 1 << 62  # instead of coded bytes: the range was reserved and never kept


class Lease(weakref.ref):
    """A weak reference to the array that is lent as a buffer over [start, end); see buffers.py."""

    __slots__ = ("end", "start")

    start: int
    end: int
    __hash__ = object.__hash__  # by identity: an array has no hash
    __eq__ = object.__eq__


class Region(Gaps):
    """A piece of address space, its gaps, and what is known of its pages."""

    __slots__ = (
        "__weakref__", "dead", "high", "is_reserved", "last_use", "latest", "lent", "nbytes_coded", "pages", "returned",
    )  # fmt: skip

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        super().__init__(pages.size)
        self.dead: deque[tuple[int, int, int]] = deque()  # start, end, and by how much nbytes_coded falls
        self.returned: deque[Lease] = deque()
        self.lent: set[Lease] = set()
        self.nbytes_coded = 0
        self.is_reserved = False  # for an encoder; see Note [Any order]
        self.high = 0  # the largest end in use since the last trim that was due
        self.last_use = 0
        self.latest: deque[int] = deque(maxlen=LATEST)  # where the latest buffers end

    @property
    def nbytes_lent(self) -> int:
        return sum(lease.end - lease.start for lease in self.lent)

    def use(self, end: int) -> None:
        """Note that bytes below `end` are written."""
        if end > self.high:
            self.high = end
        self.pages.touch(end)

    def trim(self, is_due: bool) -> None:
        """Give pages back, every PATIENCE steps also those that are kept warm; see Note [What stays warm]."""
        if self.is_reserved or not (self.pages.is_huge or is_due):
            return
        warm = min(WARM, self.high) if is_due else WARM
        keep = max(warm, self.top) if self.pages.is_huge else self.high
        if self.pages.touched > keep + HUGE:
            self.pages.forget(keep)
        if is_due:
            self.high = self.top

    def bury(self) -> None:
        """Give back what has died; see Note [Who gives back]."""
        dead = self.dead
        while dead:
            start, end, nbytes_coded = dead.popleft()
            if nbytes_coded == DROPPED:  # still a gap
                self.pages.touch_written(end)  # the writer may have got anywhere
                self.is_reserved = False
            else:
                self.nbytes_coded -= nbytes_coded
                if start < end:
                    self.mend(start, end)
        while self.returned:
            lease = self.returned.popleft()
            self.lent.discard(lease)
            self.mend(lease.start, lease.end)


class Heap:
    """Regions, nearly always one. Whoever calls reserve() or reads sums holds `lock`."""

    def __init__(self, region_nbytes: int | None = None, make_pages: Callable[[int], Pages] = Pages) -> None:
        self.lock = threading.Lock()
        self._make_pages = make_pages
        self._region_nbytes = region_nbytes or default_nbytes()
        self._regions: list[Region] = []
        self._closed: weakref.WeakSet[Region] = weakref.WeakSet()  # alive only as long as coded bytes in them are
        self._epoch = 0
        self._peak = 0
        unlock_in_child(self)

    def reserve(self, nbytes: int, is_open: bool = False) -> tuple[Region, int]:
        """Return a region and where in it `nbytes` bytes, a multiple of ALIGNMENT, are now the caller's.

        Those of an encoder stay a gap, `is_open`: it sets is_reserved, and cuts out what it needs when it knows.
        """
        for region in self._regions:
            if region.dead or region.returned:
                region.bury()
            if not region.is_reserved:
                start = region.lowest(nbytes) if is_open else region.cut(nbytes)
                if start >= 0:
                    region.last_use = self._epoch
                    return region, start
        region = Region(_map_pages(self._region_nbytes, nbytes, self._make_pages))
        region.last_use = self._epoch
        self._regions.append(region)
        return region, 0 if is_open else region.cut(nbytes)

    def lend(self, region: Region, end: int) -> None:
        """Note that a buffer below `end` is written; give back what the latest ones do without."""
        region.use(end)
        region.latest.append(end)
        pages = region.pages
        if pages.touched > end + WARM and pages.is_huge:  # see Note [Within a step]
            keep = max(*region.latest, region.top, WARM)
            if pages.touched > keep + WARM:
                self._note_peak()
                pages.forget(keep)

    def regions(self) -> list[Region]:
        """Return all regions that hold memory, with up-to-date sums."""
        regions = [*self._regions, *self._closed] if self._closed else list(self._regions)  # a weak set is slow to ask
        for region in regions:
            region.bury()
        return regions

    @property
    def nbytes_touched(self) -> int:
        """Bytes that are resident because something has been there, whether it is there now or not."""
        with self.lock:
            return sum(region.pages.touched for region in self.regions())

    @property
    def n_regions(self) -> int:
        return len(self._regions)

    def owns(self, address: int) -> bool:
        """Return whether the byte at this address is the heap's."""
        with self.lock:
            pages = [region.pages for region in (*self._regions, *self._closed)]
        return any(0 <= address - part.address < part.size for part in pages)

    @property
    def nbytes_peak(self) -> int:
        """The most bytes that were ever touched at once."""
        return max(self._peak, self.nbytes_touched)

    def trim(self) -> None:
        """Count one step; give back pages that the next ones do without. See Note [What stays warm]."""
        with self.lock:
            self._note_peak()
            self._epoch += 1
            for region in self.regions():
                region.trim(self._epoch % PATIENCE == 0)
            self._regions = [
                region
                for region in self._regions
                if region.top or region.is_reserved or self._epoch - region.last_use <= PATIENCE
            ]

    def close(self) -> None:
        """Give all memory back to the system; what is in use goes when its last user dies. reserve() maps anew."""
        with self.lock:
            self._note_peak()
            self._closed.update(region for region in self._regions if region.top or region.is_reserved)
            self._regions = []

    def _note_peak(self) -> None:
        self._peak = max(self._peak, sum(region.pages.touched for region in self.regions()))


def _map_pages(wish: int, need: int, make: Callable[[int], Pages]) -> Pages:
    size = wish
    while size > need:
        with contextlib.suppress(OSError):  # a limit on address space: ask for less
            return make(size)
        size //= 4
    try:
        return make(need)
    except OSError as error:
        raise StorageFull(
            f"expected {need:,} bytes of memory from the system, got: {error}; use a smaller batch, "
            "or raise the limit on address space (ulimit -v)"
        ) from error
