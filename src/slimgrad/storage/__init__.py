"""Where bytes live: coded tensors in an arena or on disk, decoded ones in pooled buffers. Storage knows only bytes.

pages      lazily touched memory straight from the system
arena      coded tensors; whoever holds the Slot owns the bytes
buffers    room to decode into, reused for ever
freed      what malloc keeps of tensors that are gone
disk       extents in a nameless file, with checksums
worker     one thread beside training, with a bounded queue
host       pinned memory below an accelerator
schedule   in which order bytes will be read
tier       disk, worker and schedule together: bytes that leave memory and are back in time
"""

from slimgrad.storage.arena import Arena, Slot
from slimgrad.storage.buffers import Buffers
from slimgrad.storage.disk import Disk
from slimgrad.storage.freed import Freed
from slimgrad.storage.heap import Heap
from slimgrad.storage.host import Host, Hosted
from slimgrad.storage.tier import Spilled, Tier
from slimgrad.storage.worker import Worker

__all__ = ["Arena", "Buffers", "Disk", "Freed", "Heap", "Host", "Hosted", "Slot", "Spilled", "Tier", "Worker"]
