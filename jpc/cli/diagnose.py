from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jpc

from .._functional import call, make_layers
from .._options import setup
from .._regime import by_layer, compare, relaxed_share
from .config import Config
from .rules import FORWARD, why_no_regime
from .setting import Problem, Setting, State
from .tasks import AbstractTask
from .variants import in_errors, make_rule

EXAMPLES, TIMES = 32, 40
_NO_STEP = optax.sgd(0.0)
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

    def __call__(self, state: State, *, place: bool = True) -> dict[str, Any]:
        """Of a state, with its place between backpropagation and equilibrium or without."""
        setting, own = self._task.setting, self._task.diagnose(state, *self._batch)
        if own is not None:
            return dict(diagnosis=own)
        problem = self._task.problem(state, *self._batch)
        result = _step(problem, inference=setting.inference, **setting.options)
        certificate = certify(problem, result["activities"], setting.options)
        return dict(
            diagnosis=dict(
                energies=result["energies"],
                weight_norms=result["model_param_norms"],
                gradient_norms=result["model_grad_norms"],
                activity_gradient=jnp.mean(result["stats"]["gradient_norm"]),
                converged=jnp.mean(result["result"] == jpc.RESULTS.successful),
                certificate=certificate,
                regime=find_place(problem, setting, certificate) if place else {},
                course=follow(problem, setting.config, setting.inference, setting.options),
            )
        )


def follow(
    problem: Problem, config: Config, method: jpc.AbstractInference, options: dict[str, Any]
) -> dict[str, Any]:
    """The energies of the layers during inference: `times`, or steps, and a row for each."""
    method, record = choose_course(config, method)
    if config.inference.method == "equilibrium":
        problem = problem._replace(**_few(problem, _hardest(problem, config, options)))
    if isinstance(method, jpc.InErrors):
        problem, method = _without_errors(problem, config), method.inference
        options = in_errors(config, len(problem.params.model))
    named: Any = dict(options, inference=method)
    args = (problem.params, problem.activities, problem.output, problem.input, record)
    energies = np.asarray(call(_record, setup(problem.params, named, max_t1=20.0), *args))
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
    few = lambda tree: jax.tree.map(lambda x: x[which], tree)
    return {name: few(getattr(problem, name)) for name in ("activities", "output", "input")}


def _hardest(problem: Problem, config: Config, options: dict[str, Any]) -> Any:
    """Examples with the most error left, which there is something to see of: what is learned has
    none to spread.
    """
    (model, skip_model), _, output, input = problem
    if config.data.task not in FORWARD or input is None:
        return slice(_FLOW_EXAMPLES)
    made = jpc.init_activities_with_ffwd(model, input, skip_model=skip_model, **options)[-1]
    made = jax.nn.softmax(made) if config.energy.loss == "ce" else made
    return jnp.argsort(-jnp.sum((made - output) ** 2, axis=1))[:_FLOW_EXAMPLES]


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


def certify(problem: Problem, activities: Any, options: dict[str, Any]) -> dict[str, Any]:
    """How far from equilibrium inference ended, if there is a way to know."""
    if "activity_decay" in options:
        return {}
    gap = jpc.equilibrium_gap(problem.params, activities, problem.output, problem.input, **options)
    named = ("energy", "equilibrium_energy", "excess", "gradient_error", "layer_gradient_errors")
    found = jnp.mean(gap["result"] == jpc.RESULTS.successful)
    return {name: gap[name] for name in named} | dict(found=found)


def find_place(problem: Problem, setting: Setting, certificate: dict[str, Any]) -> dict[str, Any]:
    """Where the rule stands between backpropagation and equilibrium, if it has a place there."""
    if why_no_regime(setting.config):
        return {}
    rule, params = make_rule(setting.config, setting.inference), problem.params
    few, named = _few(problem), cast(Any, dict(setting.options, inference=rule))
    args = (params, None, few["output"], few["input"])
    found = call(_place, setup(params, named, max_t1=20.0), *args)
    finite = setting.config.training.beta is not None
    if found["relaxed"] is None and certificate and not finite:
        start = jpc.pc_energy_fn(
            params,
            setting.states(params, problem.input),
            problem.output,
            x=problem.input,
            **setting.options,
        )
        ends = certificate["energy"], certificate["equilibrium_energy"]
        found["relaxed"] = relaxed_share(start, *ends)
    return {name: value for name, value in found.items() if value is not None}


def _place(setup, params, posed):
    """What [`jpc.regime`][] measures, but for what takes an equilibrium."""
    inferred = setup.inference(setup.energy, *posed)
    layers = make_layers(setup, posed)
    given = (params, posed.nodes, posed.clamps)
    found = compare(setup.energy, inferred, *given, transform=layers, split=by_layer)
    stats, mean = inferred.stats, ("mean_eigenvalue", "largest_eigenvalue", "mean_sensitivity")
    return dict(
        {name: jnp.mean(found[name]) for name in mean},
        angle=found["angle"],
        successful=found["successful"],
        relaxed=jnp.mean(stats["relaxed"]) if "relaxed" in stats else None,
    )


def _step(problem: Problem, **options: Any) -> dict[str, Any]:
    """Inference and the gradients of learning, whose step is not taken."""
    (model, skip_model), activities, output, input = problem
    opt_state = _NO_STEP.init(eqx.filter((model, skip_model), eqx.is_array))
    given = (model, _NO_STEP, opt_state, output, input)
    named: Any = dict(skip_model=skip_model, activities=activities, **options)
    return jpc.make_pc_step(*given, **named, param_norms=True, grad_norms=True)
