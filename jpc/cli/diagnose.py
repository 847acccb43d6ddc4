import dataclasses
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import jpc

from .._checks import compiling_hastily
from .._functional import call, layer_energies, make_layers, of_params, with_prediction
from .._gap import compare as compare_to
from .._metrics import compute_param_norms
from .._options import setup
from .._regime import by_layer, compare, relaxed_share
from .config import Config
from .rules import FORWARD, why_no_regime
from .setting import Problem, Setting, State, softmax
from .tasks import AbstractTask
from .variants import in_errors, make_rule

EXAMPLES, TIMES = 32, 40
_CLOSE = 1e-3  # To the equilibrium that others are compared with.
# Of a flow that shows what a method without dynamics leaves out: long enough for the error to
# spread, and not too long to wait for.
_FLOW_TIME, _FLOW_STEPS, _FLOW_EXAMPLES = 100.0, 500, 8
_SETTLED = 0.01


class Diagnosis:
    """What is to be known of a network after an epoch, from inference on a few training examples,
    always the same ones.
    """

    def __init__(self, task: AbstractTask):
        self._task = task
        images, labels = (array[:EXAMPLES] for array in task.setting.dataset.train)
        numbers = task.setting.classes == 0
        labels = (
            jnp.asarray(labels, float) if numbers else jax.nn.one_hot(labels, task.setting.classes)
        )
        self._batch = task.pair(jnp.asarray(images, float), labels)

    def __call__(self, state: State) -> dict[str, Any]:
        own = self._task.diagnose(state, *self._batch)
        if own is None:
            own = diagnose(self._task.problem(state, *self._batch), self._task.setting)
        return dict(diagnosis=own)


def diagnose(problem: Problem, setting: Setting) -> dict[str, Any]:
    """By its method of inference, and by the equilibrium from the same start; and its course."""
    with compiling_hastily():  # Once an epoch, for a few examples.
        found = _examine(problem, setting)
    # A flow takes hundreds of steps, which are worth more.
    course = follow(problem, setting.config, setting.inference, setting.options)
    return dict(found, course=course)


def _examine(problem: Problem, setting: Setting) -> dict[str, Any]:
    params, activities, *given = problem
    start = setting.states(params, problem.input) if activities is None else activities
    named: Any = dict(setting.options, inference=setting.inference)
    asked = setup(params, named, max_t1=20.0)
    ended = call(_infer, asked, params, start, *given)
    exact = None
    if "activity_decay" not in setting.options:
        named["inference"] = _equilibrium(setting.config, problem.output)
        exact = call(_infer, setup(params, named, max_t1=20.0), params, start, *given)
    plain = make_rule(setting.config, setting.inference) is setting.inference
    place = plain and not why_no_regime(setting.config)
    found = call(_measure, asked, params, ended.activities, *given, ended, exact, place)
    if not place:
        found["regime"] = find_place(problem, setting, found["certificate"], ended.first)
    return found


def _equilibrium(config: Config, output: Array) -> jpc.Equilibrium:
    """What others are compared with. In a small network an example gets there by itself in a few
    steps. What it would share with others first takes as long again to compile.
    """
    method = jpc.Equilibrium(rtol=_CLOSE)
    is_small = config.network.kind == "mlp" and output[0].size <= method.dense
    return dataclasses.replace(method, chords=0) if is_small else method


class _Ended(NamedTuple):
    """Inference, where it ended, and the energy that it began with."""

    inferred: jpc.Inferred
    activities: list[Array]
    first: Array


def _infer(setup, params, posed):
    inferred = setup.inference(setup.energy, *posed)
    ended = with_prediction(posed.layers, inferred.nodes, posed.clamps)
    return _Ended(inferred, ended, setup.energy(*posed))


def _measure(setup, params, posed, ended: _Ended, exact: _Ended | None, place: bool):
    """All that there is to say of it. `posed` is where it ended."""
    inferred = ended.inferred
    lesson, states = inferred.lesson or (setup.energy, inferred.nodes)
    grads = eqx.filter_grad(of_params(setup, posed, lesson))(params, states, posed.clamps)
    certificate = {} if exact is None else compare_to(setup, params, posed, exact.inferred)
    converged = certificate.pop("result", None)
    if exact is not None:
        certificate["found"] = jnp.mean(converged == jpc.RESULTS.successful)
    return dict(
        energies=layer_energies(setup, posed),
        weight_norms=compute_param_norms(params)[0],
        gradient_norms=compute_param_norms(grads)[0],
        activity_gradient=jnp.mean(inferred.stats["gradient_norm"]),
        converged=jnp.mean(inferred.result == jpc.RESULTS.successful),
        certificate=certificate,
        regime=_place(setup, params, posed, inferred, ended.first, certificate) if place else {},
    )


def follow(
    problem: Problem, config: Config, method: jpc.AbstractInference, options: dict[str, Any]
) -> dict[str, Any]:
    """The energies of the layers during inference: `times`, or steps, and a row for each."""
    method, record = choose_course(config, method)
    if config.inference.method == "equilibrium":
        problem = problem._replace(**_few(problem, _hardest(problem, config, options)))
    within = isinstance(method, jpc.InErrors)
    if within:
        problem, method = _without_errors(problem, config), method.inference
        options = in_errors(config, len(problem.params.model))
    read = setup(problem.params, dict(options, inference=method), max_t1=20.0)
    if within:  # The activities are errors, which no call of the library takes for states.
        both = dict(energy=jpc.EPCEnergy(read.energy), chain=jpc.EPCEnergy(read.chain))
        read = dataclasses.replace(read, **both)
    args = (problem.params, problem.activities, problem.output, problem.input, record)
    energies = np.asarray(call(_record, read, *args))
    times = np.arange(len(energies)) if record.ts is None else np.asarray(record.ts)
    end = len(times) if record.ts is None else _until_settled(energies)
    return dict(times=times[:end].astype(float), energies=energies[:end])


def _without_errors(problem: Problem, config: Config) -> Problem:
    """As after a feedforward pass."""
    (model, skips), states, _, input = problem
    named: Any = dict(input=input, skip_model=skips, param_type=config.network.param_type)
    states = states or jpc.init_activities_with_ffwd(model, **named)
    return problem._replace(activities=[jnp.zeros_like(z) for z in states])


def _few(problem: Problem, which: Any = slice(_FLOW_EXAMPLES)) -> dict[str, Any]:
    few = lambda tree: jax.tree.map(lambda x: np.asarray(x)[which], tree)
    return {name: few(getattr(problem, name)) for name in ("activities", "output", "input")}


def _hardest(problem: Problem, config: Config, options: dict[str, Any]) -> Any:
    """Examples with the most error left, which there is something to see of: what is learned has
    none to spread.
    """
    (model, skip_model), _, output, input = problem
    if config.data.task not in FORWARD or input is None:
        return slice(_FLOW_EXAMPLES)
    made = jpc.init_activities_with_ffwd(model, input, skip_model=skip_model, **options)[-1]
    made = softmax(made) if config.energy.loss == "ce" else np.asarray(made)
    left = np.sum((made - np.asarray(output)) ** 2, axis=1)
    return np.argsort(-left, kind="stable")[:_FLOW_EXAMPLES]


def choose_course(
    config: Config, method: jpc.AbstractInference
) -> tuple[jpc.AbstractInference, jpc.Record]:
    """The method whose course is recorded, and when: at every step if it has no time, else at
    times that show the beginning as well as the end. Equilibrium has no course, so that a flow
    goes in its place.
    """
    given = config.inference
    if given.method == "descent":
        return method, jpc.Record(length=given.steps)
    if given.method == "equilibrium":
        named: Any = dict(max_steps=_FLOW_STEPS, throw=False)
        return jpc.GradientFlow(t1=_FLOW_TIME, **named), _times(_FLOW_TIME, 1e-3)
    return method, _times(given.max_t1, 1e-2)


def _times(last: Any, first: float) -> jpc.Record:
    return jpc.Record(ts=jnp.asarray([0.0, *np.geomspace(first * last, last, TIMES)]))


def _record(setup, params, posed, record):
    """Inference alone: nothing is learned."""
    kept = jpc.Record(setup.chain.terms, record.ts, record.length)
    way = setup.inference(setup.energy, *posed, record=kept).trajectory
    return jnp.stack([jnp.mean(term, axis=1) for term in jax.tree.leaves(way.values)], axis=1)


def _until_settled(energies: np.ndarray) -> int:
    """How many times to show: until a little after the last change that is worth a look."""
    end = energies[-1]
    moves = np.any(np.abs(energies - end) > _SETTLED * np.abs(end), axis=1)
    return min(len(energies), 4 + int(np.max(np.flatnonzero(moves), initial=0)))


def find_place(
    problem: Problem, setting: Setting, certificate: dict[str, Any], first: Array
) -> dict[str, Any]:
    """Where a rule stands that learns from something else than its method of inference."""
    if why_no_regime(setting.config):
        return {}
    rule, params = make_rule(setting.config, setting.inference), problem.params
    few, named = _few(problem), cast(Any, dict(setting.options, inference=rule))
    args = (params, None, few["output"], few["input"])
    known = {} if setting.config.training.beta is not None else certificate
    return call(_place_of, setup(params, named, max_t1=20.0), *args, first, known)


def _place_of(setup, params, posed, first, certificate):
    inferred = setup.inference(setup.energy, *posed)
    return _place(setup, params, posed, inferred, first, certificate)


def _place(setup, params, posed, inferred, first, certificate) -> dict[str, Any]:
    """What [`jpc.regime`][] measures; how much is relaxed, if energies tell."""
    layers = make_layers(setup, posed)
    given = (params, posed.nodes, posed.clamps)
    found = compare(setup.energy, inferred, *given, transform=layers, split=by_layer)
    mean = ("mean_eigenvalue", "largest_eigenvalue", "mean_sensitivity")
    place = {name: jnp.mean(found[name]) for name in mean}
    place |= {name: found[name] for name in ("angle", "successful")}
    if "relaxed" in inferred.stats:
        place["relaxed"] = jnp.mean(inferred.stats["relaxed"])
    elif certificate:
        ends = certificate["energy"], certificate["equilibrium_energy"]
        place["relaxed"] = relaxed_share(first, *ends)
    return place
