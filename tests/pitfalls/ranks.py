"""One rank of a process group: attached against plain training under DDP or FSDP2; exits with 0 if all is well.

python ranks.py ddp|fsdp RANK WORLD_SIZE STORE_FILE
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from scenes import random, same
from torch import nn

import slimgrad

CHANNELS = 64


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(CHANNELS, 256), nn.ReLU(), nn.Linear(256, CHANNELS), nn.ReLU(), nn.Linear(CHANNELS, 8)
    )


def distribute(model: nn.Sequential, kind: str) -> nn.Module:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of one step, the input's first; shards are returned as the rank holds them."""
    model.zero_grad()
    x.grad = None
    model(x).square().sum().backward()
    grads = [x.grad, *(p.grad for p in model.parameters())]
    return [g.to_local() if hasattr(g, "to_local") else g.clone() for g in grads]


def check_distributed(attach, kind: str, rank: int) -> None:
    """Exact gradients are the same bits; a coarse bound leaves the input gradient alone, as only weights and signs are
    read for it; and after an optimiser step under it all ranks still agree."""
    model = distribute(net(), kind)
    x = random(32, CHANNELS, seed=rank)
    plain = step(model, x)
    with attach(model, bound=slimgrad.Exact()):
        assert same(step(model, x), plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with attach(model, bound=slimgrad.Relative(0.5)):
        assert same(step(model, x)[:1], plain[:1])
        optimizer.step()
    if kind == "ddp":
        for parameter in model.parameters():
            theirs = parameter.detach().clone()
            dist.broadcast(theirs, src=0)
            assert torch.equal(theirs, parameter)


def main(kind: str, rank: str, world_size: str, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world_size), timeout=timedelta(seconds=60)
    )
    check_distributed(slimgrad.attach, kind, int(rank))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads do not always survive an orderly end


if __name__ == "__main__":
    main(*sys.argv[1:])
