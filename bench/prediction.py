"""Predicted against measured peak memory of a training step, by live bytes, for every policy.

    python bench/prediction.py --json docs/results/prediction.json
    python bench/prediction.py --json docs/results/prediction.json --model gpt --arm hybrid      again, the others stay

The prediction is a FakeTensor run (slimgrad.planner.fake_run), for `hybrid` that of the session's own planner; the
measurement is that of bench/peak.py.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slimgrad.lab import machine
from slimgrad.lab.predictions import ARMS, SETUPS, compare

MIB = 1 << 20


def main() -> None:
    """Print one line per model and arm as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="only this model; repeatable")
    parser.add_argument("--arm", action="append", help="only this arm; repeatable")
    parser.add_argument("--json", type=Path, help="write machine and rows to this file")
    arguments = parser.parse_args()
    rows = _read(arguments.json)
    print(f"{'model':10}{'batch':>6}  {'arm':15}{'static':>8}{'predicted':>11}{'measured':>10}  error  beyond static")
    for setup in [setup for setup in SETUPS if not arguments.model or setup.model in arguments.model]:
        for arm in [arm for arm in ARMS if not arguments.arm or arm.rstrip(":") in arguments.arm]:
            row = compare(setup, arm)
            found = {**asdict(row), "error": row.error, "error_beyond_static": row.error_beyond_static}
            rows[setup.model, row.arm] = found
            sizes = f"{row.static / MIB:8,.0f}{row.predicted / MIB:11,.0f}{row.measured / MIB:10,.0f}"
            errors = f"{row.error:+7.1%}{row.error_beyond_static:+15.1%}"
            print(f"{setup.model:10}{setup.batch:6}  {row.arm:15}{sizes}{errors}   in {row.seconds:.1f} s", flush=True)
            if arguments.json:  # after every row: all of them take an hour
                text = json.dumps({"machine": machine.describe(), "rows": list(rows.values())}, indent=1)
                arguments.json.write_text(f"{text}\n")


def _read(path: Path | None) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows that were written before, by model and arm."""
    if path is None or not path.exists():
        return {}
    return {(row["setup"]["model"], row["arm"]): row for row in json.loads(path.read_text())["rows"]}


if __name__ == "__main__":
    main()
