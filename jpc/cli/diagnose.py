from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import jpc

from .config import Config
from .setting import Problem, Setting
from .tasks import AbstractTask
from .variants import in_errors

EXAMPLES, TIMES = 32, 40
_NO_STEP = optax.sgd(0.0)
_FLOW_TIME = 10.0  # Of a flow that shows what a method without dynamics leaves out.


class Diagnosis:
    """What is to be known of a network after an epoch, from inference on a few training examples,
    always the same ones: a function of the state for [`jpc.fit`][] to `inspect`.
    """

    def __init__(self, task: AbstractTask):
        self._task = task
        images, labels = (array[:EXAMPLES] for array in task.setting.dataset.train)
        numbers = task.setting.classes == 0
        labels = (
            jnp.asarray(labels, float) if numbers else jax.nn.one_hot(labels, task.setting.classes)
        )
        self._batch = task.pair(jnp.asarray(images, float), labels)

    def __call__(self, **state: Any) -> dict[str, Any]:
        setting, own = self._task.setting, self._task.diagnose(state, *self._batch)
        if own is not None:
            return dict(diagnosis=own)
        problem = self._task.problem(state, *self._batch)
        result = _step(problem, inference=setting.inference, **setting.options)
        return dict(
            diagnosis=dict(
                energies=result["energies"],
                weight_norms=result["model_param_norms"],
                gradient_norms=result["model_grad_norms"],
                activity_gradient=jnp.mean(result["stats"]["gradient_norm"]),
                converged=jnp.mean(result["result"] == jpc.RESULTS.successful),
                certificate=certify(problem, result["activities"], setting.options),
                course=self._course(problem),
            )
        )

    def _course(self, problem: Problem) -> dict[str, Any]:
        """The energies of the layers during inference."""
        setting = self._task.setting
        flow, every = choose_flow(setting.config, setting.inference)
        named = dict(record_energies=True, record_every=every, **setting.options)
        if isinstance(flow, jpc.InErrors):
            problem, flow = start_in_errors(setting, problem), flow.inference
            named = {k: v for k, v in named.items() if k in ("record_energies", "record_every")}
            named |= in_errors(setting.config, len(problem.params.model))
        energies = _step(problem, inference=flow, **named)["energies"].T
        times = jnp.arange(len(energies)) * (1.0 if every is None else every)
        return dict(times=times, energies=energies)


def start_in_errors(setting: Setting, problem: Problem) -> Problem:
    """Without errors, as after a feedforward pass."""
    states = problem.activities or setting.states(problem.params, problem.input)
    return problem._replace(activities=[jnp.zeros_like(z) for z in states])


def choose_flow(
    config: Config, method: jpc.AbstractInference
) -> tuple[jpc.AbstractInference, float | None]:
    """The method whose course is recorded and how often, or at every step if it has no time.
    Equilibrium has no course, so that a flow goes in its place.
    """
    if config.inference.method == "descent":
        return method, None
    if config.inference.method == "equilibrium":
        return jpc.GradientFlow(t1=_FLOW_TIME, throw=False), _FLOW_TIME / TIMES
    return method, config.inference.max_t1 / TIMES  # pyright: ignore[reportOptionalOperand]


def certify(problem: Problem, activities: Any, options: dict[str, Any]) -> dict[str, Any]:
    """How far from equilibrium inference ended, if there is a way to know."""
    if "activity_decay" in options:
        return {}
    gap = jpc.equilibrium_gap(problem.params, activities, problem.output, problem.input, **options)
    named = ("energy", "equilibrium_energy", "excess", "gradient_error", "layer_gradient_errors")
    found = jnp.mean(gap["result"] == jpc.RESULTS.successful)
    return {name: gap[name] for name in named} | dict(found=found)


def _step(problem: Problem, **options: Any) -> dict[str, Any]:
    """Inference and the gradients of learning, whose step is not taken."""
    (model, skip_model), activities, output, input = problem
    opt_state = _NO_STEP.init(eqx.filter((model, skip_model), eqx.is_array))
    given = (model, _NO_STEP, opt_state, output, input)
    named: Any = dict(skip_model=skip_model, activities=activities, **options)
    return jpc.make_pc_step(*given, **named, param_norms=True, grad_norms=True)
