"""Derivatives of an equilibrium by the implicit function theorem."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import PyTree

from .._energy import Unfolded
from .._metrics import tree_norm


@eqx.filter_custom_jvp
def implicit(v: dict, unfold: PyTree, params: PyTree, given: dict) -> dict:
    r"""The errors $v$ of an example at equilibrium, where $\nabla_v F(v; \theta) = 0$, with

    $$dv = -(\nabla_v^2 F)^{-1} \, \partial_\theta \nabla_v F \, d\theta.$$

    Kinks are taken for smooth: where units are held at them, derivatives are wrong.

    **Arguments:**

    - `v`: the errors.
    - `unfold`: a function of the parameters, a PyTree, that returns an
        [`jpc._energy.Unfolded`][].
    - `params`, `given`: what they depend on.
    """
    del unfold, params, given
    return v


@implicit.def_jvp
def _implicit(primals, tangents):
    _, *problem = primals
    v = implicit(*primals)  # Which has derivatives of its own, for those of higher order.

    def gradient(v, unfold, params, given):
        unfolded: Unfolded = unfold(params)
        return jax.grad(lambda v: unfolded.energy(v, given))(v)

    forces = lambda *problem: gradient(v, *problem)
    _, change = eqx.filter_jvp(forces, tuple(problem), tuple(tangents[1:]))
    change = {n: jnp.zeros_like(z) if change[n] is None else change[n] for n, z in v.items()}
    product = lambda t: jax.jvp(lambda v: gradient(v, *problem), (v,), (t,))[1]
    structure, tag = jax.eval_shape(lambda: v), lx.positive_semidefinite_tag
    tolerance = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(v))).eps) ** 0.75
    solver = _Scaled(lx.CG(rtol=tolerance, atol=tolerance, max_steps=1000))
    operator = lx.FunctionLinearOperator(product, structure, tag)
    change = lx.linear_solve(operator, change, solver, throw=False).value
    return v, jax.tree.map(jnp.negative, change)


class _Scaled(lx.AbstractLinearSolver):
    """Solves for a vector of length one: its tolerance is relative, also in a transpose."""

    solver: lx.CG

    def init(self, operator, options):
        return self.solver.init(operator, options)

    def compute(self, state, vector, options):
        size = tree_norm(vector)
        size = jnp.where(size > 0, size, 1)
        scale = lambda by, tree: jax.tree.map(lambda x: x * by, tree)
        value, result, stats = self.solver.compute(state, scale(1 / size, vector), options)
        return scale(size, value), result, stats

    def transpose(self, state, options):
        return self.solver.transpose(state, options)

    def conj(self, state, options):
        return self.solver.conj(state, options)

    def assume_full_rank(self):
        return self.solver.assume_full_rank()
