from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._layer import apply
from .._stack import predict
from .._types import Clamps, Layers, Nodes, Scalar, Terms
from .base import AbstractEnergy, AddEnergy
from .loss import squared_error
from .pc import PCEnergy
from .penalty import GaussianPrior, SpectralPenalty, WeightDecay


class Chain(eqx.Module):
    r"""An energy that is a chain of predictions, taken apart: in the coordinates of its errors
    $e_\ell = z_\ell - f_\ell(z_{\ell-1})$ it is a sum of squares and one term in the output,

    $$F(e) = \frac{q}{2} \lVert z_0 \rVert^2 + \sum_{\ell=1}^{L-1} \frac{p_\ell}{2}
             \lVert e_\ell \rVert^2 + p_L \, \mathrm{loss}(y, \hat y(e)),$$

    up to `rest`, which does not depend on the states.
    """

    energy: PCEnergy
    prior: GaussianPrior | None
    rest: Sequence[AbstractEnergy]

    def weights(self, depth: int) -> list[Array]:
        r"""$q, p_1 \dots p_{L-1}$, one for each of $z_0, e_1 \dots e_{L-1}$."""
        prior = 0.0 if self.prior is None else self.prior.coefficient
        return [jnp.asarray(w) for w in (prior, *self.energy.precisions(depth)[:-1])]

    def loss(self, depth: int) -> Callable[[Array, Array], Scalar]:
        """The term in the output, of the target and its prediction."""
        precision = self.energy.precisions(depth)[-1]
        return lambda target, prediction: precision * self.energy.loss(target, prediction)


def as_chain(energy: AbstractEnergy) -> Chain:
    """Takes an energy apart, or says that it is not a chain."""
    match energy:
        case PCEnergy():
            return Chain(energy, None, ())
        case AddEnergy(first=first, second=GaussianPrior(coefficient=coefficient) as prior):
            chain = as_chain(first)
            if chain.prior is not None:  # The sum of two is one.
                prior = GaussianPrior(chain.prior.coefficient + coefficient)
            flat = isinstance(prior.coefficient, int | float) and prior.coefficient == 0
            return Chain(chain.energy, None if flat else prior, chain.rest)
        case AddEnergy(first=first, second=(WeightDecay() | SpectralPenalty()) as penalty):
            chain = as_chain(first)
            return Chain(chain.energy, chain.prior, (*chain.rest, penalty))
    name = type(energy.second if isinstance(energy, AddEnergy) else energy).__name__
    raise TypeError(
        f"An energy with {name} is not a chain in the coordinates of its errors, which is a "
        "PCEnergy, and maybe a GaussianPrior, WeightDecay or SpectralPenalty added to it. Use "
        "GradientFlow, Descent or Minimise, which work with any energy."
    )


class EPCEnergy(AbstractEnergy):
    r"""A chain's energy in the coordinates of its errors,

    $$F(e) = \sum_{\ell=1}^{L-1} \frac{p_\ell}{2} \lVert e_\ell \rVert^2
             + p_L \, \mathrm{loss}(y, \hat y(e)), \qquad
      z_\ell = f_\ell(z_{\ell-1}) + e_\ell.$$

    Its `nodes` are $e_1 \dots e_{L-1}$ in the places of $z_1 \dots z_{L-1}$; a free $z_0$ is
    itself. Signals reach every layer at once, while in the states they go one layer a step.
    Its gradient in the parameters is that of the states: each layer learns from its own error,
    with the states held fixed.

    **Arguments:**

    - `energy`: a [`jpc.PCEnergy`][], with penalties added or not.
    """

    energy: AbstractEnergy

    def __check_init__(self):
        as_chain(self.energy)

    def terms(self, params: Layers, nodes: Nodes, clamps: Clamps) -> Terms:
        chain, sg = as_chain(self.energy), jax.lax.stop_gradient
        *precisions, _ = chain.energy.precisions(len(params))
        arrays, rest = eqx.partition(params, eqx.is_inexact_array)
        fixed = eqx.combine(sg(arrays), rest)
        z, terms = eqx.combine(nodes, clamps)[0], []
        for p, layer, same, e in zip(precisions, params[:-1], fixed, nodes[1:-1], strict=False):
            f, local = (
                apply(same, z),
                apply(layer, sg(z)),
            )  # The same: one to infer through, one to learn.
            terms.append(p * squared_error(e + sg(f), local))
            z = f + e
        f, local = apply(fixed[-1], z), apply(params[-1], sg(z))
        terms.append(chain.loss(len(params))(clamps[-1], local + f - sg(f)))
        others = [other for other in (chain.prior, *chain.rest) if other is not None]
        return terms + [other.terms(params, nodes, clamps) for other in others]


class LocalEnergy(AbstractEnergy):
    r"""A chain's energy with its errors given rather than computed, to learn from: for each
    layer its state and $\delta_\ell = -\partial F / \partial f_\ell$, with which

    $$\nabla_{\theta_\ell} F = -\delta_\ell^T \,
      \partial f_\ell(z_{\ell-1}) / \partial \theta_\ell.$$

    Computing an error as the difference of a state and its prediction loses digits; an
    equilibrium solver knows it without. The `nodes` are pairs $(z_\ell, \delta_\ell)$.

    **Arguments:**

    - `rest`: the energies that depend on the parameters alone.
    """

    rest: Sequence[AbstractEnergy] = ()

    def terms(self, params: Layers, nodes: Nodes, clamps: Clamps) -> Terms:
        del clamps
        states, deltas = zip(*nodes, strict=True)
        predictions = predict(params, states[:-1], compared=False)
        chain = zip(deltas[1:], predictions, strict=True)
        local = [-jnp.vdot(delta, prediction) for delta, prediction in chain]
        return local + [other.terms(params, [], []) for other in self.rest]
