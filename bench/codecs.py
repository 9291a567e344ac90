"""The codec table of docs/results, which `make bench` writes.

    python bench/codecs.py --json docs/results/codecs.json --csv docs/results/codecs.csv

The same as `slimgrad bench codecs`, whose measuring code is slimgrad.lab.codec_bench.
"""

import sys

from slimgrad.cli import main

if __name__ == "__main__":
    main(["bench", "codecs", *sys.argv[1:]])
