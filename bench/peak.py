"""Peak memory of a training step, plain against slim against checkpointing per block, each in a fresh process.

    python bench/peak.py --model resnet50 --batch 16 --json docs/results/peak.json

The same as `slimgrad bench steps --only peak`; the measuring code is slimgrad.lab.peak.
"""

import sys

from slimgrad.cli import main

if __name__ == "__main__":
    main(["bench", "steps", "--only", "peak", *sys.argv[1:]])
