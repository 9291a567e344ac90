"""Where bytes live: coded tensors in an arena, decoded ones in pooled buffers. Storage knows only bytes.

pages      lazily touched memory straight from the system
arena      coded tensors; whoever holds the Slot owns the bytes
buffers    room to decode into, reused for ever
"""

from slimgrad.storage.arena import Arena, Slot
from slimgrad.storage.buffers import Buffers
from slimgrad.storage.heap import Heap

__all__ = ["Arena", "Buffers", "Heap", "Slot"]
