"""Disk swap, coded against uncoded: time of a step and resident set, on the disk as it is and on a slower one.

    python bench/swap.py [--model resnet18] [--batch 32] [--limits 0 400 100] [--rounds 3] [--json FILE]

cDMA's claim is that swapping gets faster in proportion to the ratio where the tier is the bottleneck. The disk of a
machine may be faster than training can use, so its bandwidth is limited by the kernel as well (--limits, MB/s; 0: as
it is): blkio.throttle of cgroup v1 or io.max of v2, which needs root. Nothing in slimgrad waits on purpose.

Every arm runs in a process of its own; rounds interleave the arms. The fastest step counts, since other work only adds.
Peak is the high-water mark of the resident set beside what there was before the first step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import slimgrad
from slimgrad.lab import machine, models
from slimgrad.lab.control_group import disk_group, join
from slimgrad.report.memory import reset_resident_peak, resident_now, resident_peak
from slimgrad.storage.disk import default_directory

MB = 10**6
WARM_UP = 2  # steps that are not timed: the order of reads is learnt in them
ARMS = ("plain", "in memory", "disk", "disk coded", "disk coded, overlap")


def policy_of(arm: str, directory: str) -> slimgrad.Compress | slimgrad.Swap | None:
    """Return what an arm attaches; all but `disk`, which codes nothing, give the same gradients."""
    if arm == "plain":
        return None
    if arm == "in memory":
        return slimgrad.Compress()
    coded = arm != "disk"
    return slimgrad.Swap("disk", coded, directory, min_bytes=1 << 16, overlap=arm.endswith("overlap"))


def measure(arm: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Return times and bytes of one arm, measured in this process."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model, criterion = models.build(arguments.model), models.criterion(arguments.model)
    x, y = models.example(arguments.model, batch=arguments.batch, size=arguments.size)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    policy = policy_of(arm, arguments.directory)
    session = None
    if policy is not None:
        session = slimgrad.attach(model, criterion, bound=slimgrad.Relative(0.25), policy=policy)
    reset_resident_peak()
    before, seconds, loss = resident_now() or 0, [], torch.zeros(())
    for _ in range(WARM_UP + arguments.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    found = {"seconds": min(seconds[WARM_UP:]), "peak": (resident_peak() or 0) - before}
    found["loss"] = float(loss)
    if session is not None:
        report = session.report()
        found["ratio"] = report.saved_ratio
        found["on disk"] = report.storage.get("on disk at most", 0)
    return found


def measure_apart(arm: str, group: Path | None, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the same from a fresh process, which joins the control group first."""
    command = [sys.executable, __file__, "--arm", arm, "--group", str(group or "")]
    for name in ("model", "batch", "size", "steps", "threads", "directory"):
        command += [f"--{name}", str(getattr(arguments, name))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def limited(megabytes: int, directory: str) -> contextlib.AbstractContextManager[Path | None]:
    """Return a context with a group in which the directory's disk has so many MB/s each way; 0: no limit, None."""
    return disk_group(directory, megabytes * MB) if megabytes else contextlib.nullcontext()


def run(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Return one row per limit and arm."""
    rows: list[dict[str, object]] = []
    for megabytes in arguments.limits:
        found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
        try:
            with limited(megabytes, arguments.directory) as group:
                for _ in range(arguments.rounds):
                    for arm in ARMS:
                        if megabytes == 0 or arm.startswith("disk"):
                            found[arm].append(measure_apart(arm, group, arguments))
        except OSError as error:
            print(f"no limit of {megabytes} MB/s on this system: {error}", file=sys.stderr)
            continue
        for arm, results in found.items():
            if results:
                best = min(results, key=lambda result: result["seconds"])
                rows.append({"MB/s": megabytes or "as it is", "arm": arm, **best})
    return rows


def show(rows: list[dict[str, object]]) -> None:
    table = Table("disk MB/s", "arm", "s/step", "/ plain", "peak MB", "on disk MB", "ratio", "loss")
    plain = next((row["seconds"] for row in rows if row["arm"] == "plain"), None)
    for row in rows:
        seconds, ratio = float(str(row["seconds"])), row.get("ratio")
        table.add_row(
            str(row["MB/s"]),
            str(row["arm"]),
            f"{seconds:.3f}",
            "" if plain is None else f"{seconds / float(str(plain)):.2f}",
            f"{float(str(row['peak'])) / MB:.0f}",
            f"{float(str(row.get('on disk', 0))) / MB:.0f}",
            "" if ratio is None else f"{float(str(ratio)):.1f}",
            f"{float(str(row['loss'])):.6f}",
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=112, help="of the images")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limits", type=int, nargs="*", default=[0, 400, 100])
    parser.add_argument("--directory", default=default_directory())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--group", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        if arguments.group:
            join(Path(arguments.group), os.getpid())
        print(json.dumps(measure(arguments.arm, arguments)))
        return
    rows = run(arguments)
    show(rows)
    if arguments.json:
        found = {"machine": machine.describe(), "setup": _setup(arguments), "rows": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def _setup(arguments: argparse.Namespace) -> dict[str, object]:
    return {name: getattr(arguments, name) for name in ("model", "batch", "size", "steps", "rounds", "threads")}


if __name__ == "__main__":
    main()
