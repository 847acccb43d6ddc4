"""What rules of learning share that start from a feedforward pass, where there are no errors."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._checks import raise_if_not_finite
from .._clamp import like
from .._energy import AbstractEnergy, EPCEnergy, LocalEnergy, Unfolded, take_apart
from .._given import check_type
from .._types import Clamps, Nodes
from .base import RESULTS, Inferred, Record, conclude, examples, gradient_norm
from .chords import pair


class Forward(NamedTuple):
    """A problem at its feedforward pass.

    **Attributes:**

    - `energy`, `params`, `nodes`, `clamps`: of the problem. The nodes are those of the pass.
    - `inner`: the energy in the states.
    - `unfolded`, `v`, `given`: the same in the coordinates of the errors, which are zero.
    """

    energy: AbstractEnergy
    params: PyTree
    nodes: Nodes
    clamps: Clamps
    inner: AbstractEnergy
    unfolded: Unfolded
    v: dict
    given: dict

    @staticmethod
    def of(
        rule: str, problem: tuple, record: Record | None, *, precisions: str = "hidden"
    ) -> "Forward":
        """The problem of a rule: an energy, its parameters, nodes and clamps. `precisions` says
        which of them cannot be learned, those of `"hidden"` states or `"all"`.
        """
        energy, params, nodes, clamps = problem
        check_type("energy", energy, AbstractEnergy, "jpc.PCEnergy()")
        if record is not None:
            raise ValueError(f"{rule} has no dynamics to record: use GradientFlow or Descent.")
        inner = energy.energy if isinstance(energy, EPCEnergy) else energy
        unfolded, free, given = Unfolded.of(take_apart(inner).network(params), nodes, clamps)
        _check(rule, unfolded, precisions)
        v = jax.tree.map(jnp.zeros_like, free)
        states = v if inner is not energy else _states(unfolded, v, given)
        return Forward(energy, params, like(nodes, states), clamps, inner, unfolded, v, given)

    def finish(
        self, z: dict, delta: dict, result: RESULTS, stats: dict[str, Any], *, throw: bool = True
    ) -> Inferred:
        """The answer: the states of the pass, and the errors to learn from."""
        lesson = LocalEnergy(self.inner), like(self.nodes, pair(self.unfolded, z, delta))
        energies = examples(self.energy, self.params, self.nodes, self.clamps)
        spread = lambda x: jnp.broadcast_to(x, energies.shape)
        result, stats = jax.tree.map(spread, (result, dict(relaxed=0.0) | stats))
        ended, result = conclude(self.energy, self.nodes, result, energies, energies, throw=throw)
        if throw:
            ended = raise_if_not_finite({"What there is to learn": lesson[1]}, ended)
        stats["gradient_norm"] = gradient_norm(self.energy, self.params, ended, self.clamps)
        return Inferred(ended, result, stats, lesson=lesson)


def _states(unfolded: Unfolded, v: dict, given: dict) -> dict:
    states = jax.vmap(lambda v, given: unfolded.unfold(v, given)[0])(v, given)
    return {name: states[name] for name in v}


def _check(rule: str, unfolded: Unfolded, precisions: str) -> None:
    network = unfolded.network
    if not unfolded.seen:
        raise ValueError(f"{rule} learns from errors of what is given, and nothing predicts that.")
    for name in unfolded.free:
        if network[name].fn is None:
            raise ValueError(
                f"{rule} starts from a feedforward pass, but the state {name!r} is free and "
                "nothing predicts it: give it, or use Equilibrium, GradientFlow or Descent."
            )
    if bad := [
        name
        for name, node in network.items()
        if node.learned and (precisions == "all" or name not in unfolded.seen)
    ]:
        raise ValueError(
            f"{rule} has nothing to learn the precision of the state {bad[0]!r} from: use "
            "Equilibrium."
        )


def backward(unfolded: Unfolded, v: dict, given: dict) -> tuple[dict, dict, Any]:
    r"""Of one example: the states, the errors $g = -\partial \, \mathrm{loss} / \partial \hat y$
    of what is given, and the function that takes errors of what is given back to all states.
    """
    predicted, pull, z = jax.vjp(lambda v: unfolded.predict(v, given), v, has_aux=True)
    slopes = jax.grad(unfolded.loss)(predicted, given)
    return z, jax.tree.map(jnp.negative, slopes), lambda lam: pull(lam)[0]
