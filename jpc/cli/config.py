"""What a run is: every option with its default, its choices and its help, said once. The options
of the command line, the keys of the TOML file and the checks of both are made from this.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jpc.data


class ConfigError(ValueError):
    """A value that cannot be used, and what to write instead."""


def option(
    default: Any,
    text: str,
    *,
    choices: Sequence[str] = (),
    flag: str | None = None,
    least: float | int = -math.inf,
    above: float | int = -math.inf,
    below: int = 2**31,
    shown: str | None = None,
    also: Callable[[str], bool] | None = None,
) -> Any:
    """A field of a table. `shown` is its default in words, where that depends on others: then
    the field itself is `None`, or empty, until it is resolved. `also` says which paths will do
    beside the choices. Whole numbers are `below` a power of two.
    """
    shown = _shorten(default) if shown is None else shown
    rules = dict(
        text=text, choices=tuple(choices), flag=flag, least=least, above=above, below=below
    )
    return dataclasses.field(default=default, metadata=rules | dict(shown=shown, also=also))


def _shorten(value: Any) -> str:
    yes_or_no = {True: "yes", False: "no"}
    return yes_or_no[value] if isinstance(value, bool) else f"{value}"


TASKS = ("discriminative", "generative", "unsupervised", "hybrid", "regression")
NETWORKS = ("mlp", "vgg5", "vgg7", "vgg9", "resnet10", "resnet18")
OPTIMISERS = ("adam", "nadam", "rmsprop", "sgd", "momentum")
ACTIVATIONS = ("linear", "tanh", "hard_tanh", "relu", "leaky_relu", "gelu", "selu", "silu")
LOSSES = ("mse", "ce", "bernoulli", "poisson", "huber")
RULES = ("pc", "ipc", "epc", "mcpc", "bpc", "precision", "backprop", "nudged", "fixed", "zil")
# Which options a network or a method of inference has, and their defaults.
NETWORK_OPTIONS: dict[str, dict[str, Any]] = {
    "mlp": dict(depth=3, width=256, activation="tanh", param_type="sp", skips=False),
    **{kind: dict(activation="gelu", channels=32, pool="average") for kind in NETWORKS[1:4]},
    **{kind: dict(activation="gelu", channels=32) for kind in NETWORKS[4:]},
}
_ADAPTIVE = dict(max_t1=20.0, rtol=1e-3, reduction="sum")
METHOD_OPTIONS: dict[str, dict[str, Any]] = {
    "equilibrium": dict(rtol=1e-2, chords=None, steps=100),
    "heun": _ADAPTIVE,
    "tsit5": _ADAPTIVE,
    "dopri5": _ADAPTIVE,
    "euler": dict(max_t1=20.0, dt=0.1, reduction="sum"),
    "descent": dict(steps=20, dt=0.1),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    dataset: str = option("digits", "", choices=jpc.data.NAMES, also=jpc.data.is_own)
    task: str = option("", "what from what", choices=TASKS, shown="discriminative")
    validation: float = option(0.0, "examples to set apart, or their share", least=0.0)
    augment: str = option("none", "of training images", choices=("none", "shift", "flip"))
    target: str | None = option(None, "own column(s), key or file of it", shown="the last")
    leave_out: str | None = option(None, "own columns not to learn from: a,b", shown="none")
    image_size: int | None = option(None, "side of own images", least=1, shown="theirs, or 32")

    @property
    def is_own(self) -> bool:
        return self.dataset not in jpc.data.NAMES

    @property
    def name(self) -> str:
        """Without the path."""
        if not self.is_own:
            return self.dataset
        return Path(self.dataset.rpartition(":")[2]).absolute().stem or "data"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    kind: str = option("mlp", "the network", choices=NETWORKS, flag="network")
    depth: int | None = option(None, "layers of an mlp", least=2, shown="3")
    width: int | None = option(None, "units of its hidden layers", least=1, shown="256")
    activation: str | None = option(None, "", choices=ACTIVATIONS, shown="tanh")
    param_type: str | None = option(
        None, "scaling of the layers", choices=("sp", "ntp", "mupc"), shown="sp"
    )
    skips: bool | None = option(None, "skip connections between hidden layers", shown="no")
    bias: bool = option(True, "biases")
    channels: int | None = option(None, "of the first convolution", least=1, shown="32")
    pool: str | None = option(
        None, "pooling of a vgg", choices=("average", "max"), shown="average"
    )
    latent: int | None = option(None, "causes, if unsupervised", least=1, shown="16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Energy:
    loss: str | None = option(None, "at the output", choices=LOSSES, shown="ce; images: mse")
    output_precision: float | None = option(
        None, "weight of the output's energy", above=0.0, shown="1; labels: 0.1"
    )
    stiffness: float | None = option(
        None, "how much more precise each hidden state is than the next", above=0.0, shown="1"
    )
    weight_decay: float = option(0.0, "coefficient of the weights' squared norm", least=0.0)
    spectral_penalty: float = option(0.0, "coefficient of |I - W'W|^2", least=0.0)
    activity_decay: float = option(0.0, "of the activities' (not equilibrium)", least=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inference:
    method: str = option(
        "", "", choices=tuple(METHOD_OPTIONS), flag="inference", shown="equilibrium"
    )
    max_t1: float | None = option(None, "when a flow ends at the latest", above=0.0, shown="20")
    dt: float | None = option(
        None, "step size of euler, descent", above=0.0, shown="0.1; images: found"
    )
    rtol: float | None = option(None, "relative tolerance", above=0.0, shown="0.01; flows: 0.001")
    chords: int | None = option(
        None, "shared iterations of equilibrium", least=0, shown="as it takes"
    )
    steps: int | None = option(
        None, "of descent; damped ones of equilibrium", least=0, shown="20; 0 or 100"
    )
    reduction: str | None = option(
        None, "of a flow's energies over a batch", choices=("sum", "mean"), shown="sum"
    )
    temperature: float | None = option(None, "of mcpc", above=0.0, shown="1; labels: 0.001")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimiser:
    kind: str = option("adam", "", choices=OPTIMISERS, flag="optimiser")
    learning_rate: float = option(0.0, "its peak", above=0.0, shown="0.005; own data: 0.001")
    schedule: str = option("cosine", "of the learning rate", choices=("constant", "cosine"))
    warmup: int = option(0, "epochs in which it rises to its peak", least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    rule: str = option("pc", "how the network learns", choices=RULES)
    beta: float | None = option(None, "of a nudge", above=0.0, shown="limit 0")
    nudge: str | None = option(None, "", choices=("target", "loss"), shown="target")
    sign: str | None = option(
        None, "", choices=("positive", "negative", "centred"), shown="centred"
    )
    strength: float | None = option(None, "of a nudge", above=0.0, shown="1")
    nudge_chords: int | None = option(None, "solves of a nudge's limit", least=1, shown="1")
    nudge_shared: int | None = option(
        None, "examples its matrix is of; 0: each its own", least=0, shown="4"
    )
    nudge_own: int | None = option(
        None, "last states with their own part of it", least=0, shown="1"
    )
    fixed_steps: int | None = option(None, "of fixed predictions", least=1, shown="the depth")
    fixed_dt: float | None = option(None, "their length", above=0.0, shown="1")
    source_gradient: float | None = option(
        None, "share of an error that reaches its source in bpc", least=0.0, shown="1"
    )
    epochs: int = option(0, "times through the data", least=1, shown="20; own data: by size")
    patience: int | None = option(
        None, "epochs to wait for a better one (validation)", least=1, shown="all"
    )
    batch_size: int = option(0, "examples in a step", least=1, shown="64; own data: by size")
    seed: int = option(0, "same seed, same bits", least=0, below=2**32)
    precision: str = option("float32", "of all numbers", choices=("float32", "float64"))
    devices: int = option(1, "to share each batch out to", least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The tables of the TOML file."""

    data: Data = Data()
    network: Network = Network()
    energy: Energy = Energy()
    inference: Inference = Inference()
    optimiser: Optimiser = Optimiser()
    training: Training = Training()


class Entry(typing.NamedTuple):
    """One option: the table and the key it is in, the name that it has on the command line, its
    type, and what [`option`][] noted about it.
    """

    table: str
    key: str
    name: str
    kind: type
    rules: Mapping[str, Any]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def _entries() -> list[Entry]:
    entries = []
    for table in dataclasses.fields(Config):
        kinds = typing.get_type_hints(table.type)
        for field in dataclasses.fields(typing.cast(Any, table.type)):
            name = field.metadata["flag"] or field.name
            kind = _plain_type(kinds[field.name])
            entries.append(Entry(table.name, field.name, name, kind, field.metadata))
    return entries


def _plain_type(hint: Any) -> type:
    """`int` of `int | None`."""
    if not isinstance(hint, types.UnionType):
        return hint
    return next(kind for kind in typing.get_args(hint) if kind is not type(None))


ENTRIES = _entries()
