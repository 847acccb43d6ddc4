import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._clamp import Masked, entry, spell
from .._given import check_type, show
from .._types import Clamps, Given, Nodes, Terms
from .base import AbstractEnergy
from .network import predictions, take_apart
from .pc import PCEnergy
from .unfold import Unfolded


class EPCEnergy(AbstractEnergy):
    r"""The energy of a network in the coordinates of its errors. For a chain,

    $$F(e) = \sum_{\ell=1}^{L-1} \frac{p_\ell}{2} \lVert e_\ell \rVert^2
             + p_L \, \mathrm{loss}(y, \hat y(e)), \qquad
      z_\ell = f_\ell(z_{\ell-1}) + e_\ell.$$

    Its `nodes` are the errors, in the places of the states. For a state that nothing predicts
    the node is the state itself. An error at the output reaches every layer at once, while in
    the states it moves by one layer in each step. The gradient in the parameters is the same as
    in the states: each layer learns from its own error, with the states held fixed.

    **Arguments:**

    - `energy`: a [`jpc.AbstractNetworkEnergy`][], such as [`jpc.PCEnergy`][], with priors and
        penalties added or not.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    in_errors = jpc.EPCEnergy(jpc.PCEnergy())
    zeros = [None if z is None else jnp.zeros_like(z) for z in nodes]
    value = in_errors(model, zeros, clamps)  # As after a feedforward pass.
    ```
    """

    energy: Given[AbstractEnergy]

    def __check_init__(self):
        check_type("energy", self.energy, AbstractEnergy, "jpc.PCEnergy()")
        take_apart(self.energy)

    def terms(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Terms:
        parts, sg = take_apart(self.energy), jax.lax.stop_gradient
        arrays, rest = eqx.partition(params, eqx.is_inexact_array)
        network = parts.network(eqx.combine(sg(arrays), rest))
        fixed, errors, clamped = Unfolded.of(network, nodes, clamps)
        z, predicted = fixed.unfold(errors, clamped)
        # The same predictions twice: one to infer through, one to learn from.
        network = parts.network(params)
        local = predictions(network, sg(z), compared=True)

        def cost(name):
            given, e = clamped[name], errors.get(name)
            if name not in predicted:
                return network[name].cost(z[name], None, given)
            through = local[name] + predicted[name] - sg(predicted[name])
            if e is None:
                return network[name].cost(given, through, given)
            if not isinstance(given, Masked):
                # The error as it is: as a difference of two states it would lose digits.
                return network[name].cost(e, local[name] - sg(local[name]), given)
            both = jnp.where(given.mask, through, local[name])
            return network[name].cost(given.fill(e + sg(predicted[name])), both, given)

        terms = {name: cost(name) for name, node in network.items() if node.counts()}
        return terms if isinstance(nodes, dict) else list(terms.values()), parts.penalise(params)


def check_of_states(energy: AbstractEnergy) -> None:
    """That no part of an energy is one of errors."""
    is_epc = lambda part: isinstance(part, EPCEnergy)
    if any(map(is_epc, jax.tree.leaves(energy, is_leaf=is_epc))):
        raise ValueError(
            "The nodes of a jpc.EPCEnergy are errors, and here they are states: give the energy "
            "inside of it, and inference=jpc.InErrors(...), which descends in the errors."
        )


class LocalEnergy(AbstractEnergy):
    r"""An energy to learn from, with errors that are given rather than computed: for each
    node its state and $\delta_n = -\partial F / \partial f_n$, with which

    $$\nabla_\theta F = -\sum_n \delta_n^T \,
      \partial f_n(z_{\mathrm{parents}(n)}) / \partial \theta.$$

    The difference between a state and its prediction loses digits, but an equilibrium solver
    knows the error without computing it. The `nodes` are pairs $(z_n, \delta_n)$, with `None` in
    the place of what is not needed: a state that predicts nothing, or an error of a state that
    nothing predicts.

    **Arguments:**

    - `energy`: the energy whose network it is, with its penalties.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    inferred = jpc.Equilibrium(chords=2, max_steps=0)(energy, model, nodes, clamps)
    local, lesson = inferred.lesson  # A LocalEnergy, and what it needs beside the states.
    learned = jpc.learn(local, model, lesson, clamps, optim=optim, opt_state=opt_state)
    ```
    """

    arrays: PyTree
    rest: PyTree = eqx.field(static=True)

    def __init__(self, energy: Given[AbstractEnergy] = PCEnergy()):
        check_type("energy", energy, AbstractEnergy, "jpc.PCEnergy()")
        # Its functions are no leaves of an answer that leaves jit or vmap.
        self.arrays, self.rest = eqx.partition(energy, eqx.is_array)

    def terms(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Terms:
        del clamps
        parts = take_apart(eqx.combine(self.arrays, self.rest))
        network = parts.network(params)
        pairs = {name: entry(nodes, name) for name in network}
        for name, pair in pairs.items():
            if not (isinstance(pair, tuple) and len(pair) == 2):
                raise TypeError(
                    "The nodes of a jpc.LocalEnergy are pairs of a state and its error, those of "
                    f"inferred.lesson, but {spell(name)} is {show(pair)}."
                )
        z = {name: pair[0] for name, pair in pairs.items()}
        delta = {name: pair[1] for name, pair in pairs.items()}
        predicted = predictions(network, z, compared=False)
        local = [-jnp.vdot(delta[name], prediction) for name, prediction in predicted.items()]
        precise = [node.surprise(delta[name]) for name, node in network.items() if node.learned]
        return local, precise, parts.penalise(params)
