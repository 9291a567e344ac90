"""What is free of a stretch of bytes: sorted gaps, the lowest one that fits first.

    start = gaps.cut(nbytes)          [start, start + nbytes) is taken; -1: no gap is large enough
    start = gaps.lowest(nbytes)       the same, but it stays free ...
    gaps.cut_at(start, end)           ... until it is known how much of it is needed
    gaps.mend(start, end)             it is free again, in whatever order ranges come back

Gaps are merged, so a stretch of which nothing is taken is one gap and starts at 0 again. Memory (heap.py) and the file
on disk (disk.py) are divided this way. Sizes are multiples
of some unit above one byte. Whoever calls holds the owner's lock.
"""

from __future__ import annotations

from bisect import bisect_left


class Gaps:
    """The free parts of `size` bytes.

    Each change of `gaps` is one operation on the list, so that an interrupt can lose a range but never break the list.
    """

    __slots__ = ("gaps",)

    def __init__(self, size: int) -> None:
        # (start, end) in the order of addresses. The last one ends a byte beyond the stretch: too little to be used,
        # and enough for it to stay when everything is taken.
        self.gaps = [(0, size + 1)]

    @property
    def top(self) -> int:
        """The end of the highest range in use."""
        return self.gaps[-1][0]

    def cut(self, nbytes: int) -> int:
        """Return the start of the lowest gap of that size, now taken, or -1."""
        gaps = self.gaps
        for i, (start, end) in enumerate(gaps):
            if end - start > nbytes:
                gaps[i] = (start + nbytes, end)
                return start
            if end - start == nbytes:
                del gaps[i]
                return start
        return -1

    def lowest(self, nbytes: int) -> int:
        """Return the start of the lowest gap of that size, or -1."""
        for start, end in self.gaps:
            if end - start >= nbytes:
                return start
        return -1

    def cut_at(self, start: int, end: int) -> None:
        """Take [start, end), which is part of a gap."""
        gaps = self.gaps
        above, stop = gaps[-1]
        if start == above:  # the usual case: what comes next after all that is taken
            gaps[-1] = (end, stop)
        elif start < end:
            i = bisect_left(gaps, (start + 1,)) - 1
            low, high = gaps[i]
            gaps[i : i + 1] = [gap for gap in ((low, start), (end, high)) if gap[0] < gap[1]]

    def mend(self, start: int, end: int) -> None:
        """Make [start, end) a gap again, one with the gaps that touch it."""
        gaps = self.gaps
        above, stop = gaps[-1]
        if end == above and (len(gaps) == 1 or gaps[-2][1] < start):  # the usual case: the topmost range
            gaps[-1] = (start, stop)
            return
        i = bisect_left(gaps, (start,))
        first = last = i
        if gaps[i][0] == end:
            end = gaps[i][1]
            last += 1
        if i and gaps[i - 1][1] == start:
            first -= 1
            start = gaps[first][0]
        gaps[first:last] = ((start, end),)
