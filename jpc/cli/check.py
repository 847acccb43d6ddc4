"""Whether a configuration makes sense, before anything is loaded or compiled."""

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._suggest import did_you_mean
from .config import ENTRIES, METHOD_OPTIONS, NETWORK_OPTIONS, Config, ConfigError, Entry
from .rules import (
    ELSEWHERE,
    FORWARD,
    FROM_FORWARD,
    make_defaults,
    rate_of,
    rule_misfits,
    with_rule,
)

NOTHING_TO_STOP_BY = (
    "--patience needs a validation set to stop by: give --validation 0.1 too. (To stop by the "
    "test set would be to fit it.)"
)


def make_config(tables: Mapping[str, Any]) -> Config:
    """A checked configuration, complete but for what the data decides.

    **Arguments:**

    - `tables`: a dictionary of the options of each table, those of a TOML file. What is not
        there has its default.

    **Returns:**

    A [`Config`][]. An option that does not matter for this run is `None`.
    """
    check_tables(tables)
    made = {
        table.name: typing.cast(Any, table.type)(**_floats(table.name, tables))
        for table in dataclasses.fields(Config)
    }
    return resolve(Config(**made))


def check_tables(tables: Mapping[str, Any]) -> None:
    """Refuses unknown tables and keys, and values that cannot be."""
    known = {(entry.table, entry.key): entry for entry in ENTRIES}
    for table, options in tables.items():
        _check_table(table, options)
        for key, value in options.items():
            check_value(known[table, key], value)


def _floats(table: str, tables: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a table, with whole numbers made floats where these are meant."""
    kinds = {entry.key: entry.kind for entry in ENTRIES if entry.table == table}
    given = tables.get(table, {})
    return {key: float(v) if kinds[key] is float else v for key, v in given.items()}


def _check_table(table: str, options: Any) -> None:
    tables = [field.name for field in dataclasses.fields(Config)]
    if table not in tables:
        said = _home(table) or did_you_mean(table, tables)
        raise ConfigError(f"Unknown table [{table}]: there are {_listed(tables)}.{said}")
    if not isinstance(options, Mapping):
        raise ConfigError(f"{table} is a table: write [{table}] and its options below.")
    keys = [entry.key for entry in ENTRIES if entry.table == table]
    if unknown := [key for key in options if key not in keys]:
        said = _home(unknown[0]) or did_you_mean(unknown[0], keys)
        listed = _listed(keys)
        raise ConfigError(f"Unknown key {unknown[0]!r} in [{table}]: there are {listed}.{said}")


def _home(name: str) -> str:
    """Where an option of this name is, if there is one."""
    homes = [entry for entry in ENTRIES if name in (entry.key, entry.name)]
    return f" Write {homes[0].key} in [{homes[0].table}]." if homes else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def check_value(entry: Entry, value: Any) -> None:
    """Refuses a value of the wrong type, outside of its choices or of its bounds."""
    rules, number = entry.rules, isinstance(value, int | float) and not isinstance(value, bool)
    okay = {bool: isinstance(value, bool), str: isinstance(value, str), float: number}
    okay[int] = number and isinstance(value, int)
    words = {bool: "true or false", str: "a name", int: "a whole number", float: "a number"}
    if not okay[entry.kind]:
        raise ConfigError(f"{entry.flag} must be {words[entry.kind]}, got {value!r}.")
    if entry.name == "rule" and value in ELSEWHERE:
        raise ConfigError(f"There is no --rule {value}: {ELSEWHERE[value]}.")
    if rules["choices"] and not (value in rules["choices"] or _is_path(rules["also"], value)):
        said = did_you_mean(str(value), rules["choices"])
        listed = _listed(rules["choices"]) + (", or a path" if rules["also"] else "")
        raise ConfigError(f"{entry.flag} is one of {listed}, not {value!r}.{said}")
    if number and not (math.isfinite(value) and rules["above"] < value >= rules["least"]):
        bound = f"above {rules['above']:g}"
        bound = bound if rules["above"] > rules["least"] else f"of at least {rules['least']:g}"
        raise ConfigError(f"{entry.flag} must be {words[entry.kind]} {bound}, got {value:g}.")
    if entry.kind is int and value >= rules["below"]:
        power = rules["below"].bit_length() - 1
        raise ConfigError(f"{entry.flag} must be below 2^{power}, got {value}.")


def _is_path(also: Callable[[str], bool] | None, value: Any) -> bool:
    return also is not None and also(value)


def resolve(config: Config) -> Config:
    """Fills in the defaults that depend on other options, and refuses what does not fit. What
    somebody's own data decides stays open until that is known: see `own.settle`.
    """
    config = with_rule(config if config.data.is_own else _decide(config))
    method = config.inference.method
    network = _fill("network", config.network, config.network.kind, _network_options(config))
    inference = _fill("inference", config.inference, method, _methods(config))
    energy = dataclasses.replace(config.energy, **_energy(config))
    config = dataclasses.replace(config, network=network, inference=inference, energy=energy)
    for wrong, message in (*rule_misfits(config), *_misfits(config)):
        if wrong:
            raise ConfigError(message)
    return config


def _decide(config: Config) -> Config:
    """What somebody's own data would decide."""
    return decide(config, "discriminative", epochs=20, batch_size=64, learning_rate=5e-3)


def decide(
    config: Config, task: str, *, epochs: int, batch_size: int, learning_rate: float
) -> Config:
    """Fills these in where they are open."""
    data, training, optimiser = config.data, config.training, config.optimiser
    sizes = dict(epochs=training.epochs or epochs, batch_size=training.batch_size or batch_size)
    rate = optimiser.learning_rate or learning_rate * rate_of(config)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(data, task=data.task or task),
        training=dataclasses.replace(training, **sizes),
        optimiser=dataclasses.replace(optimiser, learning_rate=rate),
    )


def _energy(config: Config) -> dict[str, Any]:
    """At equilibrium a small precision of the output keeps learning close to the loss, and the
    chords converge.
    """
    task, exact = config.data.task, config.inference.method == "equilibrium"
    rule, loss = config.training.rule, config.energy.loss
    small = task in FORWARD and exact and rule not in FROM_FORWARD
    default = {"precision": None, "bpc": 1e-3}.get(rule, 0.1 if small else 1.0)
    precision = config.energy.output_precision
    losses = {} if rule == "precision" else {"": None, "discriminative": "ce"}
    loss = losses.get(task, "mse") if loss is None else loss
    return dict(loss=loss, output_precision=default if precision is None else precision)


def _network_options(config: Config) -> dict[str, dict[str, Any]]:
    latent = dict(latent=16) if config.data.task == "unsupervised" else {}
    return {kind: options | latent for kind, options in NETWORK_OPTIONS.items()}


def _methods(config: Config) -> dict[str, dict[str, Any]]:
    """With the labels of few classes at the output the chords of equilibrium do by themselves.
    Where the input is to be inferred there are none. The many errors of an image have a
    curvature that grows while a network learns: descent then finds its own steps. So has a wide
    network, but with labels shorter steps are enough.
    """
    labels, wider = config.data.task in FORWARD, (config.network.width or 0) / 256
    step = 0.1 / max(1.0, wider)
    changed = dict(
        equilibrium=dict(steps=0 if labels else 100),
        euler=dict(dt=step if labels else 0.01),
        descent=dict(dt=step if labels else None) | make_defaults(config),
    )
    return {name: own | changed.get(name, {}) for name, own in METHOD_OPTIONS.items()}


def _fill(table: str, given: Any, chosen: str, options: Mapping[str, dict[str, Any]]) -> Any:
    """A table with the defaults of what was chosen. An option of something else is an error."""
    entries = [e for e in ENTRIES if e.table == table and e.rules["flag"] is None]
    choice = next(e for e in ENTRIES if e.table == table and e.rules["flag"])
    common = [e.key for e in entries if getattr(type(given)(), e.key) is not None]
    for entry in entries:
        value, fits = getattr(given, entry.key), entry.key in (*common, *options[chosen])
        if value is not None and not fits:
            owners = [name for name, keys in options.items() if entry.key in keys]
            of = f"is for {choice.flag} {_listed(owners)}" if owners else "does not matter here"
            raise ConfigError(
                f"{entry.flag} ({entry.rules['text']}) {of}; {choice.flag} {chosen} has "
                f"{_listed([e.flag for e in entries if e.key in options[chosen]])}."
            )
    filled = {k: v for k, v in options[chosen].items() if getattr(given, k) is None}
    return dataclasses.replace(given, **filled)


def _misfits(config: Config) -> list[tuple[bool, str]]:
    task, kind, method = config.data.task, config.network.kind, config.inference.method
    inference, training, own = config.inference, config.training, config.data.is_own
    given = {"--target": config.data.target, "--image-size": config.data.image_size}
    given |= {"--leave-out": config.data.leave_out}
    return [
        (
            task not in FORWARD and kind != "mlp",
            f"--network {kind} is for --task discriminative; {task} takes an mlp.",
        ),
        (
            task not in ("discriminative", "") and config.energy.loss == "ce",
            f"--loss ce is for labels, but --task {task} is learned from "
            f"{'numbers: mse or huber' if task == 'regression' else 'images'}"
            f"{'.' if task == 'regression' else ': mse, huber, bernoulli or poisson.'}",
        ),
        (
            training.patience is not None and config.data.validation == 0 and not own,
            NOTHING_TO_STOP_BY,
        ),
        (
            own
            and task not in ("discriminative", "")
            and config.energy.loss in ("bernoulli", "poisson"),
            f"--loss {config.energy.loss} is for pixels in [0, 1], and data of your own are "
            "normalised: mse or huber.",
        ),
        (
            task == "regression" and not own,
            f"--task regression is for data of your own; {config.data.dataset} has classes.",
        ),
        *(
            (value is not None and not own, f"{flag} is for data of your own: --dataset PATH.")
            for flag, value in given.items()
        ),
        (
            task == "hybrid" and (bool(config.network.skips) or config.network.param_type != "sp"),
            "--task hybrid takes neither --skips nor a --param-type but sp.",
        ),
        (
            config.energy.activity_decay > 0 and method == "equilibrium",
            "--activity-decay does not go with --inference equilibrium: take heun, tsit5, "
            "dopri5, euler or descent.",
        ),
        (
            method == "equilibrium" and inference.chords == 0 and inference.steps == 0,
            "--chords 0 with --steps 0 leaves nothing to do: give at least one of either.",
        ),
        (
            method == "equilibrium" and inference.steps == 0 and task not in FORWARD,
            f"--steps 0 leaves equilibrium without the steps that a {task} network needs to "
            "infer its input: give at least one.",
        ),
        (method == "descent" and inference.steps == 0, "--steps of descent: at least one."),
        (
            config.optimiser.warmup >= training.epochs > 0,
            f"--warmup {config.optimiser.warmup} leaves nothing of --epochs {training.epochs}.",
        ),
        (
            training.batch_size % training.devices > 0,
            f"--batch-size {training.batch_size} cannot be shared out evenly to --devices "
            f"{training.devices}: give a multiple.",
        ),
    ]
