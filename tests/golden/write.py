"""Write the golden bytes of cases that have none yet: python tests/golden/write.py

Files that are there are left alone, because blobs of that form may be on somebody's disk. Only for a format that was
never released, or under a new format version, may one be deleted and written again.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

import codec_cases  # noqa: E402

from slimgrad import codecs  # noqa: E402

for case in codec_cases.all_cases():
    path = HERE / f"{case.name}.bin"
    if not path.exists():
        data = codecs.to_bytes(codecs.encode(case.tensor, case.codec, case.bound))
        path.write_bytes(data)
        sys.stdout.write(f"{path.name}: {len(data)} bytes\n")
