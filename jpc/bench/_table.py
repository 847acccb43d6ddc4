"""The tables, declared: networks, rules, and which of them each one has at three sizes."""

import dataclasses
import functools as ft
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.random as jr
import optax
from jaxtyping import PRNGKeyArray

import jpc

from .._layer import Layer, parameterise
from .._types import Number

LOSSES = {"mse": jpc.squared_error, "ce": jpc.cross_entropy}
_BETA = 0.5  # Of nudges that are finite.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """A network, what it is trained on, and how.

    - `network`, `rule`: names in `NETWORKS` and `RULES`.
    - `strength`: p tr(A) / n, the mean eigenvalue of S less one; `None` for a rule that has none.
    - `width`: the units of a layer, or the channels of the first convolution.
    - `examples`: how many to train with; `None`: all.
    - `clip`: the longest that gradients may be; `None`: any length.
    """

    network: str
    dataset: str
    loss: str
    rule: str
    strength: float | None
    epochs: int
    seed: int
    width: int
    examples: int | None = None
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 5e-4
    clip: float | None = None

    @property
    def place(self) -> str:
        """`vgg5 on cifar10, mse, 25 epochs`: where rules are compared."""
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        clipped = "" if self.clip is None else ", clipped"
        return f"{self.network} on {self.dataset}, {self.loss}, {epochs}{clipped}"

    @property
    def optimiser(self) -> str:
        """In words."""
        clipped = "" if self.clip is None else f", gradients clipped at {self.clip:g}"
        return f"AdamW {self.learning_rate:g}, weight decay {self.weight_decay:g}{clipped}"

    @property
    def kind(self) -> "Cell":
        """The same for all cells that share their programs: of any seed and strength."""
        return dataclasses.replace(self, seed=0, strength=None)

    @property
    def named(self) -> str:
        """`nudged 1`: the rule, and its strength."""
        return self.rule if self.strength is None else f"{self.rule} {self.strength:g}"

    @property
    def images(self) -> bool:
        return NETWORKS[self.network].images


# --- networks ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """How to make a network: of a key, the shape of an input, how many classes and a width."""

    text: str
    make: Callable[[PRNGKeyArray, tuple[int, ...], int, int], list[Layer]]
    images: bool = False


def _cnn(size: Any, change: Callable[[Any], Any] = lambda layer: layer) -> Callable:
    def make(key, shape, classes, width) -> list[Layer]:
        model = jpc.make_cnn(key, shape, classes, size=size, channels=width)
        return [Layer(change(layer)) for layer in model]

    return make


def _mlp(depth: int, param_type: Any, change=lambda layer: layer, *, skips: bool) -> Callable:
    def make(key, shape, classes, width) -> list[Layer]:
        sizes: Any = (shape[0], width, depth, classes, "gelu")
        model, skip = jpc.make_residual_mlp(key, *sizes, param_type=param_type)
        fan_ins = [shape[0], *[width] * (depth - 1)]
        given: Any = dict(fan_ins=fan_ins, param_type=param_type)
        return parameterise(list(map(change, model)), skip if skips else None, **given)

    return make


def _normalise_weights(layer: eqx.nn.Sequential) -> eqx.nn.Sequential:
    """A layer that learns the length and the direction of each unit's weights."""
    wrapped = lambda part: isinstance(part, eqx.nn.Linear | eqx.nn.Conv2d)
    parts = [eqx.nn.WeightNorm(part) if wrapped(part) else part for part in layer.layers]
    return eqx.nn.Sequential(parts)


NETWORKS: dict[str, Made] = {
    "mlp": Made(text="4 layers, gelu", make=_mlp(4, "sp", skips=False)),
    "mlp-weightnorm": Made(
        text="mlp with weight normalisation", make=_mlp(4, "sp", _normalise_weights, skips=False)
    ),
    "resmlp": Made(
        text="10 layers, gelu, skips around all but the ends", make=_mlp(10, "sp", skips=True)
    ),
    "resmlp-mupc": Made(
        text="resmlp with the scalings of muPC", make=_mlp(10, "mupc", skips=True)
    ),
    "vgg5": Made(text="make_cnn", make=_cnn("vgg5"), images=True),
    "vgg5-weightnorm": Made(
        text="vgg5 with weight normalisation", make=_cnn("vgg5", _normalise_weights), images=True
    ),
    "vgg7": Made(text="make_cnn", make=_cnn("vgg7"), images=True),
    "vgg9": Made(text="make_cnn", make=_cnn("vgg9"), images=True),
    "resnet10": Made(text="make_cnn", make=_cnn("resnet10"), images=True),
    "resnet18": Made(text="make_cnn", make=_cnn("resnet18"), images=True),
}
"""The networks that [`jpc.bench.bench`][] trains, by name. `NETWORKS["vgg5"].text` says what the
one of that name is.
"""


# --- rules ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of learning.

    - `text`: what it is.
    - `make`: it, for a strength.
    - `stiffness`: how many times more precise each hidden layer is than the one after it.
    """

    text: str
    make: Callable[[Number | None], jpc.AbstractInference]
    stiffness: float | None = None

    def energy(self, loss: str) -> jpc.PCEnergy:
        return jpc.PCEnergy(LOSSES[loss], stiffness=self.stiffness)


def _nudged(**options: Any) -> Callable[[Number | None], jpc.AbstractInference]:
    return lambda strength: jpc.Nudged(strength=strength, throw=False, **options)


_QUICK = jpc.Equilibrium(chords=3, max_steps=0, safe=False, throw=False)
_CERTIFIED = jpc.Equilibrium(1e-2, safe=False, throw=False)


def _at_equilibrium(beta: float, sign: Any, method: jpc.Equilibrium = _QUICK) -> Callable:
    return _nudged(beta=beta, sign=sign, inference=method)


def _descent(optim: optax.GradientTransformation, steps: int) -> Callable:
    return lambda strength: jpc.Descent(optim, steps, throw=False)


RULES: dict[str, Rule] = {
    "backprop": Rule(text="backpropagation", make=lambda strength: jpc.Backprop()),
    "sgd": Rule(
        text="7 steps of SGD (0.03, momentum 0.1) on the states, as in published work",
        make=_descent(optax.sgd(0.03, 0.1), 7),
    ),
    "adam": Rule(
        text="20 steps of Adam (0.01) on the states, as in published work",
        make=_descent(optax.adam(0.01), 20),
    ),
    "plain": Rule(
        text="predictive coding at equilibrium (3 chords)", make=_at_equilibrium(1.0, "positive")
    ),
    "positive": Rule(
        text=f"nudged by beta = {_BETA}, at equilibrium", make=_at_equilibrium(_BETA, "positive")
    ),
    "negative": Rule(
        text=f"nudged by -{_BETA}, at equilibrium", make=_at_equilibrium(_BETA, "negative")
    ),
    "centred": Rule(
        text="the difference of both, at equilibrium", make=_at_equilibrium(_BETA, "centred")
    ),
    "plain-exact": Rule(
        text="plain, with as many iterations as an example needs to be within 1 %",
        make=_at_equilibrium(1.0, "positive", _CERTIFIED),
    ),
    "positive-exact": Rule(
        text="positive, likewise", make=_at_equilibrium(_BETA, "positive", _CERTIFIED)
    ),
    "negative-exact": Rule(
        text="negative, likewise", make=_at_equilibrium(_BETA, "negative", _CERTIFIED)
    ),
    "centred-exact": Rule(
        text="centred, likewise", make=_at_equilibrium(_BETA, "centred", _CERTIFIED)
    ),
    "nudged": Rule(text="the limit of small nudges; A is that of four examples", make=_nudged()),
    "nudged-own": Rule(text="the same, each example with its own A", make=_nudged(shared=None)),
    "nudged-last": Rule(
        text="nudged, with a stiffness of 10,000: it is the last hidden layer that relaxes",
        make=_nudged(),
        stiffness=1e4,
    ),
    "nudged-last-1000": Rule(
        text="the same with a stiffness of 1,000", make=_nudged(), stiffness=1e3
    ),
    "nudged-last-1e6": Rule(
        text="the same with a stiffness of a million", make=_nudged(), stiffness=1e6
    ),
}
"""The learning rules that it compares, by name. `RULES["nudged"].text` says what the rule is."""


def make_layers(cell: Cell, shape: Sequence[int], classes: int) -> list[Layer]:
    """A cell's network, as it is before training."""
    made = NETWORKS[cell.network]
    return made.make(jr.key(cell.seed), tuple(shape), classes, cell.width)


# --- tables ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where rules are compared."""

    network: str
    dataset: str
    epochs: int
    width: int
    loss: str = "mse"
    examples: int | None = None
    learning_rate: float = 1e-3
    weight_decay: float = 5e-4
    clip: float | None = None

    def cells(self, rules: Mapping[str, Sequence[float | None]], seeds: int) -> list[Cell]:
        own = dataclasses.asdict(self)
        pairs = [(rule, strength) for rule, given in rules.items() for strength in given]
        return [
            Cell(rule=rule, strength=strength, seed=seed, **own)
            for (rule, strength), seed in itertools.product(pairs, range(seeds))
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Some places, rules with their strengths, and how many seeds."""

    places: Sequence[Place]
    rules: Mapping[str, Sequence[float | None]]
    seeds: int = 3

    def cells(self) -> list[Cell]:
        return [cell for place in self.places for cell in place.cells(self.rules, self.seeds)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """A question, the picture that answers it, and the tables of each size."""

    title: str
    picture: str
    sizes: Mapping[str, Sequence[Table]]

    def cells(self, size: str) -> list[Cell]:
        return list(dict.fromkeys(c for table in self.sizes[size] for c in table.cells()))


SIZES = ("smoke", "default", "full")
"""The sizes of a table: seconds, minutes on two cores, or hours on an accelerator."""
_NONE = (None,)
_digits = Place(network="mlp", dataset="digits", epochs=1, width=16, examples=512)
_small = ft.partial(Place, dataset="fashion-mnist", width=128, epochs=2, examples=12_800)
_fashion = ft.partial(Place, dataset="fashion-mnist", width=256, epochs=10)
_cifar = ft.partial(Place, dataset="cifar10", width=128)
_clipped = ft.partial(_cifar, weight_decay=0.3, clip=0.3)
_every = {"backprop": _NONE, "sgd": _NONE, "adam": _NONE, "plain": (0.01, 0.1, 1.0)}
_every |= {"centred": (1.0,), "negative": (1.0,)}
_every |= {"nudged": (0.1, 1.0, 10.0), "nudged-own": (1.0,)}
_every |= {"nudged-last": (1.0,), "nudged-last-1000": (1.0,)}
_main = {"backprop": _NONE, "nudged": (1.0,), "nudged-last": (1.0,), "nudged-own": (1.0,)}
_SIGNED, _STRENGTHS = ("plain", "positive", "negative", "centred"), (0.001, 0.01, 0.1, 1.0, 10.0)
_by_strength = {"backprop": _NONE, **dict.fromkeys(_SIGNED, _STRENGTHS)}
_certified = {"backprop": _NONE, **{f"{rule}-exact": _STRENGTHS[1:] for rule in _SIGNED}}

SUITES: dict[str, Suite] = {
    "deep": Suite(
        title="Which rule trains deep networks, at what cost, how far from backpropagation?",
        picture="training",
        sizes={
            "smoke": [
                Table(places=[_digits], rules={"backprop": _NONE, "nudged": (1.0,)}, seeds=2)
            ],
            "default": [Table(places=[_small(network="mlp")], rules=_every, seeds=2)],
            "full": [
                Table(
                    places=[
                        Place(network="mlp", dataset="mnist", epochs=10, width=256),
                        _fashion(network="mlp"),
                        _cifar(network="vgg5", epochs=25),
                    ],
                    rules=_every,
                ),
                Table(
                    places=[
                        _cifar(network="vgg5", epochs=25, loss="ce"),
                        _cifar(network="vgg5", epochs=50),
                        _clipped(network="vgg7", epochs=25),
                        _clipped(network="vgg9", epochs=25),
                        _clipped(network="resnet18", epochs=25, width=64),
                    ],
                    rules=_main,
                ),
                Table(
                    places=[
                        _cifar(network="vgg7", epochs=25),
                        _cifar(network="vgg9", epochs=25),
                        _cifar(network="resnet18", epochs=30, width=64),
                    ],
                    rules={"backprop": _NONE, "nudged-last-1000": (1.0,)},
                ),
                Table(
                    places=[
                        _clipped(network="vgg5", epochs=50),
                        _clipped(network="resnet18", epochs=40, width=64),
                    ],
                    rules={"backprop": _NONE, "nudged-last-1e6": (1.0,)},
                ),
            ],
        },
    ),
    "regime": Suite(
        title="Why does plain predictive coding lose at equilibrium, and what helps?",
        picture="strengths",
        sizes={
            "smoke": [
                Table(
                    places=[_digits],
                    rules={"backprop": _NONE, "plain": (0.1, 1.0), "centred": (0.1, 1.0)},
                    seeds=2,
                )
            ],
            "default": [
                Table(
                    places=[_small(network="mlp"), _small(network="mlp-weightnorm")],
                    rules=_by_strength,
                    seeds=2,
                )
            ],
            "full": [
                Table(
                    places=[
                        _cifar(network="vgg5", epochs=5),
                        _cifar(network="vgg5-weightnorm", epochs=5),
                    ],
                    rules=_by_strength,
                ),
                Table(
                    places=[
                        _fashion(network=network, width=128, examples=12_800)
                        for network in ("mlp", "mlp-weightnorm", "resmlp", "resmlp-mupc")
                    ],
                    rules=_certified,
                    seeds=2,
                ),
            ],
        },
    ),
}
"""The tables that it makes, by name: `"deep"` and `"regime"`. `SUITES["deep"].title` says what a
table is about, and `SUITES["deep"].cells("smoke")` are the networks that it trains at that size.
"""
