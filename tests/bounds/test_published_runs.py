"""Comet and AcGc in real sessions: what they read is what plain torch computes, and runs can be scaled and resumed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad import AcGc, Comet, Compress, ConfigError
from slimgrad.bounds.base import Reading, State
from slimgrad.bounds.momentum import momentum_of
from slimgrad.lab.replay import record

ALL = ("conv", "linear", "norm")
BOUNDS = [Comet(layers=ALL), Comet(layers=ALL, exact=True), AcGc(), AcGc(expected=True), AcGc(sound=True)]
every_bound = pytest.mark.parametrize("bound", BOUNDS, ids=repr)


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3),
    )  # fmt: skip


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 2, 12, 12, generator=generator), torch.randint(3, (16,), generator=generator)


class Run:
    """A model in training under a bound; gradients are multiplied by `scale` for backward and divided again."""

    def __init__(self, bound: Comet | AcGc, scale: float = 1.0, kind=torch.optim.SGD, **options) -> None:
        self.model, self.bound, self.scale = small_net(), bound, scale
        self.optimizer = kind(self.model.parameters(), **{"lr": 0.02, **options})
        self.session = slimgrad.attach(self.model, bound=bound, optimizer=self.optimizer, min_bytes=0)
        self.steps = 0

    def train(self, steps: int) -> Run:
        for _ in range(steps):
            self.steps += 1
            x, y = batch(self.steps)
            self.optimizer.zero_grad()
            (self.scale * nn.functional.cross_entropy(self.model(x), y)).backward()
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= self.scale
            self.optimizer.step()
        return self

    def bounds(self) -> State:
        """Return what the bound has learnt; the next forward is where a step ends."""
        self.model(batch(0)[0])
        return self.session.tuning.states[self.bound]["sites"]

    def numbers(self) -> list[float]:
        found = []
        for entry in self.bounds().values():
            bound = entry.get("bound", entry)
            found += bound.get("channels") or [bound.get("rel", bound.get("eps"))]
        return found


@every_bound
def test_a_session_reads_what_plain_torch_computes(bound: Comet | AcGc) -> None:
    run = Run(bound, momentum=0.9)
    plain = small_net()
    x, y = batch(1)
    step = record(plain, lambda: nn.functional.cross_entropy(plain(x), y))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.02, momentum=0.9)
    optimizer.step()  # momentum is read after the step; the gradients are those that record left
    expected = bound.update(bound.start(), record_with(step.reading, plain, optimizer))["sites"]
    found = run.train(1).bounds()
    assert len(found) == len(expected) == 3
    for ours, plains in zip(found.values(), expected.values(), strict=True):
        assert flat(ours) == pytest.approx(flat(plains), rel=0.2)  # activations were coded at a step of half an RMS


def record_with(reading: Reading, model: nn.Module, optimizer: torch.optim.Optimizer) -> Reading:
    """Return the reading with the momentum of now."""
    weights = dict(model.named_parameters())
    sites = [
        replace(
            site, readers=tuple(replace(r, momentum=momentum_of(optimizer, weights[r.weight])) for r in site.readers)
        )
        for site in reading.sites
    ]
    return replace(reading, sites=tuple(sites))


def flat(entry: State) -> list[float]:
    bound = entry.get("bound", entry)
    return bound.get("channels") or [bound.get("rel", bound.get("eps"))]


@every_bound
@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.SGD, {"momentum": 0.9}), (torch.optim.SGD, {}), (torch.optim.AdamW, {"lr": 1e-3})],
    ids=["momentum", "none", "adamw"],
)
def test_a_loss_scale_changes_no_bound(bound: Comet | AcGc, kind, options: dict) -> None:
    plain, scaled = (Run(bound, scale, kind, **options).train(5).numbers() for scale in (1.0, 2.0**12))
    assert scaled == pytest.approx(plain, rel=1e-3)


@every_bound
def test_a_resumed_run_takes_the_same_bounds(bound: Comet | AcGc) -> None:
    whole = Run(bound, momentum=0.9).train(12)
    first = Run(bound, momentum=0.9).train(7)
    saved = json.loads(json.dumps(first.session.state_dict()))
    second = Run(bound, momentum=0.9)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.session.load_state_dict(saved)
    second.steps = 7
    assert second.train(5).bounds() == whole.bounds()


def test_a_warm_up_is_exact_and_then_bounds_hold() -> None:
    bound = Comet(warmup=3)
    run, plain = Run(bound, momentum=0.9), Run(bound, momentum=0.9)
    plain.session.detach()
    for one in (run, plain):
        one.train(3)
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), plain.model.parameters(), strict=True))
    assert run.train(2).numbers()
    assert all(eps > 0 for eps in run.numbers())


def test_the_quantiser_of_acgc_codes_a_norm_per_channel() -> None:
    model = small_net()
    session = slimgrad.attach(model, bound=AcGc(), policy=Compress("acgc"), min_bytes=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(1, 4):
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert "acgc" in str(session.report().to_json())


def test_comet_wants_the_optimizer_of_the_model() -> None:
    model, other = small_net(), small_net()
    with pytest.raises(ConfigError, match=r"expected the optimizer, whose momentum it reads.*optimizer=optimizer"):
        slimgrad.attach(model, bound=Comet())
    with pytest.raises(ConfigError, match=r"expected an optimizer that holds parameters of the model"):
        slimgrad.attach(model, bound=Comet(), optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    slimgrad.attach(model, bound=AcGc()).detach()
