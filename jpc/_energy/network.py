r"""Networks of predictions as data.

A network is a dictionary of [`jpc.Node`][]s, parents before their children. Its energy is the sum
of what the errors of its states cost,

$$F = \sum_n \mathrm{cost}_n(z_n, f_n(z_{\mathrm{parents}(n)})).$$
"""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._clamp import Masked, check_lists, entry, spell, states
from .._given import check_callable, check_flags, check_layer, check_number, is_real, show
from .._layer import apply
from .._stack import predict
from .._types import Clamps, Given, Loss, Name, Nodes, Number, Scalar, Terms
from .base import AbstractEnergy, AddEnergy, ScaledEnergy
from .loss import squared_error


class Node(eqx.Module):
    r"""One state of a network: what predicts it, and what its error costs. A state that is
    inferred costs its squared error, $\frac{p}{2} \lVert z - f \rVert^2$. A state that is given
    costs the loss, $p \, \mathrm{loss}(z, f)$. If a state is given in part, each of its units
    costs one or the other.

    **Arguments:**

    - `fn`: a callable that predicts the state of one example from those of its parents. `None`
        if nothing predicts it: it then costs $\frac{p}{2} \lVert z \rVert^2$ if it is inferred.
    - `parents`: the names of the states that `fn` takes, in its order.
    - `loss`: of the target and its prediction, where the state is given. A loss other than the
        squared error must be convex in the prediction for [`jpc.Equilibrium`][].
    - `precision`: $p$, a number, or with the squared error an array of the state's shape, one for
        each unit. With 0 (and no `fn`) the state has a flat prior. The constructors of energies
        refuse negative precisions, but a node takes them, because nudging needs them.
    - `learned`: whether the precision is learned, so that its log-determinant counts too:
        $-\frac{1}{2} \sum_i \log p_i$.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    given = jpc.Node()  # Nothing predicts it.
    predicted = jpc.Node(model[0], ("image",), precision=2.0)
    ```
    """

    fn: Given[Callable | None] = None
    parents: Given[tuple[Name, ...]] = eqx.field(static=True, default=())
    loss: Given[Loss] = squared_error
    precision: Given[Number | Float[Array, "..."]] = 1.0
    learned: Given[bool] = eqx.field(static=True, default=False)

    def __check_init__(self):
        if self.fn is not None:
            check_callable("fn", self.fn, "eqx.nn.Linear(...), or None")
            check_layer("fn", self.fn)
        if not isinstance(self.parents, tuple):
            raise TypeError(f"parents must be a tuple of names, got {show(self.parents)}.")
        check_loss("loss", self.loss)
        check_flags(learned=self.learned)
        if not is_real(self.precision):
            raise TypeError(f"precision must be a number or an array, got {show(self.precision)}.")
        if isinstance(self.precision, int | float):
            check_number("precision", self.precision)

    def predict(self, z: dict[Name, Array], name: str = "A layer") -> Array | None:
        """Its prediction by the states of its parents. An error begins with `name`."""
        enters = [z[parent] for parent in self.parents]
        return None if self.fn is None else apply(self.fn, *enters, name=name)

    def counts(self) -> bool:
        """Whether it is a term of the energy: not if it has no prediction and a flat prior."""
        flat = isinstance(self.precision, int | float) and self.precision == 0
        return self.fn is not None or not flat

    def cost(self, z: Array, prediction: Array | None, given: PyTree) -> Scalar:
        """Of one example, given what it is clamped to, if it is."""
        if prediction is None:
            known = given.mask if isinstance(given, Masked) else given is not None
            return self._squared(jnp.where(known, 0, z), jnp.zeros_like(z))
        if given is None:
            return self._squared(z, prediction) + self._log_det(True, z)
        if not isinstance(given, Masked):
            return self.given_cost(prediction, given)
        free = self._squared(jnp.where(given.mask, prediction, z), prediction)
        free = free + self._log_det(~given.mask, prediction)
        return free + self.given_cost(prediction, given)

    def given_cost(self, prediction: Array, given: PyTree) -> Scalar:
        """Of what is given."""
        if not isinstance(given, Masked):
            cost = self._weigh(self.loss, given, prediction)
            return cost + self._log_det(True, prediction)
        hide, nothing = lambda x: jnp.where(given.mask, x, 0), jnp.zeros_like(prediction)
        cost = self._weigh(self.loss, hide(given.value), hide(prediction))
        if self.loss is not squared_error:  # What the loss makes of zeros is not to count.
            missing = 1 - jnp.mean(given.mask.astype(prediction.dtype))
            cost = cost - missing * self._weigh(self.loss, nothing, nothing)
        return cost + self._log_det(given.mask, prediction)

    def surprise(self, delta: Array) -> Scalar:
        """What there is to learn of the precision from an error times the precision."""
        error = jax.lax.stop_gradient(delta / self.precision)
        return self._squared(error, jnp.zeros_like(error)) + self._log_det(True, error)

    def _squared(self, target: Array, prediction: Array) -> Scalar:
        return self._weigh(squared_error, target, prediction)

    def check_precision(self, shape: tuple[int, ...]) -> None:
        """That it is a number, or has the shape of the state."""
        if jnp.shape(self.precision) not in ((), shape):
            raise ValueError(
                f"A precision has the shape {jnp.shape(self.precision)}, but its state has the "
                f"shape {shape}: give a number, or an array of that shape."
            )

    def _weigh(self, loss: Loss, target: Array, prediction: Array) -> Scalar:
        self.check_precision(prediction.shape)
        shape = jnp.shape(self.precision)
        if shape == ():
            return self.precision * _cost(loss, target, prediction)
        if loss is not squared_error:
            raise ValueError(
                "Precisions of each unit are for the squared error: with another loss give a "
                f"number, got an array of shape {shape}."
            )
        return 0.5 * jnp.sum(self.precision * (target - prediction) ** 2)

    def _log_det(self, counted: Any, like: Array) -> Scalar:
        if not self.learned:
            return jnp.zeros((), like.dtype)
        if self.loss is not squared_error:
            raise ValueError("A precision is learned of a squared error, not of another loss.")
        logs = jnp.broadcast_to(jnp.log(self.precision), like.shape)
        return -0.5 * jnp.sum(jnp.where(counted, logs, 0))


def check_loss(name: str, loss: Any) -> None:
    check_callable(name, loss, "jpc.squared_error or jpc.cross_entropy")


def _cost(loss: Loss, target: Array, prediction: Array) -> Scalar:
    """A loss of one example, which must be a number."""
    try:
        cost = loss(target, prediction)
    except TypeError as error:
        why = str(error).partition("\n")[0]
        raise TypeError(f"The loss cannot take a target and its prediction: {why}") from error
    if not is_real(cost) or jnp.shape(cost) != ():
        got = f"an array of shape {jnp.shape(cost)}" if is_real(cost) else show(cost)
        raise ValueError(
            f"The loss of one example must be a number, got {got}: sum over its units."
        )
    if not jnp.issubdtype(jnp.result_type(cost), jnp.floating):
        raise ValueError(
            "The loss of one example must be a float, for it is descended by its gradient, and "
            f"{jnp.result_type(cost)} has none."
        )
    return cost


def predictor(name: Name) -> str:
    return f"What predicts {spell(name)}"


@contextlib.contextmanager
def naming(name: Name) -> Iterator[None]:
    """Errors of our own in here tell the state."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):  # Of a library, with more than words.
            raise
        raise type(error)(f"{spell(name)}: {error}") from error


def check_shape(name: Name, state: Any, prediction: Any) -> None:
    """That a prediction is made of floats, and has the shape of its state if that is known."""
    if not isinstance(prediction, jax.Array):
        raise TypeError(f"{predictor(name)} must make an array, got {show(prediction)}.")
    if not jnp.issubdtype(prediction.dtype, jnp.floating):
        raise TypeError(f"{predictor(name)} must make floats, got {prediction.dtype}.")
    if state is not None and jnp.shape(state) != prediction.shape:
        raise ValueError(
            f"{spell(name)} has the shape {jnp.shape(state)} for one example, but what predicts "
            f"it makes {prediction.shape}."
        )


Network = dict[Name, Node]


class AbstractNetworkEnergy(AbstractEnergy):
    """The energy of a network of predictions. It says what its states are and what predicts
    them, and nothing else. [`jpc.Equilibrium`][] and [`jpc.EPCEnergy`][] take such energies.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    class Pair(jpc.AbstractNetworkEnergy):  # One layer predicts one state from another.
        def network(self, params):
            return {"cause": jpc.Node(), "effect": jpc.Node(params, ("cause",))}

    given = {"cause": x, "effect": activities[0]}
    value = Pair()(model[0], {"cause": None, "effect": None}, given)  # 0.0
    ```
    """

    @abc.abstractmethod
    def network(self, params: PyTree) -> Network:
        """The [`jpc.Node`][]s by name, each after its parents. The names are those of the entries
        of `nodes` and `clamps`: words for dictionaries, whole numbers for lists.
        """

    def layerwise(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Terms:
        check_known(network_of(self, params), nodes, clamps)
        return super().layerwise(params, nodes, clamps)

    def terms(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Terms:
        terms = costs(network_of(self, params), nodes, clamps)
        return terms if isinstance(nodes, dict) else list(terms.values())


def network_of(energy: AbstractNetworkEnergy, params: PyTree) -> Network:
    """What an energy says that it is."""
    network = energy.network(params)
    given: Any = network
    if not (isinstance(given, dict) and all(isinstance(x, Node) for x in given.values())):
        raise TypeError(
            f"network of {type(energy).__name__} must return a dictionary of jpc.Node by name, "
            f"got {show(network)}."
        )
    return network


class AbstractPenalty(AbstractEnergy):
    """An energy of the parameters alone. It can be added to any other.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    class Sparse(jpc.AbstractPenalty):
        def penalty(self, params):
            weights = jax.tree.leaves(eqx.filter(params, eqx.is_array))
            return [jnp.sum(jnp.abs(w)) for w in weights]

    penalised = jpc.PCEnergy() + 1e-3 * Sparse()
    value = penalised(model, nodes, clamps)
    ```
    """

    @abc.abstractmethod
    def penalty(self, params: PyTree) -> Terms:
        """The terms, any PyTree of scalars, made of the parameters alone."""

    def terms(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Terms:
        del nodes, clamps
        return self.penalty(params)


def costs(network: Network, nodes: Nodes, clamps: Clamps) -> dict[Name, Scalar]:
    """Of every state that has any."""
    check_states(network, nodes, clamps)
    z = states(nodes, clamps)
    predicted = predictions(network, z, compared=True)
    terms = {}
    for name, node in network.items():
        if node.counts():
            with naming(name):
                terms[name] = node.cost(z[name], predicted.get(name), entry(clamps, name))
    return terms


def predictions(network: Network, z: Any, *, compared: bool) -> dict[Name, Array]:
    """Of every state that something predicts, from the states of their parents."""
    named = {name: node for name, node in network.items() if node.fn is not None}
    inputs = [tuple(z[parent] for parent in node.parents) for node in named.values()]
    fns = [node.fn for node in named.values() if node.fn is not None]
    names = [*map(predictor, named)]
    made = predict(fns, inputs, names=names, compared=compared)
    predicted = dict(zip(named, made, strict=True))
    for name, prediction in predicted.items():
        check_shape(name, entry(z, name), prediction)
    return predicted


class Parts(eqx.Module):
    """An energy taken apart: networks that share their states, and penalties, each with the
    number that multiplies it.
    """

    networks: tuple[tuple[Number, AbstractNetworkEnergy], ...] = ()
    penalties: tuple[tuple[Number, AbstractPenalty], ...] = ()

    def network(self, params: PyTree) -> Network:
        """All of them in one. What one of them does not predict, another one may."""
        joined: Network = {}
        for factor, part in self.networks:
            for name, plain in network_of(part, params).items():
                node = _scale(factor, plain)
                joined[name] = _join(name, joined[name], node) if name in joined else node
        order = sort({name: node.parents for name, node in joined.items()})
        return {name: joined[name] for name in order or joined}

    def penalise(self, params: PyTree) -> Terms:
        scale = lambda factor, terms: jax.tree.map(lambda term: factor * term, terms)
        return [scale(factor, part.penalty(params)) for factor, part in self.penalties]


def take_apart(energy: AbstractEnergy) -> Parts:
    """The parts of an energy that can be written in the coordinates of its errors; an error if
    it cannot.
    """
    match energy:
        case AddEnergy(first=first, second=second):
            one, other = take_apart(first), take_apart(second)
            return Parts(one.networks + other.networks, one.penalties + other.penalties)
        case ScaledEnergy(factor=factor, energy=whole):
            parts, scale = take_apart(whole), lambda part: (factor * part[0], part[1])
            return Parts(tuple(map(scale, parts.networks)), tuple(map(scale, parts.penalties)))
        case AbstractNetworkEnergy():
            return Parts(networks=((1.0, energy),))
        case AbstractPenalty():
            return Parts(penalties=((1.0, energy),))
    raise TypeError(
        f"{type(energy).__name__} does not say what predicts each state, so that it has no error "
        "coordinates: write it as a jpc.AbstractNetworkEnergy (or, if it is of the parameters "
        "alone, as a jpc.AbstractPenalty), or use GradientFlow, Descent or Minimise, which work "
        "with any energy."
    )


def _scale(factor: Number, node: Node) -> Node:
    if isinstance(factor, float) and factor == 1:
        return node
    if node.learned:
        raise TypeError(
            "Exact inference does not take a multiple of an energy whose precisions are learned: "
            "use GradientFlow, Descent or Minimise."
        )
    return dataclasses.replace(node, precision=factor * node.precision)


def _join(name: Name, one: Node, other: Node) -> Node:
    if one.fn is not None and other.fn is not None:
        raise TypeError(
            f"Two energies predict the state {name!r}, and exact inference needs one prediction "
            "of each: use GradientFlow, Descent or Minimise."
        )
    if one.fn is None and other.fn is None:
        return Node(precision=one.precision + other.precision)
    predicted, prior = (one, other) if other.fn is None else (other, one)
    if prior.counts():
        raise TypeError(
            f"There is a prior on the state {name!r}, which is predicted: exact inference needs "
            "one or the other. Use GradientFlow, Descent or Minimise."
        )
    return predicted


def check_states(network: Network, nodes: Any, clamps: Any) -> None:
    """That every state is inferred or given, and only those that are given in part are both."""
    check_lists(nodes, clamps)
    for name in network:
        free, given = entry(nodes, name), entry(clamps, name)
        if isinstance(free, Masked):
            raise TypeError(f"nodes: {spell(name)} is a jpc.Masked, which belongs into clamps.")
        if free is None and given is None:
            raise ValueError(f"The state {name!r} is in neither nodes nor clamps.")
        if free is None and isinstance(given, Masked):
            raise ValueError(f"The state {name!r} is given in part: put the rest into nodes.")
        if free is not None and not isinstance(given, Masked | None):
            raise ValueError(
                f"The state {name!r} is in both nodes and clamps: put None into one of them, "
                "or clamp it in part with jpc.Masked."
            )
        for parent in network[name].parents:
            if entry(nodes, parent) is None and entry(clamps, parent) is None:
                raise ValueError(f"{name!r} is predicted by {parent!r}, which is not a node.")


def check_known(network: Network, nodes: Any, clamps: Any) -> None:
    """That there are no states beyond those of a network."""
    check_lists(nodes, clamps)
    named = [*{**nodes, **clamps}] if isinstance(nodes, dict) else [*range(len(nodes))]
    unknown = [name for name in named if name not in network]
    if unknown and network.keys() <= {*named}:
        raise ValueError(
            f"There is {spell(unknown[0])} among the nodes and clamps, but the network has only "
            f"{', '.join(map(spell, network)) or 'penalties, and no states'}."
        )


def check_order(network: Network) -> None:
    """That parents come before their children."""
    seen: set[Name] = set()
    for name, node in network.items():
        for parent in node.parents:
            if parent not in network:
                raise ValueError(f"{name!r} is predicted by {parent!r}, which is not a node.")
            if parent not in seen:
                raise ValueError(
                    f"{name!r} is predicted by {parent!r}, which does not come before it. Exact "
                    "inference needs a network without cycles, parents first: GradientFlow, "
                    "Descent and Minimise do not."
                )
        seen.add(name)


def sort(parents: Mapping[Any, Iterable[Any]]) -> list[Any] | None:
    """Names with all parents before their children, as close to their own order as possible;
    `None` if there is a cycle.
    """
    done: dict[str, None] = {}
    while len(done) < len(parents):
        ready = [n for n in parents if n not in done and all(p in done for p in parents[n])]
        if not ready:
            return None
        done[ready[0]] = None
    return list(done)
