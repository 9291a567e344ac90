"""One training step, recorded and run again with some saved tensors replaced: what an error in them does to gradients.

    step = record(model, lambda: criterion(model(x), y), optimizer)
    step.reading                              what a session would have measured, for bounds that set themselves
    step.tensors                              inputs of convolutions, linear layers and batch norms, each storage once,
                                              but for the batch itself
    replay(step, {site: restored, ...})       what errors in these do to the gradients, in all and by layer
    compared(step, gradients)                 the same of gradients that somebody else has computed in this step

Saved tensors are replaced where a convolution, linear layer or batch norm reads them. A ReLU that saved the same
storage keeps its exact signs, as it does in a session. This is a laboratory: it holds all tensors of the step at once,
and knows layers by their modules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from slimgrad.bounds.base import NEGLIGIBLE, NormChannels, Reader, Reading, Site, SiteReading, layer_of
from slimgrad.bounds.momentum import momentum_of
from slimgrad.lab.samples import rms_of_nonzero

Loss = Callable[[], torch.Tensor]
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYERS = (*CONVS, nn.Linear, *NORMS)


class Recorded(NamedTuple):
    """A tensor that layers saved. `is_signed_for` says whether a ReLU needs its signs exactly."""

    site: Site
    word: str  # "conv", "linear" or "norm": the layer that reads it; a norm if there is one
    tensor: torch.Tensor
    is_signed_for: bool


class Step(NamedTuple):
    """A recorded step."""

    model: nn.Module
    loss: Loss
    tensors: list[Recorded]
    reading: Reading
    gradients: list[torch.Tensor]

    @property
    def energy(self) -> float:
        return sum(self.layers.values())

    @property
    def layers(self) -> dict[str, float]:
        """The energy of each layer's gradient."""
        return _by_layer(self.model, self.gradients)


class Replayed(NamedTuple):
    """What errors in saved tensors did to the gradients."""

    noise: float  # ||error||^2 / ||gradient||^2, over all parameters
    layers: dict[str, float]  # ||error||^2 of each layer
    worst: float  # the largest ||error||^2 / ||gradient||^2 of a layer that holds more than NEGLIGIBLE of all energy


def record(model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer | None = None) -> Step:
    """Run one step forward and backward and return what its layers saved and saw. The model must be deterministic."""
    seen: dict[int, list[_Call]] = {}  # by address of the storage, all of which stay alive

    def before(path: str, module: nn.Module, x: torch.Tensor) -> None:
        call = _Call(path, module, x)
        seen.setdefault(x.untyped_storage().data_ptr(), []).append(call)
        if x.requires_grad:
            x.register_hook(call.see_input)

    def after(path: str, x: torch.Tensor, y: torch.Tensor) -> None:
        seen[x.untyped_storage().data_ptr()][-1].follow(y)

    with _around_layers(model, before, after):
        gradients = gradients_of(model, loss)
    tensors, readings = [], []
    for order, calls in enumerate(seen.values()):
        if calls[0].x.grad_fn is None:
            continue  # the batch itself, which its caller keeps
        words = [call.word for call in calls]
        first = calls[0]
        site = (first.path, 0)
        whole = first.x if first.x._base is None else first.x._base
        is_result = type(whole.grad_fn).__name__.startswith("Relu")
        tensors.append(Recorded(site, "norm" if "norm" in words else words[0], first.x.detach(), is_result))
        readings.append(_site_reading(site, order, first.x.detach(), [call.reader(optimizer) for call in calls]))
    step = Step(model, loss, tensors, Reading(1, 0.0, tuple(readings)), gradients)
    return step._replace(reading=Reading(1, step.energy, tuple(readings)))


def replay(step: Step, restored: Mapping[Site, torch.Tensor]) -> Replayed:
    """Run the step again with restored tensors in place of saved ones, and compare its gradients with exact ones."""
    site_of_path = {recorded.site[0]: recorded.site for recorded in step.tensors}
    sites: dict[int, Site] = {}
    alive: list[torch.Tensor] = []
    running: list[str] = []

    def before(path: str, module: nn.Module, x: torch.Tensor) -> None:
        alive.append(x.detach())
        running.append(path)
        if path in site_of_path:  # the first to read a storage gave it its name
            sites.setdefault(x.untyped_storage().data_ptr(), site_of_path[path])

    def pack(tensor: torch.Tensor) -> Any:
        site = sites.get(tensor.untyped_storage().data_ptr()) if running else None
        return tensor.detach() if site not in restored else (site, tensor.shape)

    def unpack(saved: Any) -> torch.Tensor:
        return saved if isinstance(saved, torch.Tensor) else restored[saved[0]].view(saved[1])

    def after(path: str, x: torch.Tensor, y: torch.Tensor) -> None:
        running.pop()

    with _around_layers(step.model, before, after), saved_tensors_hooks(pack, unpack):
        gradients = gradients_of(step.model, step.loss)
    return compared(step, gradients)


def compared(step: Step, gradients: list[torch.Tensor]) -> Replayed:
    """Return how far gradients of the step's loss are from its own."""
    pairs = zip(gradients, step.gradients, strict=True)
    errors = _by_layer(step.model, [ours.double() - exact.double() for ours, exact in pairs])
    energies = step.layers
    energy = sum(energies.values())
    worst = max(errors[layer] / own for layer, own in energies.items() if own > NEGLIGIBLE * energy)
    return Replayed(sum(errors.values()) / energy, errors, worst)


class _Call:
    """One layer's forward, and the gradients that its backward saw."""

    def __init__(self, path: str, module: nn.Module, x: torch.Tensor) -> None:
        self.path, self.module, self.x = path, module, x
        self.out_grad = torch.zeros(1, 1)
        self.in_grad2 = 0.0

    @property
    def word(self) -> str:
        return "norm" if isinstance(self.module, NORMS) else "linear" if isinstance(self.module, nn.Linear) else "conv"

    def follow(self, y: torch.Tensor) -> None:
        y.register_hook(self._see_output)

    def _see_output(self, gradient: torch.Tensor) -> None:
        self.out_grad = gradient

    def see_input(self, gradient: torch.Tensor) -> None:
        self.in_grad2 = float(gradient.double().square().sum())

    def reader(self, optimizer: torch.optim.Optimizer | None) -> Reader:
        gy, weight = self.out_grad, getattr(self.module, "weight", None)
        gw = torch.zeros(1) if weight is None or weight.grad is None else weight.grad
        channel = gy.dim() - 1 if self.word == "linear" else 1
        return Reader(
            function={"conv": f"conv{self.x.dim() - 2}d", "linear": "linear", "norm": "batch_norm"}[self.word],
            weight=f"{self.path}.weight",
            batch=len(gy),
            in_channels=self.x.shape[channel],
            out_channels=gy.shape[channel],
            groups=getattr(self.module, "groups", 1),
            taps=gw[0, 0].numel() if self.word == "conv" else 1,
            stride=int(torch.tensor(self.module.stride).prod()) if isinstance(self.module, CONVS) else 1,
            places=gy.numel() // (len(gy) * gy.shape[channel]),
            out_grad2=float(gy.double().square().sum()),
            out_grad_peak=float(gy.abs().flatten(1).amax(1).mean()),
            in_grad2=self.in_grad2,
            weight_grad2=float(gw.double().square().sum()),
            weight_grad_abs=float(gw.abs().mean()),
            momentum=momentum_of(optimizer, weight),
            norm=_channels(self.module, self.x.detach(), gy, gw) if isinstance(self.module, NORMS) else None,
        )


def _channels(module: Any, x: torch.Tensor, gy: torch.Tensor, gw: torch.Tensor) -> NormChannels:
    """Return what the backward of a batch norm sees, per channel."""
    others = [dim for dim in range(x.dim()) if dim != 1]
    variance = x.double().var(others, unbiased=False)
    ones = torch.ones(x.shape[1])
    weight = ones if module.weight is None else module.weight.detach()
    return NormChannels(
        inv_std=tuple((variance + module.eps).rsqrt().tolist()),
        weight=tuple(weight.tolist()),
        weight_grad=tuple((gw if gw.shape == ones.shape else 0 * ones).tolist()),
        peak_input=tuple(x.abs().amax(others).tolist()),
        peak_grad=tuple(gy.abs().amax(others).tolist()),
        n_grads=tuple((gy != 0).sum(others).tolist()),
    )


def _site_reading(site: Site, order: int, x: torch.Tensor, readers: list[Reader]) -> SiteReading:
    density = int(torch.count_nonzero(x)) / x.numel()
    rms = rms_of_nonzero(x)
    return SiteReading(site, "", order, x.numel(), x.nbytes, 0.0, 0.0, rms, density, readers=tuple(readers))


def gradients_of(model: nn.Module, loss: Loss) -> list[torch.Tensor]:
    """Return the gradients of all parameters that get one; they are also in .grad."""
    model.zero_grad(set_to_none=True)
    loss().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def _by_layer(model: nn.Module, tensors: list[torch.Tensor]) -> dict[str, float]:
    """Return the energy of each layer's tensors, one of which belongs to each parameter with a gradient."""
    names = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    energies: dict[str, float] = {}
    for name, tensor in zip(names, tensors, strict=True):
        energies[layer_of(name)] = energies.get(layer_of(name), 0.0) + float(tensor.double().square().sum())
    return energies


@contextlib.contextmanager
def _around_layers(
    model: nn.Module,
    before: Callable[[str, nn.Module, torch.Tensor], None],
    after: Callable[[str, torch.Tensor, torch.Tensor], None],
) -> Iterator[None]:
    """Call `before` and `after` around every forward of a layer."""
    handles = []
    for path, module in model.named_modules():
        if isinstance(module, LAYERS):
            handles += _hooks(path, module, before, after)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hooks(path: str, module: nn.Module, before: Callable[..., None], after: Callable[..., None]) -> list[Any]:
    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        before(path, module, args[0])

    def leave(module: nn.Module, args: tuple[Any, ...], result: torch.Tensor) -> None:
        after(path, args[0], result)

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
