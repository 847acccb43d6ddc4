import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array

from .._given import check_count, check_flags
from .._types import Given
from .base import RESULTS, AbstractInference, check_free, examples, finish, gradient_norm, method


class Minimise(AbstractInference):
    """Inference by an Optimistix minimiser.

    **Arguments:**

    - `solver`: any Optimistix minimiser; its tolerances say when to end.
    - `max_steps`: how many steps it may take.
    - `together`: whether the whole batch is one problem, the sum of its examples' energies.
        By default each example is a problem of its own.
    - `throw`: whether divergence and `max_steps` raise an error.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    inferred = jpc.Minimise(max_steps=50, throw=False)(energy, model, nodes, clamps)
    ```
    """

    solver: Given[optx.AbstractMinimiser] = optx.BFGS(rtol=1e-6, atol=1e-6)
    max_steps: Given[int] = eqx.field(static=True, default=1000)
    together: Given[bool] = eqx.field(static=True, default=False)
    throw: Given[bool] = eqx.field(static=True, default=True)

    def __check_init__(self):
        if not isinstance(self.solver, optx.AbstractMinimiser):
            raise TypeError(
                "Minimise needs an Optimistix minimiser, such as optimistix.BFGS(1e-6, 1e-6): got "
                f"a {type(self.solver).__name__}. Optax optimisers are for Descent."
            )
        check_count("max_steps", self.max_steps)
        check_flags(together=self.together, throw=self.throw)

    @method
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        if record is not None:
            raise ValueError("Minimise keeps no record of its steps: use GradientFlow or Descent.")
        check_free(nodes)

        def solve(potential, nodes):
            fn = lambda z, _: potential(z)
            limit = self.max_steps
            solution = optx.minimise(fn, self.solver, nodes, max_steps=limit, throw=False)
            return solution.value, _translate(solution.result), solution.stats["num_steps"]

        if self.together:
            total = lambda z: jnp.sum(examples(energy, params, z, clamps))
            end, *ended = solve(total, nodes)
            batch = jax.tree.leaves(nodes)[0].shape[0]
            result, steps = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch,)), ended)
        else:
            one = lambda n, c: solve(lambda z: energy.example(params, z, c), n)
            end, result, steps = jax.vmap(one)(nodes, clamps)
        norms = [gradient_norm(energy, params, z, clamps) for z in (nodes, end)]
        result = jax.vmap(_confirm)(result, *norms)
        stats = {"steps": steps, "evaluations": steps}
        ended = (energy, params, nodes, end, clamps, result, stats)
        return finish(*ended, throw=self.throw)


def _confirm(result: RESULTS, before: Array, after: Array) -> RESULTS:
    """A minimiser ends when it gets no further, which need not be at a minimum."""
    there = after <= jnp.maximum(1e-2 * before, jnp.sqrt(jnp.finfo(after.dtype).eps))
    stuck = (result == RESULTS.successful) & ~there
    return RESULTS.where(stuck, RESULTS.stopped_early, result)


def _translate(result: optx.RESULTS) -> RESULTS:
    okay = result == optx.RESULTS.successful
    return RESULTS.where(okay, RESULTS.successful, RESULTS.max_steps_reached)
