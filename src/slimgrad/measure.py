"""The statistics that adaptive bounds ask for, taken in the one backward that runs anyway.

    meter.begin(step, request)          from here on, until end()
    meter.note(stored, tensor, bound)   in pack, when a storage was coded
    meter.watch(result)                 when a recorded forward has ended: hooks on the nodes that will read
    meter.end() -> Reading              when the step is over

Everything else is done by hooks on nodes of autograd's graph (`register_prehook`, `register_hook`): gradients of
outputs without full backward hooks, and what a function is without having seen its call (readers.py). On parameters
hooks are on the tensors, since torch.autograd.grad runs those too. Random state, batch-norm statistics and gradients
stay as they are.

Note [Exact error]. For a few sites at a time the original is kept beside its code. Where the reader is linear in the
tensor (convolution, matrix product), its error is the same function of `restored - original`: one weight gradient. For
every other reader the node is called once by hand with the original in place, and what autograd then computes from the
restored tensor is compared with that. Either way the error is followed to the parameters (streams.py). Where the errors
of many sites are followed at once, a finer code takes the place of each original (finer.py).

Note [One stream for all that travel]. Following an error costs up to another backward pass, so all errors of a step
that go on to earlier layers go together, or in a few sets, and the reading says what those of each do together. Errors
that end in the layer's own parameters cost nothing more and are told apart, and so is what each does to the next layer
on its way: a batch norm's error has a part along its own input, which the convolution before it turns into a weight
gradient without any cancellation, and a depthwise one hands it on to the norm before.

Note [At once]. Where nothing has to be told apart within a set, a node is called once for both, its own errors and
those that have arrived (at_once.py).

Note [What a measurement keeps alive]. The original belongs to the Stored, and so to the graph; hooks hold this meter,
and no tensors but the parameter that they are on. Where no site is named, originals are kept up to QUOTA of the bytes
seen so far.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from slimgrad import at_once
from slimgrad.attached import tensors_in
from slimgrad.bounds.base import (
    NEGLIGIBLE,
    NOTHING,
    SUDDEN,
    ErrorReading,
    Reach,
    Reader,
    Reading,
    Request,
    RoleBound,
    Site,
    SiteReading,
    layer_of,
    site_key,
)
from slimgrad.bounds.momentum import momentum_of, moves_alike
from slimgrad.coder import fills
from slimgrad.finer import Finer
from slimgrad.local_errors import LINEAR_RULES, Slots, difference, exactly, minus, read_by
from slimgrad.loss_scale import LossScale
from slimgrad.products import Signs, leaf_of, product_of
from slimgrad.readers import Grads, read
from slimgrad.saved import Stored
from slimgrad.streams import (
    ACCUMULATE,
    Streams,
    call,
    can_be_called,
    current_node,
    energy,
    norm,
)
from slimgrad.tiers import eps_of

QUOTA = 1 / 16  # of the original bytes; one tensor may always be kept
TRAVEL, NEAR, AT_ONCE = "travel", "near ", "at once "  # streams: all that are passed on, single sites, sets of them
N_NEAR, N_NEAR_SUDDEN = 1, 2  # layers; behind queries and keys a projection and the norm before it, which is small
SAMPLE_VALUES = 1 << 9  # enough to tell sparse data from dense
SEEN, EXACT = "slimgrad.seen", "slimgrad.exact"  # in the metadata of a node


@dataclass(slots=True)
class Probe:
    """What is noted of one storage."""

    reading: SiteReading
    mark: object  # of the measurement
    original: torch.Tensor | Finer | None = None  # a detached view of the storage, or nearly
    wants_readers: bool = False
    n_readers: int = 0  # nodes that have yet to see the original in place


class Meter:
    """Takes the statistics of one session, in one thread at a time."""

    def __init__(self, parameters: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        self._parameters = parameters  # of the attached modules, by path; asked for when a measurement begins
        self.is_on = False
        self.optimizer: torch.optim.Optimizer | None = None
        self.scale = LossScale()
        self._measurement = 0  # counts them
        self._clear()

    def _clear(self) -> None:
        self._step, self._request = 0, NOTHING
        self._thread: int | None = None
        self._names: dict[int, str] = {}
        self._streams = Streams({})
        self._probes: dict[Site, dict[int, SiteReading]] = {}  # of each storage, by its id: codes may be replaced
        self._readers: dict[Site, list[tuple[Reader, torch.Tensor | None]]] = {}
        self._near: set[Site] = set()
        self._travelling: set[Site] = set()
        self._at_once: dict[str, set[Site]] = {}  # by stream
        self._measured: set[Site] = set()
        self._norms: dict[str, list[torch.Tensor]] = {}  # of gradients, by parameter
        self._bytes_seen = self._bytes_kept = 0
        self._hooked: dict[str, tuple[torch.Tensor, Any]] = {}  # parameters and the handles of their hooks

    def begin(self, step: int, request: Request) -> None:
        """Begin to measure what is requested; nothing if that is nothing."""
        if not self.is_on and request.is_empty:
            return
        self._remove_hooks()
        self._clear()
        self._step, self._request, self.is_on = step, request, not request.is_empty
        self._measurement += 1
        if self.is_on:
            self._names = {id(parameter): name for name, parameter in self._parameters().items()}
            self._streams = Streams(self._names, Signs(step) if request.is_rough else None)

    def end(self) -> Reading | None:
        """Return what was measured, and stop; None where no gradient has reached a parameter, or not a finite one."""
        if not self.is_on:
            return None
        reading = self._reading()
        self._stop()
        return reading

    def _stop(self) -> None:
        self._remove_hooks()
        self._clear()
        self.is_on = False

    def close(self) -> None:
        """Stop for good."""
        self._stop()
        self.scale.forget()

    def note(self, stored: Stored, tensor: torch.Tensor, bound: RoleBound) -> None:
        """Note a storage that was just coded, and keep the original if its error is to be measured."""
        part = stored.values
        if part is None or part.codec.is_lossless or stored.is_derived or not self._is_our_thread():
            return
        request, site = self._request, stored.site
        if request.is_look and not request.looks_at(site):
            return
        wants_readers = request.gradients is None or site in request.gradients
        keeps = self._may_keep(stored)
        original = tensor.detach() if keeps else self._finer(stored, tensor)
        wants_values = wants_readers or original is not None
        rms, density = _rms_and_density(tensor, is_sampled=not wants_readers) if wants_values else (0.0, 1.0)
        reading = SiteReading(
            site=site,
            role=stored.name,
            order=len(self._probes),
            numel=stored.nbytes // stored.dtype.itemsize,
            nbytes=stored.nbytes_held,
            rel=getattr(bound, "rel", 0.0),
            eps=eps_of(part.codec, part.slot),
            rms=rms,
            density=density,
            unit=1.0 if stored.role is None else stored.role.scale,
            is_centred=bool(getattr(part.codec, "centred", False)),
        )
        if stored.probe is None:
            self._bytes_seen += stored.nbytes
            self._bytes_kept += stored.nbytes if keeps else 0
        stored.probe = Probe(reading, self._streams.mark, original, wants_readers)
        self._probes.setdefault(site, {})[id(stored)] = reading

    def watch(self, result: Any) -> None:
        """Put hooks on the nodes behind a result that read a noted storage, and on the parameters' own."""
        if not self._is_our_thread():
            return
        for node in self._new_nodes(result):
            if type(node).__name__ == ACCUMULATE:
                name = self._names.get(id(node.variable))
                if name is not None and name not in self._hooked:
                    handle = node.variable.register_hook(partial(self._arrive, name, node.variable))
                    self._hooked[name] = node.variable, handle
                continue
            probes = [stored.probe for stored, _ in read_by(node, self._streams)]
            for probe in probes:
                probe.n_readers += 1
            if any(probe.original is not None for probe in probes):
                node.register_prehook(self._before)
            if any(probe.original is not None or probe.wants_readers for probe in probes):
                node.register_hook(self._after)

    def _may_keep(self, stored: Stored) -> bool:
        if self._request.errors is not None:
            return stored.site in self._request.errors
        if stored.probe is not None:
            return stored.probe.original is not None
        return self._bytes_kept == 0 or self._bytes_kept + stored.nbytes <= QUOTA * self._bytes_seen

    def _finer(self, stored: Stored, tensor: torch.Tensor) -> Finer | torch.Tensor | None:
        """Return what an error that is followed or looked at is compared with; None where it is neither."""
        request, site = self._request, stored.site
        is_followed = request.travels is not None and site in request.travels
        if not (is_followed or site in request.looks or request.set_of(site) is not None):
            return None
        return Finer.of(stored, tensor) or tensor.detach()

    def _is_our_thread(self) -> bool:
        """Return whether this thread is the one whose forward is measured: the first that comes."""
        if self._thread is None:
            self._thread = threading.get_ident()
        return self._thread == threading.get_ident()

    def _new_nodes(self, result: Any) -> Iterator[Any]:
        seen, now = f"{SEEN} {id(self)}", self._measurement  # a parameter's own node may outlive a measurement
        stack: list[Any] = [tensor.grad_fn for tensor in tensors_in(result, in_objects=True)]
        while stack:
            node = stack.pop()
            if node is None or node.metadata.get(seen) == now:
                continue
            node.metadata[seen] = now
            stack += [following for following, _ in node.next_functions]
            yield node

    def _before(self, grads: Grads) -> None:
        """Run before a node that reads a storage of which the original is kept; see Note [Exact error]."""
        node = current_node()
        if not self.is_on or torch.is_grad_enabled() or not can_be_called(node) or all(g is None for g in grads):
            return
        together: dict[str, list[tuple[Stored, Slots]]] = {}
        for stored, slots in read_by(node, self._streams):
            if stored.probe.original is None or stored.kept is not None:  # kept since: it is exact now
                continue
            site = stored.probe.reading.site
            if (number := self._request.set_of(site)) is not None:
                stream = f"{AT_ONCE}{number}"
                self._at_once.setdefault(stream, set()).add(site)
                together.setdefault(stream, []).append((stored, slots))
                continue
            kind = type(node).__name__
            if all((kind, slot) in LINEAR_RULES for slot, _ in slots):
                for slot, saved in slots:
                    edge, error_of = LINEAR_RULES[kind, slot]
                    if node.next_functions[edge][0] is None:  # it is frozen
                        continue
                    wrong, product, grad = difference(node, slot, stored, saved), product_of(node), grads[0]
                    if product is not None and edge == product.weight and grad is not None:
                        self._measured.add(site)
                        self._streams.on_weight(product, site_key(site), grad, wrong)
                    else:
                        self._add_error(node, edge, site, error_of(node, grads[0], wrong))
                continue
            with exactly(stored, [saved for _, saved in slots]):
                node.metadata.setdefault(EXACT, []).append((site, call(node, grads)))
        for stream, read_together in together.items():
            at_once.without_errors(node, grads, read_together, self._streams, stream)

    def _after(self, inputs: Grads, outputs: Grads) -> None:
        """Run after such a node: compare with what autograd has computed, and take statistics."""
        node = current_node()
        if not self.is_on:
            return
        for site, exact in node.metadata.pop(EXACT, ()):
            for edge, (before, after) in enumerate(zip(exact, inputs, strict=True)):
                if before is not None and after is not None:
                    self._add_error(node, edge, site, minus(after, before, outputs))
        at_once.compare(node, inputs, outputs, self._streams)
        if self._request.gradients == frozenset():
            return
        for stored, slots in read_by(node, self._streams):
            if stored.probe.wants_readers:
                found = read(node, slots[0][1].size, inputs, outputs, self._names)
                if found is not None:
                    self._readers.setdefault(stored.site, []).append(found)

    def _add_error(self, node: Any, edge: int, site: Site, error: torch.Tensor) -> None:
        self._measured.add(site)
        following, slot = node.next_functions[edge]
        if leaf_of(node, edge) is not None:
            self._streams.add(following, slot, site_key(site), error)
            return
        request = self._request
        if request.looks_at(site):
            self._near.add(site)
            is_sudden = any(reading.role in SUDDEN for reading in self._probes.get(site, {}).values())
            self._streams.add(following, slot, NEAR + site_key(site), error, N_NEAR_SUDDEN if is_sudden else N_NEAR)
        if request.travels is None or site in request.travels:
            self._travelling.add(site)
            self._streams.add(following, slot, TRAVEL, error)

    def _arrive(self, name: str, parameter: torch.Tensor, grad: torch.Tensor | None) -> None:
        """Run when a parameter gets its gradient; a Function may have returned None."""
        if not self.is_on or grad is None:
            return
        self._norms.setdefault(name, []).append(norm(grad))
        self._streams.settle(name)
        self.scale.sample(parameter)

    def _reading(self) -> Reading | None:
        energies = {name: sum(float(one) ** 2 for one in norms) for name, norms in self._norms.items()}
        total = sum(energies.values())
        if not 0.0 < total < math.inf:
            return None
        found = self._streams.energies()
        errors = [_error((site,), found.get(site_key(site), {})) for site in sorted(self._measured)]
        errors += [_error((site,), found.get(NEAR + site_key(site), {}), "near") for site in sorted(self._near)]
        if self._travelling:
            errors.append(_error(tuple(sorted(self._travelling)), found.get(TRAVEL, {}), "far"))
        for stream, together in self._at_once.items():
            errors.append(_error(tuple(sorted(together)), found.get(stream, {}), "all"))
        sites = [replace(_sum(noted.values()), readers=self._readers_of(site)) for site, noted in self._probes.items()]
        finite = tuple(error for error in errors if math.isfinite(error.noise2))
        return Reading(
            self._step, total, tuple(sites), self.scale.value, finite, _by_layer(energies), self._weights(energies)
        )

    def _weights(self, energies: Mapping[str, float]) -> dict[str, float]:
        """Return what layers weigh where the optimizer moves all parameters alike; nothing where energies decide."""
        if not moves_alike(self.optimizer):
            return {}
        parameters = self._parameters()
        numels = _by_layer({name: float(parameters[name].numel()) for name in energies if name in parameters})
        floor = NEGLIGIBLE * sum(energies.values())
        numels = {layer: numels[layer] for layer, energy in _by_layer(energies).items() if energy > floor}
        return {layer: numel / sum(numels.values()) for layer, numel in numels.items()}

    def _readers_of(self, site: Site) -> tuple[Reader, ...]:
        return tuple(
            replace(reader, momentum=momentum_of(self.optimizer, leaf)) for reader, leaf in self._readers.get(site, ())
        )

    def _remove_hooks(self) -> None:
        for parameter, handle in self._hooked.values():
            handle.remove()
            if not parameter._backward_hooks:  # an empty table costs every backward a microsecond
                parameter._backward_hooks = None


def _error(sites: tuple[Site, ...], noise: Mapping[str, float], reach: Reach = "own") -> ErrorReading:
    return ErrorReading(sites, sum(noise.values()), _by_layer(noise), reach)


def _by_layer(energies: Mapping[str, float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, value in energies.items():
        layer = layer_of(name)
        sums[layer] = sums.get(layer, 0.0) + value
    return sums


def _sum(readings: Iterable[SiteReading]) -> SiteReading:
    first, *others = readings
    numel = first.numel + sum(other.numel for other in others)
    return replace(first, numel=numel, nbytes=first.nbytes + sum(other.nbytes for other in others))


def _rms_and_density(tensor: torch.Tensor, is_sampled: bool) -> tuple[float, float]:
    """Return the RMS of what is not zero, and its share; of a sample, where it tells only kinds of data apart."""
    n_bytes = tensor.untyped_storage().nbytes() if is_sampled and tensor.layout is torch.strided else 0
    n = n_bytes // tensor.itemsize  # fewer than the tensor has, where it was expanded
    if n > SAMPLE_VALUES and fills(tensor, n_bytes):
        apart = n // SAMPLE_VALUES | 1  # odd, so that rows of a map and channels have their turns
        tensor = tensor.as_strided((n // apart,), (apart,))
    n_nonzero = int(tensor.count_nonzero())
    rms = math.sqrt(float(energy(tensor)) / n_nonzero) if n_nonzero else 0.0
    return rms, n_nonzero / max(1, tensor.numel())
