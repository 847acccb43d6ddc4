"""What goes with each rule of learning, and its defaults."""

import dataclasses
from typing import Any, NamedTuple

from .config import METHOD_OPTIONS, RULES, TASKS, Config, ConfigError, Training

FORWARD = ("discriminative", "regression", "")  # From inputs to targets; "" is either.
# Rules that learn at a feedforward pass, or from one.
FROM_FORWARD = ("backprop", "nudged", "fixed", "zil")
_NUDGES = ("beta", "nudge", "sign", "strength")
_ANY = tuple(METHOD_OPTIONS)
_NOT_EXACT = tuple(method for method in _ANY if method != "equilibrium")


class Rule(NamedTuple):
    """The tasks and the methods of inference that a rule goes with, the default first, why not
    with others, and its learning rate in terms of the usual one.
    """

    name: str
    tasks: tuple[str, ...] = TASKS
    why_task: str = ""
    methods: tuple[str, ...] = _ANY
    why_method: str = ""
    rate: float = 1.0


_ONE_NETWORK = tuple(task for task in TASKS if task != "hybrid")
_AMORTISED = "an amortiser learns where the inference of pc ended"
_TABLE: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("pc"),
        Rule(
            "ipc",
            _ONE_NETWORK,
            _AMORTISED,
            ("descent",),
            "its weights move at every step of descent",
            rate=0.1,
        ),
        Rule(
            "epc",
            _ONE_NETWORK,
            _AMORTISED,
            ("descent", *_NOT_EXACT[:-1]),
            "the equilibrium is the same in the errors, and is solved for in them already",
        ),
        Rule(
            "mcpc",
            _ONE_NETWORK,
            _AMORTISED,
            ("descent",),
            "it descends and then draws samples, both in steps of --dt",
        ),
        Rule(
            "bpc",
            ("generative",),
            "its networks go from labels to images and back",
            ("descent", *_NOT_EXACT[:-1]),
            "two predictions of a state have no equilibrium that it can solve for",
            rate=0.6,
        ),
        Rule("precision", _ONE_NETWORK, _AMORTISED),
        *(
            Rule(
                name,
                tuple(task for task in _ONE_NETWORK if task != "unsupervised"),
                "it needs an input and an output that are given",
            )
            for name in FROM_FORWARD
        ),
    )
}
assert tuple(_TABLE) == RULES


def rule_of(config: Config) -> Rule:
    return _TABLE[config.training.rule]


def with_rule(config: Config) -> Config:
    """The method that a rule has unless one is given."""
    rule, given, task = rule_of(config), config.inference.method, config.data.task
    _check("task", task, rule, rule.tasks, rule.why_task)
    usual = "descent" if rule.name in FROM_FORWARD and task == "generative" else rule.methods[0]
    method = given or usual
    _check("inference", method, rule, rule.methods, rule.why_method)
    if rule.name != "mcpc" and config.inference.temperature is not None:
        raise ConfigError("--temperature is of the samples that --rule mcpc draws: give that too.")
    inference = dataclasses.replace(config.inference, method=method)
    training = _with_nudge(config.training)
    return dataclasses.replace(config, inference=inference, training=training)


def _with_nudge(training: Training) -> Training:
    """What a nudge has unless it is given; an error where there is none."""
    given = [name for name in _NUDGES if getattr(training, name) is not None]
    if training.rule != "nudged":
        if given:
            raise ConfigError(f"--{given[0]} is of a nudge: give --rule nudged too.")
        return training
    if training.sign is not None and training.beta is None:
        raise ConfigError("--sign is of a finite nudge: give --beta too.")
    usual: Any = dict(nudge="target", strength=1.0)
    usual |= {} if training.beta is None else dict(sign="centred")
    missing = {name: value for name, value in usual.items() if getattr(training, name) is None}
    return dataclasses.replace(training, **missing)


def rate_of(config: Config) -> float:
    """Its learning rate in terms of the usual one. Weights of muPC are drawn from N(0, 1), so
    that their steps are larger.
    """
    larger = 10 if config.network.param_type == "mupc" else 1
    return larger * rule_of(config).rate


def _check(what: str, given: str, rule: Rule, fitting: tuple[str, ...], why: str) -> None:
    if given and given not in fitting:
        listed = " or ".join(filter(None, [", ".join(fitting[:-1]), fitting[-1]]))
        raise ConfigError(f"--rule {rule.name} goes with --{what} {listed}, not {given}: {why}.")


def rule_misfits(config: Config) -> list[tuple[bool, str]]:
    """What does not go with a rule, and why."""
    rule, energy, network = config.training.rule, config.energy, config.network
    return [
        (
            rule in ("bpc", "precision") and energy.loss != "mse",
            f"--rule {rule} has squared errors: --loss mse, not {energy.loss}.",
        ),
        (
            rule == "bpc" and (bool(network.skips) or energy.spectral_penalty > 0),
            "--rule bpc takes neither --skips nor --spectral-penalty.",
        ),
        (
            rule == "precision" and energy.output_precision is not None,
            "--rule precision learns the precision of the output: leave out --output-precision.",
        ),
        (
            rule in ("epc", *FROM_FORWARD) and energy.activity_decay > 0,
            f"--activity-decay is a cost of activities, and --rule {rule} does not descend in "
            "them: take --rule pc, or --weight-decay.",
        ),
    ]


def why_no_regime(config: Config) -> str:
    """Why a run has no place between backpropagation and equilibrium; empty if it has."""
    rule, task = config.training.rule, config.data.task
    if rule in ("ipc", "mcpc", "bpc"):
        return f"{rule} does not learn from the end of one inference"
    if task in ("unsupervised", "hybrid"):
        return "its network has no input that is given"
    if config.energy.activity_decay > 0:
        return "--activity-decay pulls at the activities themselves"
    return ""


def make_defaults(config: Config) -> dict[str, Any]:
    """The options of descent that a rule has its own defaults of. Only where energies alone are
    descended can a step be searched for.
    """
    rule, labels = config.training.rule, config.data.task in FORWARD
    fixed = {"bpc": 0.1, "ipc": 0.1 if labels else 0.01, "mcpc": 0.1 if labels else 0.01}
    steps = dict(dt=fixed[rule]) if rule in fixed else {}
    return steps | (dict(temperature=1e-3 if labels else 1.0) if rule == "mcpc" else {})
