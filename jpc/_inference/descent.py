from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from .._closures import by_contents
from .._given import check_count, check_flags, is_real, show
from .._metrics import tree_norm
from .._types import Given, Nodes, Number, Scalar
from .base import RESULTS, AbstractInference, Trajectory, check_positive, finish, method


class Descent(AbstractInference):
    r"""Inference by an Optax optimiser, one for each example,

    $$z \leftarrow z - \mathrm{optim}(\nabla_z F(\theta, z)).$$

    **Arguments:**

    - `optim`: any Optax optimiser, line searches included; or a number, the step size of plain
        gradient descent, as most published work has it.
    - `steps`: how many steps to take at most.
    - `rtol`: an example ends when its activity gradient is smaller than this, relative to its
        activities. By default no example ends early, and you can also differentiate in reverse
        mode.
    - `throw`: whether divergence raises an error.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    inferred = jpc.Descent(0.1, 20)(energy, model, nodes, clamps)
    with_adam = jpc.Descent(optax.adam(0.1), 20)
    ```
    """

    optim: Any = eqx.field(converter=by_contents)
    steps: Given[int] = eqx.field(static=True, default=20)
    rtol: Given[Number | None] = None
    throw: Given[bool] = eqx.field(static=True, default=True)

    def __check_init__(self):
        number = is_real(self.optim) and jnp.shape(self.optim) == ()
        if not (number or isinstance(self.optim, optax.GradientTransformation)):
            raise TypeError(
                "Descent needs a step size, such as 0.1, or an Optax optimiser, such as "
                f"optax.adam(0.1): got {show(self.optim)}."
            )
        if number:
            check_positive("The step size", self.optim)
        check_count("steps", self.steps)
        check_positive("rtol", self.rtol, none=True)
        check_flags(throw=self.throw)

    @method
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        if record is not None and record.ts is not None:
            raise ValueError("Descent has steps but no time: record every step.")

        fn = None if record is None else record.fn
        steps = self.steps if record is None else min(self.steps, cast(int, record.length))

        def one(nodes, clamps):
            value_fn = lambda z: energy.example(params, z, clamps)
            keep = None if fn is None else lambda z: cast(Callable, fn)(params, z, clamps)
            return self._descend(value_fn, nodes, steps, keep)

        (end, _, count, done), way = jax.vmap(one)(nodes, clamps)
        converged = lambda done: RESULTS.where(done, RESULTS.successful, RESULTS.stopped_early)
        stats = {"steps": count, "evaluations": count + 1}
        trajectory = None
        if record is not None:
            values = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), way)
            ts = jnp.repeat(jnp.arange(steps + 1.0)[:, None], len(count), axis=1)
            trajectory = Trajectory(ts, values, jnp.max(count) + 1)
        ended = (energy, params, nodes, end, clamps, jax.vmap(converged)(done), stats)
        return finish(*ended, throw=self.throw, trajectory=trajectory)

    def _descend(self, value_fn: Callable[[Nodes], Scalar], nodes: Nodes, steps: int, keep) -> Any:
        """The last state, and what was kept of the start and every step."""
        given = isinstance(self.optim, optax.GradientTransformation)
        optim = optax.with_extra_args_support(self.optim if given else optax.sgd(self.optim))
        rtol = 0.0 if self.rtol is None else self.rtol

        def test(z, grads):
            return tree_norm(grads) <= rtol * tree_norm(z)

        def step(state):
            z, opt_state, count, _ = state
            value, grads = jax.value_and_grad(value_fn)(z)
            extra = dict(value=value, grad=grads, value_fn=value_fn)
            updates, opt_state = optim.update(grads, opt_state, z, **extra)
            done = test(z, grads)
            new = (optax.apply_updates(z, updates), opt_state, count + 1, done)
            return jax.tree.map(lambda a, b: jnp.where(done, a, b), (z, *state[1:3], done), new)

        state = (nodes, _init(optim, nodes), jnp.asarray(0), jnp.asarray(False))
        if keep is None and self.rtol is None:
            return jax.lax.fori_loop(0, steps, lambda _, state: step(state), state), None
        if keep is None:
            unfinished = lambda state: ~state[3] & (state[2] < steps)
            return jax.lax.while_loop(unfinished, step, state), None
        keep_step = lambda state, _: ((new := step(state)), keep(new[0]))
        state, way = jax.lax.scan(keep_step, state, length=steps)
        first = jax.tree.map(lambda x: x[None], keep(nodes))
        return state, jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, way)


def _init(optim: optax.GradientTransformation, nodes: Nodes) -> Any:
    try:
        return optim.init(nodes)
    except (TypeError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"optim cannot take the nodes, the list of all states: {why}") from error
