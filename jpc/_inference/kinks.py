r"""Newton's method where an energy has kinks, such as those of rectifiers at zero.

At an equilibrium of a rectifier network many units are at their kinks: to the left of zero a unit
would like to be larger, to the right smaller, and the gradient jumps over zero. Such a unit is
held where it is, and the others take Newton's step. A step that carries a unit over its kink ends
there, if the energy rises to both sides; a unit that is held is let go when it does not.
"""

import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, PyTree

from .._energy import Unfolded
from .._types import Name, Number, Scalar
from .relax import Progress

_PATIENCE = 20
_NEAR = 1e-3
_TINY = 1e-12  # On one side of a kink, and nowhere else.
_SAME = 1e-3  # Slopes that differ by a smaller part are the same.

_RECTIFIERS = re.compile(r"= (max|min|abs|clamp|select_n)\b")
_OTHERS = re.compile(r"= (reduce_window|reduce_window_max|reduce_window_min|sort)\b")


Kinks: TypeAlias = Literal["none", "held", "rectifiers", "others"]


def find_kinks(unfolded: Unfolded, v: dict, given: dict) -> tuple[Kinks, dict[Name, float]]:
    """Which kinks predictions have, as far as their programs tell: none; only those of units at
    zero, where iterations can hold them; also those of other rectifiers and the like; or also
    others, such as a choice among several units. And the states that can be held, each with the
    slope of what it enters to the left of zero, relative to that to the right.
    """
    z, _ = jax.eval_shape(unfolded.unfold, v, given)
    network, read = unfolded.network, {}
    slopes: dict[Name, set] = {name: set() for name in v if network[name].fn is not None}
    kinds = set()
    for node in network.values():
        if node.fn is None or not v.keys() & {*node.parents}:
            continue
        enters = [z[parent] for parent in node.parents]
        program = str(jax.make_jaxpr(node.fn)(*enters))
        if program not in read:
            read[program] = _read(program, node.fn, enters)
        kind, bent = read[program]
        kinds.add(kind)
        for parent, slope in zip(node.parents, bent, strict=True):
            slopes.get(parent, set()).add(slope)
    alike = {
        name: min(found) for name, found in slopes.items() if len(found) == 1 and None not in found
    }
    bends = {name: slope for name, slope in alike.items() if slope != 1}
    if any(found - {1.0} and name not in bends for name, found in slopes.items()):
        kinds.add("rectifiers")
    return max(kinds, key=get_args(Kinks).index, default="none"), bends


def _read(program: str, fn: Callable, enters: list) -> tuple[Kinks, tuple[float | None, ...]]:
    """Of a prediction: which kinks it has, and by how much it bends in each input at zero."""
    kinked, others = (pattern.search(program) for pattern in (_RECTIFIERS, _OTHERS))
    slopes = _slopes(fn, enters) if kinked else (1.0,) * len(enters)
    # A program whose kinks are not where its inputs are zero has them elsewhere.
    elsewhere = kinked and all(slope in (None, 1.0) for slope in slopes)
    kind = "rectifiers" if elsewhere else "held" if kinked else "none"
    return ("others" if others else kind), slopes


def _slopes(fn: Callable, like: list) -> tuple[float | None, ...]:
    """The slope of a function to the left of zero, relative to that to the right, in each of its
    inputs, found by trying it out: 1 where it does not bend, and `None` if it is not the same for
    all units, whatever the parameters and the other inputs are.
    """
    program = eqx.filter_closure_convert(fn, *like)
    arrays, rest = eqx.partition(program, eqx.is_array)
    made = jax.eval_shape(program, *like)
    rng = np.random.default_rng(0)
    draw = lambda x: rng.normal(size=(2, *x.shape)).astype(x.dtype)

    def ratios(arrays, z, t):
        side = lambda i, x: [*z[:i], jnp.full_like(z[i], x), *z[i + 1 :]]
        pull = lambda i, x: jax.vjp(eqx.combine(arrays, rest), *side(i, x))[1](t)[i]
        return [pull(i, -_TINY) / pull(i, _TINY) for i in range(len(z))]

    def common(ratios: Array) -> float | None:
        one = float(np.median(ratios))
        return (
            (one if abs(one - 1) > _SAME else 1.0) if np.ptp(ratios) <= _SAME * abs(one) else None
        )

    try:
        with jax.ensure_compile_time_eval():
            tried = jax.jit(jax.vmap(ratios))(*jax.tree.map(draw, (arrays, like, made)))
    except Exception:  # A function that does not take random numbers is not held.
        return (None,) * len(like)
    return tuple(map(common, tried))


def settle(
    potential: Callable[[PyTree], Scalar],
    start: PyTree,
    active: Bool[Array, ""],
    *,
    tolerance: Array,
    blur: Array,
    max_steps: int = 100,
) -> tuple[PyTree, Array, Array]:
    """Descends to where every unit has either no gradient or a kink.

    **Arguments:**

    - `potential`: the energy of the units.
    - `start`: where they are.
    - `active`: whether to begin at all.
    - `tolerance`: of the norm of the gradient of the units that are not held.
    - `blur`: energies that differ by less are the same but for rounding.
    - `max_steps`: how many steps to take at most. It stops where the energy cannot be lowered,
        or when a few steps have changed little.

    **Returns:**

    The units, the norm of the gradient of those that are not held, and the number of steps.
    """
    z, unravel = ravel_pytree(start)
    energy = lambda z: potential(unravel(z))

    def body(state):
        z, pins, _, steps, progress, _ = state
        value, gradient = jax.value_and_grad(energy)(z)
        gradient = jnp.where(pins, 0, gradient)
        gap = jnp.linalg.norm(gradient)
        move = _newton(energy, z, pins, gradient)
        new, held, okay = _search(energy, z, pins, move, value + blur)
        progress = progress.update(value, gap)
        patience = jnp.where(jnp.any(held), _PATIENCE, 4)  # Kinks of another kind cannot be held.
        go_on = okay & (gap > tolerance) & (progress.stalled < patience)
        z, pins = jnp.where(go_on, new, z), jnp.where(go_on, held, pins)
        return z, pins, gap, steps + 1, progress, go_on

    def unfinished(state):
        *_, steps, _, go_on = state
        return go_on & (steps < max_steps)

    never = jnp.asarray(jnp.inf, z.dtype)
    progress = Progress(never, never, jnp.asarray(0))
    z, pins = _hold_near(energy, z, energy(z) + blur)
    state = (z, pins, never, jnp.asarray(0), progress, active)
    z, _, gap, steps, *_ = jax.lax.while_loop(unfinished, body, state)
    return unravel(z), gap, steps


def _hold_near(energy: Callable[[Array], Scalar], z: Array, most: Array) -> tuple[Array, Array]:
    """Holds the units that a descent has left next to their kinks, if that is no worse."""
    near = jnp.abs(z) <= _NEAR * jnp.sqrt(jnp.mean(z**2))
    held, _ = _at_kinks(energy, jnp.where(near, 0, z), near)
    there = jnp.where(held, 0, z)
    okay = energy(there) <= most
    return jnp.where(okay, there, z), okay & held


def _at_kinks(energy: Callable[[Array], Scalar], z: Array, units: Bool[Array, " units"]):
    """Which of some units at zero are at a kink with the energy rising to both sides, and which
    are to go left.
    """
    beside = jnp.stack([z - _TINY * units, z + _TINY * units])
    left, right = jax.vmap(jax.grad(energy))(beside)
    return units & (left < 0) & (right > 0), left >= 0


def _newton(energy, z: Array, pins: Array, gradient: Array) -> Array:
    product = lambda t: jnp.where(
        pins, t, jax.jvp(jax.grad(energy), (z,), (jnp.where(pins, 0, t),))[1]
    )
    structure = jax.ShapeDtypeStruct(z.shape, z.dtype)
    operator = lx.FunctionLinearOperator(product, structure, lx.positive_semidefinite_tag)
    tolerance = float(jnp.finfo(z.dtype).eps) ** 0.75
    # Lineax compares entry by entry: with no `atol` an entry that is zero ends it all.
    atol = tolerance * jnp.linalg.norm(gradient)
    options: Any = dict(rtol=tolerance, atol=atol, stabilise_every=None)
    solver = lx.CG(max_steps=min(2 * z.size, 200), **options)
    move = lx.linear_solve(operator, -gradient, solver, throw=False).value
    along = jnp.vdot(move, gradient)  # No number, or infinite, if any entry of the move is.
    return jnp.where(jnp.isfinite(along) & (along < 0), move, -gradient)


def _search(energy, z: Array, pins: Array, move: Array, most: Array) -> tuple[Array, Array, Array]:
    """A step along a direction that does not raise the energy, if there is one: where it ends,
    which units are held there, and whether it was found.
    """

    def attempt(length: Number):
        there = z + length * move
        reached = pins | (there * z <= 0)
        held, to_left = _at_kinks(energy, jnp.where(reached, 0, there), reached)
        beside = jnp.where(to_left, -_TINY, _TINY)
        stopped = jnp.where(held, 0, jnp.where(pins, beside, there))
        okay = energy(stopped) <= most
        return jnp.where(okay, stopped, there), okay & held

    def body(state):
        length, *_ = state
        new, held = attempt(length)
        return length / 4, new, held, energy(new) <= most

    def unfinished(state):
        length, *_, okay = state
        return ~okay & (length > 1e-6)

    state = (jnp.asarray(1.0, z.dtype), z, pins, jnp.asarray(False))
    _, new, held, okay = jax.lax.while_loop(unfinished, body, state)
    return new, held, okay
