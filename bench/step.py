"""Time of a training step, plain against slim against checkpointing per block, interleaved in one process.

    python bench/step.py --model resnet50 --batch 16 --json docs/results/step.json

The same as `slimgrad bench steps --only time`; the measuring code is slimgrad.lab.steps.
"""

import sys

from slimgrad.cli import main

if __name__ == "__main__":
    main(["bench", "steps", "--only", "time", *sys.argv[1:]])
