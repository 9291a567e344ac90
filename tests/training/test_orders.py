"""Training loops in every order that people write them give the gradients of plain torch."""

from __future__ import annotations

import contextlib
import copy
import threading

import pytest
import small_models
import torch
from scenes import Calls, gradients, random, same
from torch import nn
from torch.nn import functional as F

import slimgrad
from slimgrad.lab import models

EXACT = slimgrad.Exact()


def mlp(n_in, n_out, seed):
    torch.manual_seed(seed)
    layers = [nn.Linear(n_in, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, n_out)]
    return nn.Sequential(*layers)


def train_gan(attach, n_steps=5):
    """Train a small GAN; the discriminator runs three times before its second backward."""
    generator, critic = mlp(8, 32, 0), mlp(32, 1, 1)
    with attach(generator, critic):
        optimizers = [torch.optim.Adam(net.parameters(), 1e-3) for net in (generator, critic)]
        for step in range(n_steps):
            real, noise = random(64, 32, seed=step, grad=False), random(64, 8, seed=100 + step, grad=False)
            fake = generator(noise)
            on_real, on_fake = critic(real), critic(fake.detach())
            optimizers[1].zero_grad()
            (F.softplus(-on_real).mean() + F.softplus(on_fake).mean()).backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            F.softplus(-critic(fake)).mean().backward()
            optimizers[0].step()
    return [*generator.parameters(), *critic.parameters()]


def exactly(*modules):
    return slimgrad.attach(*modules, bound=EXACT, min_bytes=64)


def plainly(*modules):
    return contextlib.nullcontext()


def test_gan():
    assert same(train_gan(exactly), train_gan(plainly))


def train_ahead(attach, model, criterion, examples):
    """Forward k + 1 always runs before backward k."""
    collected = []
    with attach(model, criterion):
        pending = None
        for inputs, target in examples:
            torch.manual_seed(len(collected))
            loss = criterion(model(inputs), target)
            if pending is not None:
                collected += gradients(pending, model)
            pending = loss
        collected += gradients(pending, model)
    return collected


@pytest.mark.parametrize("name", ["resnet18", "gpt"])
def test_the_next_forward_before_this_backward(name):
    examples = [small_models.example(name, seed=seed) for seed in range(6)]
    criterion = models.criterion(name)
    plain = train_ahead(plainly, small_models.build(name), criterion, examples)
    assert same(train_ahead(exactly, small_models.build(name), criterion, examples), plain)


def test_the_next_forward_before_this_backward_keeps_memory_bounded():
    """No order of release is assumed: the arena does not grow while graphs overlap for ever."""
    model = small_models.build("resnet18")
    examples = [small_models.example("resnet18", batch=16, seed=seed) for seed in range(40)]
    criterion = models.criterion("resnet18")
    sizes, pending = [], None
    with slimgrad.attach(model, criterion, bound=slimgrad.Relative(0.25)) as session:
        for inputs, target in examples:
            loss = criterion(model(inputs), target)
            if pending is not None:
                pending.backward()
            pending = loss
            sizes.append(sum(session.report().storage.values()))
        pending.backward()
    assert max(sizes[20:]) <= max(sizes[:20]) + (2 << 20)  # memory comes in pages of 2 MiB


def test_a_siamese_net_is_called_twice_before_backward():
    def step(attach):
        model = small_models.build("resnet18")
        with attach(model):
            one, two = small_models.example("resnet18", seed=1)[0], small_models.example("resnet18", seed=2)[0]
            return gradients((model(one) - model(two)).square().sum(), model)

    assert same(step(exactly), step(plainly))


def test_backward_inside_forward():
    """A force field: the model's output is a gradient of its own energy."""
    energy = mlp(3, 1, 0)
    energy[1] = energy[3] = nn.SiLU()

    def forces(positions):
        with torch.enable_grad():
            positions = positions.requires_grad_()
            return -torch.autograd.grad(energy(positions).sum(), positions, create_graph=True)[0]

    def step(attach):
        model = Calls(forces, energy=energy)
        with attach(model):
            return gradients((model(random(128, 3, grad=False)) - 1).square().mean(), model)

    assert same(step(exactly), step(plainly))


def test_modules_that_are_frozen_shared_or_never_reached():
    def step(attach):
        torch.manual_seed(0)
        shared, frozen, unreached = nn.Linear(64, 64), nn.Linear(64, 64).requires_grad_(False), nn.Linear(64, 64)
        model = Calls(
            lambda x: shared(F.gelu(frozen(F.relu(shared(x))))), shared=shared, frozen=frozen, unreached=unreached
        )
        with attach(model):
            return gradients(model(random(128, 64)).square().sum(), model)

    assert same(step(exactly), step(plainly))


def test_requires_grad_switched_on_and_off():
    def steps(attach):
        model = small_models.build("resnet18")
        inputs, target = small_models.example("resnet18")
        collected = []
        with attach(model):
            for trains_blocks in (True, False, True):
                model.blocks.requires_grad_(trains_blocks)
                collected += gradients(F.cross_entropy(model(inputs), target), model)
                with torch.no_grad():
                    model(inputs)
        return collected

    assert same(steps(exactly), steps(plainly))


def test_code_outside_the_modules_is_recorded_on_request():
    weight = nn.Parameter(random(64, 64))

    def loss(x):
        return F.relu(x @ weight).square().sum()

    x = random(128, 64, seed=1)
    plain = gradients(loss(x), x, weight)
    model = nn.Identity()  # held here: a session ends with the last of its models
    with slimgrad.attach(model, bound=EXACT) as session:
        with session.recording():
            value = loss(x)
        assert session.report().to_dict()["last_step"]["saved_in"] > 0
        assert same(gradients(value, x, weight), plain)


def test_paused_records_nothing():
    model = small_models.build("resnet18")
    inputs, _ = small_models.example("resnet18")
    with slimgrad.attach(model, bound=slimgrad.Relative(0.5)) as session:
        with session.paused():
            paused = gradients(model(inputs).square().sum(), model)
        assert session.report().to_dict()["total"]["saved_in"] == 0
        resumed = gradients(model(inputs).square().sum(), model)
        assert session.report().to_dict()["total"]["saved_in"] > 0
    plain = gradients(model(inputs).square().sum(), model)
    assert same(paused, plain)
    assert not same(resumed, plain)


def test_detach_leaves_the_model_as_it_was():
    model = small_models.build("resnet18")
    inputs, _ = small_models.example("resnet18")
    before = [sorted(module.__dict__) for module in model.modules()]
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    session = slimgrad.attach(model, bound=slimgrad.Relative(0.5))
    loss = model(inputs).square().sum()
    session.detach()
    session.detach()  # twice does no harm
    assert [sorted(module.__dict__) for module in model.modules()] == before
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()] == hooks
    assert len(gradients(loss, model)) > 0  # what was recorded before can still be read


def test_inference_does_not_touch_the_session():
    model = small_models.build("resnet18").eval()
    inputs, _ = small_models.example("resnet18")
    plain = model(inputs)
    with slimgrad.attach(model, bound=slimgrad.Relative(0.5)) as session:
        with torch.no_grad():
            assert torch.equal(model(inputs), plain)
        with torch.inference_mode():
            assert torch.equal(model(inputs), plain)
        assert session.report().to_dict()["total"]["saved_in"] == 0


def test_two_models_in_two_threads_give_the_gradients_they_give_alone():
    """Each thread trains its own attached model; the arena, the pool and the ledger may be shared, the results not."""
    names = ["resnet18", "vit"]

    def train(name):
        model, criterion = small_models.build(name), models.criterion(name)
        collected = []
        for seed in range(8):
            inputs, target = small_models.example(name, seed=seed)
            collected += gradients(criterion(model(inputs), target), model)
        return collected

    def train_attached(name, model, criterion, results, start):
        with slimgrad.attach(model, criterion, bound=slimgrad.Relative(0.25), min_bytes=64):
            start.wait(60)
            collected = []
            for seed in range(8):
                inputs, target = small_models.example(name, seed=seed)
                collected += gradients(criterion(model(inputs), target), model)
            results[name] = collected

    alone, together = {}, {}
    for name in names:
        train_attached(name, small_models.build(name), models.criterion(name), alone, threading.Barrier(1))
    start = threading.Barrier(2)
    nets = [(name, small_models.build(name), models.criterion(name), together, start) for name in names]
    threads = [threading.Thread(target=train_attached, args=net) for net in nets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for name in names:
        assert same(together[name], alone[name])
        assert not same(alone[name], train(name))


def test_a_copy_of_the_parameters_trains_alone():
    """Two attached copies of one model do not know of each other."""
    first = small_models.build("resnet18")
    second = copy.deepcopy(first)
    inputs, target = small_models.example("resnet18")
    plain = gradients(F.cross_entropy(first(inputs), target), first)
    with exactly(first), exactly(second):
        losses = [F.cross_entropy(model(inputs), target) for model in (first, second)]
        assert same(gradients(losses[1], second), plain)
        assert same(gradients(losses[0], first), plain)
