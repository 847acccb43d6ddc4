"""What goes with each rule of learning, and its defaults."""

import dataclasses
from typing import Any, NamedTuple

from .config import METHOD_OPTIONS, RULES, TASKS, Config, ConfigError, Training

FORWARD = ("discriminative", "regression", "")  # From inputs to targets; "" is either.
# Rules that learn at a feedforward pass, or from one.
FROM_FORWARD = ("backprop", "nudged", "fixed", "zil")
_IN_THE_LIMIT = ("nudge_chords", "nudge_shared", "nudge_own")
# The options that a rule alone has.
_ITS_OWN = {
    "nudged": ("beta", "nudge", "sign", "strength", *_IN_THE_LIMIT),
    "fixed": ("fixed_steps", "fixed_dt"),
    "bpc": ("source_gradient",),
}
_ANY = tuple(METHOD_OPTIONS)
_NOT_EXACT = tuple(method for method in _ANY if method != "equilibrium")


# Variants that are no rule: how to have them.
ELSEWHERE = {
    "dendrites": "that is --rule bpc --task generative --source-gradient 0.1",
    "mupc": "that is --param-type mupc --skips, with any rule",
    "hybrid": "that is --task hybrid",
    "graph": "networks of named predictions are in Python only, jpc.GraphEnergy",
    "mask": "units that are given in part are in Python only, jpc.make_pc_step(..., mask=...)",
    "memory": "that is in Python only, jpc.solve_inference(..., mask=...)",
    "temporal": "sequences are in Python only, jpc.make_tpc_step",
}


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
    training = _with_its_own(config.training)
    return dataclasses.replace(config, inference=inference, training=training)


def _with_its_own(training: Training) -> Training:
    """What a rule alone has, unless it is given; an error where there is another one."""
    for rule, names in _ITS_OWN.items():
        for name in names:
            if getattr(training, name) is not None and training.rule != rule:
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{flag} is of --rule {rule}: give that too, or leave it out.")
    if training.rule == "nudged":
        return _with_nudge(training)
    if training.rule == "fixed" and training.fixed_dt is not None and training.fixed_steps is None:
        raise ConfigError("--fixed-dt is the length of a number of steps: give --fixed-steps too.")
    return training


def _with_nudge(training: Training) -> Training:
    if training.sign is not None and training.beta is None:
        raise ConfigError("--sign is of a finite nudge: give --beta too.")
    limit = [name for name in _IN_THE_LIMIT if getattr(training, name) is not None]
    if limit and training.beta is not None:
        flag = "--" + limit[0].replace("_", "-")
        raise ConfigError(f"{flag} is of the limit of small nudges: leave out --beta.")
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
    fixed, source = config.training.fixed_dt or 1.0, config.training.source_gradient or 0.0
    return [
        (fixed >= 2, f"--fixed-dt must be below 2, where steps grow: got {fixed:g}."),
        (source > 1, f"--source-gradient is a share, at most 1: got {source:g}."),
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
