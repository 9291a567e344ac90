"""The contract of bounds, adaptive ones above all, and the statistics that a session takes for them.

A bound is a frozen value: parameters and nothing else. What it learns in a run is a State, a plain dict of numbers,
strings, lists and dicts, which is handed in and returned, so that a checkpoint holds it and a resumed run goes on with
the same bounds:

    start() -> state                  before the first step
    at(site, state) -> bound          the fixed bound for what is saved at this place, now
    wants(step, state) -> Request     which statistics to take in this step; steps count from 1
    update(state, reading) -> state   after a step in which something was wanted; the old state is left as it was
    noise(state) -> float | None      the share of the gradient's energy that the bound expects its errors to be

Fixed bounds keep the contract by inheriting Fixed: they are the same everywhere and want nothing.

Note [Sites]. A site is a place in the code: the path of a module and the number of the save within one call of its
forward. A tensor that several functions save has the site of its first save, and one reading with several readers. A
module called twice in a step has its sites twice; their readings are added up.

Note [Layers]. A layer is a module with parameters of its own, known by its path; its gradient is that of all of them
together. One whose gradient holds less than NEGLIGIBLE of the energy of all is left out wherever errors are related to
a layer's own gradient. An optimizer that divides gradients by their size, as Adam does, moves all parameters alike:
there a layer weighs what its number of parameters is, and Reading.weights says so.

Note [Units]. Energies are sums of squares over whole tensors. A loss scale multiplies every gradient and cancels in
ratios; Reading.scale says what it was, for bounds that compare gradients with anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from slimgrad.codecs.base import Bound
from slimgrad.roles import Role

Site = tuple[str, int]
Reach = Literal["own", "near", "far", "all"]
State = dict[str, Any]

NEGLIGIBLE = 1e-5  # Note [Layers]: a convolution's bias before a batch norm has no gradient but rounding
SUDDEN = frozenset({"attention query, key"})  # roles behind an exponential: what they add may grow within a few steps
ATTENTION = SUDDEN | {"attention value", "attention result"}  # all that attention reads
LOG_SOFTMAX = frozenset({"log-softmax result"})
FIRST_STEPS = (1, 2, 5, 10, 20, 50)  # bounds move most at the beginning, and so does what they are derived from


class RoleBound(Protocol):
    """A bound that knows what it means for a role."""

    def of(self, role: Role) -> Bound: ...


class Request(NamedTuple):
    """What to measure in one step. A set of sites, or None for all of them, also those never seen so far."""

    gradients: frozenset[Site] | None = frozenset()  # statistics of the readers; costs a pass over their gradients
    errors: frozenset[Site] | None = frozenset()  # own and near; keeps the original until backward
    travels: frozenset[Site] | None = frozenset()  # own and far: a step more. Of those not in `errors`, a finer code
    looks: frozenset[Site] = frozenset()  # own and near, by a finer code
    at_once: tuple[frozenset[Site], ...] | None = ()  # own and far of each set in one, by a finer code; None: of all
    is_look: bool = False  # nothing needs to be said of sites that are not in `errors` or `looks`
    is_rough: bool = False  # errors of large weights may be sketched: see products.py

    @property
    def is_empty(self) -> bool:
        return self.gradients == frozenset() == self.errors == self.travels == self.looks and self.at_once == ()

    def looks_at(self, site: Site) -> bool:
        """Return whether own and near errors of the site are to be measured."""
        return self.errors is None or site in self.errors or site in self.looks

    def set_of(self, site: Site) -> int | None:
        """Return which set of `at_once` the site belongs to; None where its error is not measured with others'."""
        if self.at_once is None:
            return 0
        return next((number for number, sites in enumerate(self.at_once) if site in sites), None)


NOTHING = Request()


@dataclass(frozen=True, slots=True)
class NormChannels:
    """What a norm's backward saw, per channel."""

    inv_std: tuple[float, ...]
    weight: tuple[float, ...]  # gamma; ones where there is none
    weight_grad: tuple[float, ...]  # of gamma; zeros where it needs none
    peak_input: tuple[float, ...]  # max |x|
    peak_grad: tuple[float, ...]  # max |gY|
    n_grads: tuple[int, ...]  # number of values of gY that are not zero


@dataclass(frozen=True, slots=True)
class Reader:
    """One function that read the tensor in backward, and the gradients that it saw."""

    function: str  # "conv2d", "linear", "batch_norm", ...
    weight: str = ""  # path of its weight; "" where it has none
    batch: int = 0  # N: size of the first dimension of gY
    in_channels: int = 0  # of the whole tensor, all groups together
    out_channels: int = 0
    groups: int = 1
    taps: int = 1  # R * S, positions of the kernel
    overlap: float = 1.0  # share of (tap, output position) pairs that lie on the input and not on its padding
    stride: int = 1  # product over the dimensions
    places: int = 1  # P * Q, output positions per sample and channel
    out_grad2: float = 0.0  # ||gY||^2
    out_grad_peak: float = 0.0  # mean over samples of max |gY|
    in_grad2: float = 0.0  # ||gX||^2
    weight_grad2: float = 0.0  # ||gW||^2
    weight_grad_abs: float = 0.0  # mean |gW|
    momentum: float | None = None  # mean |momentum| of the weight in the optimizer; None where it holds none
    norm: NormChannels | None = None


@dataclass(frozen=True, slots=True)
class SiteReading:
    """What was measured of the tensor saved at one site; sums where there were several."""

    site: Site
    role: str
    order: int  # of its save in the step, from 0
    numel: int
    nbytes: int  # stored
    rel: float  # the bound it was coded under, as `at` returned it; 0.0 where that was not relative
    eps: float  # the largest error that its code allows
    rms: float  # of the non-zero values; 0.0 where nothing of this site was wanted
    density: float  # share of values that are not zero; 1.0 where nothing of this site was wanted
    unit: float = 1.0  # eps / rms is `rel` times this: the factor of the role
    is_centred: bool = False  # coded around the channels' means
    readers: tuple[Reader, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorReading:
    """The error that the tensors saved at some sites, all together, add to the gradients of some parameters.

    Of each measured site there is one reading for the parameters of the functions that read it ("own"); if its error
    goes on to earlier layers, another for the next of them ("near"); and in steps in which errors are followed all
    the way one of all those sites together for whatever they reach ("far", which contains what is near). Measured at
    once, there is one reading of each set of sites for everything, own and far ("all").
    """

    sites: tuple[Site, ...]
    noise2: float  # energy of the error
    layers: Mapping[str, float] = field(default_factory=dict)  # the same of each layer that it reaches
    reach: Reach = "own"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was measured in one step."""

    step: int
    energy: float  # of the gradients of all parameters
    sites: tuple[SiteReading, ...]
    scale: float = 1.0  # gradients in backward / gradients that the optimizer got: loss scale and clipping
    errors: tuple[ErrorReading, ...] = ()
    layers: Mapping[str, float] = field(default_factory=dict)  # energy of each layer's gradient
    weights: Mapping[str, float] = field(default_factory=dict)  # of layers, where not their energies; Note [Layers]


BoundT = TypeVar("BoundT", bound="Fixed")


class Fixed:
    """A bound that stays as it is."""

    __slots__ = ()

    def start(self) -> State:
        return {}

    def at(self: BoundT, site: Site, state: State) -> BoundT:
        return self

    def wants(self, step: int, state: State) -> Request:
        return NOTHING

    def update(self, state: State, reading: Reading) -> State:
        return state

    def noise(self, state: State) -> float | None:
        return None


class Adaptive(Protocol):
    """What a session asks of any bound; see the module's docstring."""

    def start(self) -> State: ...
    def at(self, site: Site, state: State) -> RoleBound: ...
    def wants(self, step: int, state: State) -> Request: ...
    def update(self, state: State, reading: Reading) -> State: ...
    def noise(self, state: State) -> float | None: ...


def is_due(step: int, every: int) -> bool:
    """Return whether statistics are due: at the first steps, then at every multiple of `every`."""
    return step in FIRST_STEPS or step % every == 0


def layer_of(parameter: str) -> str:
    """Return the layer of a parameter, both by path."""
    return parameter.rpartition(".")[0]


def site_key(site: Site) -> str:
    """Return a site as the key of a dict that survives JSON."""
    return f"{site[0]}#{site[1]}"


def site_of(key: str) -> Site:
    path, _, number = key.rpartition("#")
    return path, int(number)


def with_sites(state: State, sites: Mapping[Site, Any]) -> State:
    """Return the state with the entries of some sites replaced."""
    return {**state, "sites": {**state.get("sites", {}), **{site_key(site): value for site, value in sites.items()}}}
