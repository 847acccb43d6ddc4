"""The pieces of inference, each by itself: dense matrices, closed forms and known limits are the
oracle. Together they forgive much: what one does badly, another makes up for, only slower.
"""

import functools as ft
import itertools

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from helpers import assert_close as same_trees

import jpc
from jpc._energy import Unfolded
from jpc._gap import _relative as relative_gap
from jpc._inference import relax as relax_module
from jpc._inference.backprop import _moments
from jpc._inference.chords import Chords, Inverse, Matrix, energy_of
from jpc._inference.flow import _curvature, _relative, _without_padding
from jpc._inference.kinks import _at_kinks, _hold_near, _newton, _search, settle
from jpc._inference.mix import _mix, _Pair, _Step, begin, finish, go_on, until_all, until_together
from jpc._inference.nudged import _shortest, _solve
from jpc._inference.relax import (
    _aim,
    _Memory,
    _Point,
    _Problem,
    _shorten,
    _step,
    at_least,
    blur_of,
    pick,
    relax,
)
from jpc._inference.sketch import Sketch
from jpc._inference.stages import _descent, futile, rms
from jpc._regime import relaxed_share
from jpc._solve import eigenvalues

NOTHING, INF, NAN = jnp.asarray(False), jnp.inf, jnp.nan


def numbers(*values):
    return jnp.asarray(values, float)


def assert_close(got, expected, **tolerances):
    """Of arrays, or of what is written like one."""
    same_trees(got, np.asarray(expected), **tolerances)


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


# --- a limited memory ---


def pushed(pairs, size=4):
    empty = jnp.zeros((relax_module._MEMORY, size))
    memory = _Memory(empty, empty, empty[:, 0])
    for s, y in pairs:
        memory = memory.push(jnp.asarray(s), jnp.asarray(y))
    return memory


def bfgs(inverse, pairs):
    """The inverse matrix after some pairs."""
    for s, y in pairs:
        rho, one = 1 / (s @ y), np.eye(len(s))
        left = one - rho * np.outer(s, y)
        inverse = left @ inverse @ left.T + rho * np.outer(s, s)
    return inverse


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_memory_is_the_matrix_of_bfgs(count):
    curvature, start = np.diag([1.0, 2.0, 5.0, 0.3]), np.diag([1.0, 0.5, 2.0, 3.0])
    pairs = [(s, curvature @ s) for s in draw(0, count, 4)]
    gradient = draw(1, 4)
    found = pushed(pairs).direction(jnp.asarray(gradient), lambda q: jnp.asarray(start) @ q)
    assert_close(found, -bfgs(start, pairs) @ gradient)


def test_a_memory_forgets_what_is_oldest():
    pairs = [(s, 2 * s) for s in draw(2, relax_module._MEMORY + 2, 4)]
    kept = pushed(pairs)
    assert_close(kept.s, np.stack([s for s, _ in pairs[:1:-1]]))
    assert_close(kept.y, 2 * kept.s)
    assert_close(kept.rho, 0.5 / np.sum(np.square(kept.s), axis=1))


@pytest.mark.parametrize(("cosine", "kept"), [(1e-8, True), (1e-12, False), (-0.5, False)])
def test_a_memory_keeps_what_bends_upwards(cosine, kept):
    """Whatever the lengths of the two vectors are."""
    for a, b in ((1e6, 1e-3), (1e-3, 1e6)):
        s = a * numbers(1, 0, 0, 0)
        y = b * numbers(cosine, np.sqrt(1 - cosine**2), 0, 0)
        assert bool(jnp.any(pushed([(s, y)]).rho != 0)) == kept


# --- the problem of a descent, in one vector ---

WIDTHS = (2, 3, 4)


def chain(loss=jpc.squared_error, precisions=(2.0, 0.5), seed=0, flat=False):
    """A linear chain of one example in the coordinates of its errors; `flat`: with a free input
    that nothing predicts.
    """
    layers = [
        eqx.nn.Linear(n, m, use_bias=False, key=jr.key(0)) for n, m in itertools.pairwise(WIDTHS)
    ]
    weights = [draw(seed + i, *layer.weight.shape) for i, layer in enumerate(layers)]
    layers = [
        eqx.tree_at(lambda m: m.weight, m, jnp.asarray(w))
        for m, w in zip(layers, weights, strict=True)
    ]
    x, y = jnp.asarray(draw(seed + 5, 1, 2)), jax.nn.one_hot(jnp.array([1]), 4)
    hidden = jnp.asarray(draw(seed + 6, 1, 3))
    nodes, clamps = jpc.clamp([x, hidden], y) if flat else jpc.clamp([hidden], y, x)
    energy = jpc.PCEnergy(loss, precision=list(precisions))
    unfolded, free, given = Unfolded.of(energy.network(layers), nodes, clamps)
    free, given = jax.tree.map(lambda z: z[0], (free, given))
    return unfolded, unfolded.coordinates(free, given), given, weights


def dense(unfolded, v, given):
    """$P$, $J$, and the curvature and the gradient of the loss, of one vector."""
    x, unravel = jax.flatten_util.ravel_pytree(v)
    names = [name for name in v for _ in range(v[name].size)]
    P = np.array([float(unfolded.network[name].precision) for name in names])
    predict = lambda x: jax.flatten_util.ravel_pytree(unfolded.predict(unravel(x), given)[0])[0]
    (seen,) = unfolded.seen
    loss = lambda y: unfolded.loss({seen: y}, given)
    yhat = predict(x)
    parts = jax.jacobian(predict)(x), jax.hessian(loss)(yhat), jax.grad(loss)(yhat)
    return x, P, *map(np.asarray, parts), loss, yhat


LOSSES = pytest.mark.parametrize("loss", [jpc.squared_error, jpc.cross_entropy])


@LOSSES
def test_a_descent_moves_by_gauss_and_newton(loss):
    unfolded, v, given, _ = chain(loss)
    x, P, J, H, slope, _, _ = dense(unfolded, v, given)
    problem = _Problem.of(unfolded, v, given, True)
    point = problem.at(x)
    gradient, matrix = P * x + J.T @ slope, np.diag(P) + J.T @ H @ J
    move = np.linalg.solve(matrix, gradient)
    assert_close(point.gradient, gradient)
    assert_close(point.energy, unfolded.energy(v, given))
    assert_close(point.move, move)
    assert_close(point.lam, -slope + H @ J @ move)  # The error after that step.
    for q in draw(9, 2, len(x)):
        assert_close(problem.precondition(jnp.asarray(q), point.K), np.linalg.solve(matrix, q))


def test_without_a_matrix_it_moves_by_the_precisions():
    unfolded, v, given, _ = chain()
    x, P, J, _, slope, _, _ = dense(unfolded, v, given)
    point = _Problem.of(unfolded, v, given, False).at(x)
    assert_close(point.move, (P * x + J.T @ slope) / P)
    assert_close(point.lam, -slope)


@pytest.mark.parametrize("has_matrix", [True, False])
def test_rounding_of_the_output_is_noise_of_the_errors(has_matrix):
    unfolded, v, given, _ = chain(jpc.cross_entropy)
    _, P, J, H, _, loss, yhat = dense(unfolded, v, given)
    rounding = np.asarray(relax_module.rounding_of(loss, yhat))
    if has_matrix:
        rounding = np.linalg.solve(np.eye(4) + H @ J @ np.diag(1 / P) @ J.T, rounding)
    noise = J.T @ rounding / P
    found = _Problem.of(unfolded, v, given, has_matrix).noise
    assert_close(found, np.sqrt(noise @ np.diag(P) @ noise))


def gap_of(x, *steps, P=(4.0, 1.0), noise=0.0):
    P = numbers(*P)
    W = 1 / jnp.where(P > 0, P, 1)
    problem = _Problem(None, {}, None, P, W, jnp.zeros((0, 2)), jnp.asarray(noise))
    rest = [jnp.asarray(0.0)] * 5
    return problem.gap(_Point(numbers(*x), rest[0], *rest), *(numbers(*s) for s in steps))


def test_a_gap_is_a_part_of_the_errors():
    """In the norm of the precisions: $(3, 8)$ has $4 \\cdot 9 + 64 = 100$."""
    assert_close(gap_of((3, 8), (0.3, 0.8)), 0.1)
    assert_close(gap_of((3, 8), (0.5, 0)), 0.1)
    assert_close(gap_of((3, 8), (0, 0.5), (0.0, 1.0)), 0.1)
    assert_close(gap_of((3, 8), (0, 1.0), (0.0, 0.5)), 0.1)
    assert_close(gap_of((3, 8), (0, 1.0), noise=0.5), 0.05)
    assert gap_of((3, 8), (0, 1.0), noise=2.0) == 0


@pytest.mark.parametrize(("flat", "gap"), [(0.5, 0.2), (4.0, 0.1)])
def test_a_flat_state_counts_as_one_at_most(flat, gap):
    assert_close(gap_of((0, flat), (0, 0.1), P=(4.0, 0.0)), gap)
    both = gap_of((1, 4), (0, 0.1), P=(4.0, 0.0))
    assert_close(both, 0.1 / np.sqrt(4 + 1))


def test_a_flat_state_has_a_weight_of_one():
    unfolded, v, given, _ = chain(flat=True)
    problem = _Problem.of(unfolded, v, given, True)
    assert_close(problem.P, [0.0, 0.0, 2.0, 2.0, 2.0])
    assert_close(problem.W, [1.0, 1.0, 0.5, 0.5, 0.5])


@pytest.mark.parametrize("flat", [False, True])
def test_coordinates_unfold_to_the_states(flat):
    unfolded, v, given, weights = chain(flat=flat)
    z, predicted = unfolded.unfold(v, given)
    assert_close(z[1] - v[1], weights[0] @ z[0])
    assert_close(predicted[2], weights[1] @ z[1])
    back = unfolded.coordinates({name: z[name] for name in v}, given)
    assert all(np.allclose(back[name], v[name]) for name in v)


def test_shares_of_what_can_be_relaxed():
    share = lambda *energies: relaxed_share(*numbers(*energies))
    assert_close(share(9.0, 5.0, 1.0), 0.5)
    assert_close(share(9.0, 9.0, 9.0), 0.0)


# --- a step of a descent ---


@pytest.mark.parametrize("length", [1.0, 0.3])
@pytest.mark.parametrize(("bend", "at"), [(1.5, 1 / 3), (1.25, 0.4), (0.6, 0.5), (9.0, 0.1)])
def test_a_shorter_step_is_the_minimum_of_a_parabola(length, bend, at):
    """$-2t + b t^2 / l$ has it at $t = l / b$: of the length, between a tenth and a half."""
    slope, bend = -2.0, 2 * bend / 3 * 1.5
    rise = slope * length + bend * length
    at = min(max(1 / bend, 0.1), 0.5)
    assert_close(_shorten(numbers(length)[0], numbers(slope)[0], numbers(rise)[0]), at * length)


@pytest.mark.parametrize("rise", [NAN, INF])
def test_a_step_that_leads_nowhere_is_a_tenth_as_long(rise):
    assert_close(_shorten(jnp.asarray(0.5), jnp.asarray(-1.0), jnp.asarray(rise)), 0.05)


class Bowl(_Problem):
    """$P x^2 / 2$, with the step to its minimum, and with `noise` for a blur."""

    @staticmethod
    def of(curvature=1.0, blur=0.0):
        P, blur = jnp.asarray(curvature), jnp.asarray(blur)
        return Bowl(None, {}, None, P, 1 / P, P, blur)

    def at(self, x):
        gradient, none = self.P * x, jnp.zeros((0, 0))
        return _Point(x, 0.5 * jnp.vdot(x, gradient), gradient, x, none, x, self.noise)

    def precondition(self, q, K):
        return q / self.P

    def gap(self, point, *steps):
        return jnp.max(jnp.stack([jnp.linalg.norm(s) for s in steps]))


def step(bowl, x, towards, length=1.0):
    empty = jnp.zeros((relax_module._MEMORY, 1))
    progress = relax_module.Progress(*numbers(INF, INF), jnp.asarray(0))
    memory, zero = _Memory(empty, empty, empty[:, 0]), jnp.asarray(0.0)
    point, towards = bowl.at(numbers(x)), numbers(towards)
    state = (point, memory, towards, jnp.asarray(length), zero, jnp.asarray(7), progress)
    return _step(bowl, state)


def test_a_step_that_descends_is_taken():
    point, memory, towards, length, gap, steps, progress = step(Bowl.of(2.0), 1.0, -0.5)
    assert_close(point.x, [0.5])
    assert_close(memory.s[0], [-0.5])
    assert_close(memory.y[0], [-1.0])
    assert_close(towards, [-0.5])  # To the minimum.
    assert_close(gap, 0.5)
    assert length == 1 and steps == 8 and progress.stalled == 0 and progress.gap == gap


def test_a_step_that_does_not_is_shorter():
    """From 1 to -2: of a step of 3 the minimum is at a third."""
    point, memory, towards, length, _, steps, _ = step(Bowl.of(2.0), 1.0, -3.0)
    assert_close(point.x, [1.0])
    assert_close(towards, [-3.0])
    assert_close(length, 1 / 3)
    assert steps == 8 and not memory.rho.any()


@pytest.mark.parametrize(
    ("towards", "length", "blur", "taken"),
    [
        (-2.0, 1.0, 0.0, False),  # To the other side: as high as before.
        (-2.0, 1.0, 0.01, True),  # Who can tell?
        (-1.999, 1.0, 0.0, True),
        (-1.0, 1e-3, 0.0, True),
        (-1e-3, 1.0, 0.0, True),
    ],
)
def test_a_step_has_to_descend_by_a_small_part_of_its_slope(towards, length, blur, taken):
    point = step(Bowl.of(blur=blur), 1.0, towards, length)[0]
    assert bool(point.x[0] != 1) == taken


def test_a_direction_is_the_memorys_if_it_leads_down():
    bowl, x = Bowl.of(), numbers(1.0, 2.0)
    memory = pushed([(numbers(1, 0), numbers(4, 0))], size=2)
    assert_close(_aim(bowl, bowl.at(x), memory), [-0.25, -2.0])
    hill = Bowl.of(-1.0)  # There the memory's leads up.
    for z in (x, 0.01 * x):
        assert_close(_aim(hill, hill.at(z)._replace(move=7 * z), memory), -7 * z)
    never = memory._replace(rho=memory.rho.at[0].set(INF))
    assert_close(_aim(bowl, bowl.at(x), never), -x)
    half = memory._replace(s=memory.s.at[0, 1].set(-INF))
    assert_close(_aim(bowl, bowl.at(x), half), -x)


# --- descents ---

descend = eqx.filter_jit(relax)


def solution(unfolded, v, given):
    """Of a square."""
    x, P, J, _, slope, _, _ = dense(unfolded, v, given)
    return np.asarray(x) - np.linalg.solve(
        np.diag(P) + J.T @ J * _output(unfolded), P * x + J.T @ slope
    )


def _output(unfolded):
    return float(unfolded.network[unfolded.seen[0]].precision)


@pytest.mark.parametrize("has_matrix", [True, False])
def test_a_descent_ends_at_the_minimum(has_matrix):
    unfolded, v, given, _ = chain()
    named = dict(rtol=1e-9, max_steps=100, dense=has_matrix)
    found = descend(unfolded, v, given, NOTHING, **named)
    x = np.concatenate([np.ravel(found.v[name]) for name in v])
    assert_close(x, solution(unfolded, v, given), rtol=1e-6)
    assert_close(found.energy, unfolded.energy(found.v, given), rtol=1e-6)
    slope = jax.grad(unfolded.loss)(unfolded.predict(found.v, given)[0], given)
    assert_close(found.lam[2], -slope[2], rtol=1e-6)
    assert found.gap <= 1e-9 and 1 <= found.steps < (3 if has_matrix else 100)


def test_a_descent_that_is_done_does_nothing():
    unfolded, v, given, _ = chain()
    named = dict(rtol=1e-9, max_steps=100, dense=False)
    found = descend(unfolded, v, given, jnp.asarray(True), **named)
    assert found.steps == 0
    assert_close(found.v[1], v[1])


def test_a_descent_takes_as_many_steps_as_it_may():
    """And says how far off it is."""
    unfolded, v, given, _ = chain(jpc.cross_entropy, (0.1, 9.0))
    for most in (1, 4):
        found = descend(unfolded, v, given, NOTHING, rtol=1e-9, max_steps=most, dense=False)
        assert found.steps == most and found.gap > 1e-9
        assert found.energy <= unfolded.energy(v, given)
    assert found.energy < unfolded.energy(v, given)


@pytest.mark.parametrize("has_matrix", [True, False])
def test_a_descent_ends_when_nothing_comes_of_it(has_matrix):
    unfolded, v, given, _ = chain(jpc.cross_entropy)
    named = dict(rtol=0.0, max_steps=1000, dense=has_matrix)
    found = descend(unfolded, v, given, NOTHING, **named)
    assert found.steps < 300
    gradient = jax.grad(unfolded.energy)(found.v, given)
    assert np.max(np.abs(gradient[1])) < 1e-6


# --- rounding ---


@pytest.mark.parametrize("loss", [jpc.squared_error, jpc.cross_entropy])
def test_energies_differ_by_their_blur_in_single_precision(loss):
    """At most, and by more than a hundredth of it."""
    square, target = loss is jpc.squared_error, np.eye(5)[2]
    parts = []
    for seed in range(40):
        exact = 30 * draw(seed, 5) * 10.0 ** (seed % 3 - 1)
        here = jnp.asarray(exact, jnp.float32)
        value = ft.partial(loss, jnp.asarray(target, jnp.float32))
        energy = value(here)
        blur = blur_of(energy, value, here, square)
        true = loss(jnp.asarray(target), jnp.asarray(exact))
        parts.append(float(jnp.abs(energy - true) / blur))
    assert 0.01 < max(parts) < 1, parts


def test_blur_is_of_the_energy_and_of_the_predictions():
    """Its size in units of the last place, each part alone."""
    eps = float(jnp.finfo(float).eps)
    flat, steep = lambda y: 0.0 * jnp.sum(y), lambda y: 1e6 * jnp.sum(y)
    y, none = numbers(3.0, 4.0), jnp.asarray(0.0)
    part = lambda *given: float(blur_of(*given)) / eps
    assert 1 <= part(jnp.asarray(-7.0), flat, y, True) / 7 <= 10
    assert part(none, flat, y, True) == 0
    assert 1 <= part(none, flat, y, False) / 5 <= 10
    assert 1 <= part(none, steep, y, True) / (5 * np.sqrt(2) * 1e6) <= 10


def test_products_of_an_accelerator_have_ten_bits(monkeypatch):
    """Those of float32 only. The next number after one is off by $2^{-10}$."""
    for rounds in (False, True):
        monkeypatch.setattr(relax_module, "rounds_products", lambda rounds=rounds: rounds)
        single, double = map(relax_module.product_eps, (jnp.float32, jnp.float64))
        assert double == jnp.finfo(jnp.float64).eps
        assert single == (1 / 1024 if rounds else jnp.finfo(jnp.float32).eps)


def test_the_energy_of_one_example():
    unfolded, v, given, _ = chain(jpc.cross_entropy)
    energy, blur = energy_of(unfolded, v, given)
    assert_close(energy, unfolded.energy(v, given))
    assert 0 < blur < 1e-13 * energy


def test_what_is_picked():
    one, two = jnp.ones((3, 2)), jnp.zeros((3, 2))
    found = pick(
        jnp.array([True, False, True]), {"a": one, "b": one[:, 0]}, {"a": two, "b": two[:, 0]}
    )
    assert_close(found["a"], [[1, 1], [0, 0], [1, 1]])
    assert_close(found["b"], [1, 0, 1])
    assert at_least(jnp.asarray(2.0)) == 2 and at_least(jnp.asarray(0.0)) > 0


# --- iterations of a chain of single units: everything in closed form ---

W1, W2, P1, X, Y = 0.7, 1.5, 2.0, 0.8, 3.0
A = W2**2 / P1
G = Y - W2 * W1 * X  # The error of a feedforward pass.
EXACT = G / (1 + A)


def unit_chords(ratio, rtol=1e-3, strict=True):
    """With a matrix for which each step is `1 - ratio` times what is missing."""
    linear = eqx.nn.Linear(1, 1, use_bias=False, key=jr.key(0))
    layers = [eqx.tree_at(lambda m: m.weight, linear, jnp.full((1, 1), w)) for w in (W1, W2)]
    nodes, clamps = jpc.clamp([jnp.zeros((1, 1))], jnp.full((1, 1), Y), jnp.full((1, 1), X))
    energy = jpc.PCEnergy(precision=[P1, 1.0])
    unfolded, _, given = Unfolded.of(energy.network(layers), nodes, clamps)
    given = jax.tree.map(lambda z: z[0], given)
    unfolded = unfolded.knowing(unfolded.foresee(given))
    shared = Inverse(jnp.full((1, 1), (1 - ratio) / (1 + A)))
    return Chords(unfolded, given, shared, rtol, strict)


def iterate(ratio, count, **options):
    some = unit_chords(ratio, **options)
    way = begin(some, {1: jnp.zeros(1)})
    for _ in range(count - 1):
        way = go_on(some, way)
    found = finish(some, way)
    assert_close(found.delta[1], W2 * found.lam[2])
    assert_close(found.v[1], found.delta[1] / P1)
    assert not found.kinks
    return float(found.lam[2][0]) / EXACT, float(found.gap), int(found.steps)


@pytest.mark.parametrize("ratio", [0.1, -0.2, 0.0])
def test_the_first_iteration_is_the_step_of_the_matrix(ratio):
    part, gap, steps = iterate(ratio, 1)
    assert_close(part, 1 - ratio)
    assert np.isinf(gap) and steps == 1


@pytest.mark.parametrize("ratio", [0.1, -0.2, 0.6, -0.5])
def test_two_steps_of_a_single_unit_are_enough_to_know_its_matrix(ratio):
    part, gap, _ = iterate(ratio, 2)
    assert_close(part, 1.0)
    rate = np.clip(abs(ratio), 0.2, 0.9)
    assert_close(gap, abs(ratio * (1 - ratio)) * rate / (1 - rate))
    part, gap, steps = iterate(ratio, 3)
    assert_close(part, 1.0)
    assert gap < 1e-12 and steps == 3


def test_an_example_that_is_over_rests():
    assert iterate(0.1, 9)[2] == 3  # A third step that changes nothing is the last.


def test_a_step_to_a_higher_energy_is_taken_back():
    """The energy rises if a step is more than twice as long as it should be. Its quarter is
    tried, and so on: 31 times, 7.75 times, 1.9375 times.
    """
    first = 31.0
    for taken in (1, 2, 3):
        assert_close(iterate(1 - first, taken)[0], first)
    assert iterate(1 - first, 3)[1:] == (1.0, 3)  # Off by as much as there is.
    assert_close(iterate(1 - first, 4)[0], 1.0)  # From the quarter of a quarter.
    assert iterate(1 - first, 5)[1] < 1e-9
    assert_close(iterate(-0.9, 2)[0], 1.0)  # Not quite twice.


def test_what_has_not_come_together_learns_from_its_first_step_in_training():
    (strict, *_), (training, gap, _) = iterate(0.5, 2), iterate(0.5, 2, strict=False)
    assert gap > 0.05
    assert_close(strict, 1.0)
    assert_close(training, 0.5)
    assert_close(iterate(0.5, 3, strict=False)[0], 1.0)


def test_what_is_left_is_less_by_how_much_of_a_change_arrives():
    """A tenth, as far as that is believed, in training."""
    for ratio, believed in ((0.2, 0.2), (0.1, 0.1), (0.01, 0.1)):
        _, gap, _ = iterate(ratio, 2, strict=False, rtol=1.0)
        assert_close(gap, ratio * (1 - ratio) * believed / (1 - believed))


@pytest.mark.parametrize("until", [until_all, until_together])
def test_a_batch_ends_when_it_has_converged(until):
    ratios = numbers(0.01, 0.2, -0.4)
    step = jax.vmap(lambda ratio, way: go_on(unit_chords(ratio), way))
    first = jax.vmap(lambda ratio: begin(unit_chords(ratio), {1: jnp.zeros(1)}))(ratios)
    ways = until(first, lambda ways: step(ratios, ways), 1e-3, 12)
    assert jnp.max(ways.taken) == 3
    few = until(first, lambda ways: step(ratios, ways), 1e-3, 2)
    assert jnp.max(few.taken) == 2
    loose = until(first, lambda ways: step(ratios, ways), 0.8, 12)
    assert jnp.max(loose.taken) == 2


def test_what_is_foreseen_is_not_predicted_again():
    some = unit_chords(0.0)
    (prediction,) = some.unfolded.foresee(some.given) or [None]
    assert prediction is None  # It was, already.
    predicted, z = some.unfolded.predict({1: numbers(0.25)}, some.given)
    assert_close(z[1], [W1 * X + 0.25])
    assert_close(predicted[2], [W2 * (W1 * X + 0.25)])


class Output:
    """What chords ask of a network."""

    def __init__(self, target):
        self.target = jnp.asarray(target)

    def loss(self, y, given):
        return jpc.cross_entropy(self.target, y)

    def quadratic(self, given):
        return False


@pytest.mark.parametrize("size", [0.5, 20.0])
def test_a_proposal_solves_the_equation_of_the_output(size):
    """$\\lambda + c = g(\\hat y + A c)$, also where a full step of Newton's would be too long."""
    root = draw(3, 4, 4)
    matrix, target = size * root @ root.T, np.eye(4)[1]
    yhat, lam = jnp.asarray(5 * draw(4, 4)), jnp.asarray(0.3 * draw(5, 4))
    some = Chords(Output(target), {}, Matrix(jnp.asarray(matrix)), 1e-3, True)
    change = some.propose(lambda y: y, yhat, lam, 60)
    moved = np.asarray(yhat + matrix @ change)
    softmax = np.exp(moved - moved.max()) / np.sum(np.exp(moved - moved.max()))
    assert_close(lam + change, target - softmax, rtol=1e-6, atol=1e-9)


def test_proposals_begin_where_nothing_changes():
    """A step of Newton's from there, if it is not too long: with a small matrix."""
    matrix, yhat, lam = 0.01 * np.eye(3), numbers(0.1, 0.2, 0.3), numbers(0.5, -0.2, 0.1)
    some = Chords(Output(np.eye(3)[0]), {}, Matrix(jnp.asarray(matrix)), 1e-3, True)
    loss = lambda y: jpc.cross_entropy(jnp.eye(3)[0], y)
    S = np.eye(3) + np.asarray(jax.hessian(loss)(yhat)) @ matrix
    one = np.linalg.solve(S, -np.asarray(jax.grad(loss)(yhat)) - np.asarray(lam))
    assert_close(some.propose(lambda y: y, yhat, lam, 1), one)


def test_rounding_of_predictions_is_a_little():
    some = Chords(Output(np.eye(3)[0]), {}, Matrix(jnp.zeros((3, 3))), 1e-2, True)
    assert 1e-17 < some.rounding(lambda y: y, numbers(0.1, 0.2, 0.3)) < 1e-14


# --- sketches ---


def taken_at(x, matrix, target):
    """A step of a linear problem, whose point is as long in $\\lambda$ as in the errors."""
    x = jnp.asarray(x)
    step = jnp.asarray(target - matrix @ np.asarray(x))
    return _Step(_Pair({1: x}, x), _Pair({1: step}, step))


def test_three_steps_in_two_dimensions_lead_there():
    matrix, target = np.array([[0.6, 0.2], [0.1, 1.7]]), np.array([1.0, 2.0])
    steps = [taken_at(x, matrix, target) for x in ([0.3, 0.1], [-1.0, 0.5], [0.2, 2.0])]
    found = _mix({1: jnp.asarray(1.0)}, (steps[0], steps[1], steps[2]), jnp.asarray(2))
    assert_close(found.lam, np.linalg.solve(matrix, target), rtol=1e-6)
    assert_close(found.v[1], found.lam)


@pytest.mark.parametrize("precision", [1.0, 100.0])
def test_one_step_back_leads_to_the_shortest(precision):
    """Of all mixtures of two points, by the errors and their precisions."""
    matrix, target = np.array([[0.6, 0.2], [0.1, 1.7]]), np.array([1.0, 2.0])
    now, last = (taken_at(x, matrix, target) for x in ([0.3, 0.1], [-1.0, 0.5]))
    weights = np.array([1.0, precision])
    found = _mix({1: jnp.asarray(weights)}, (now, last, last), jnp.asarray(1))
    f, g = np.asarray(now.step.v[1]), np.asarray(last.step.v[1])
    by = np.sum(weights * (f - g) * f) / np.sum(weights * (f - g) ** 2)
    ends = [np.asarray(each.at.v[1]) + np.asarray(each.step.v[1]) for each in (now, last)]
    assert_close(found.v[1], ends[0] - by * (ends[0] - ends[1]), rtol=1e-6)


def test_a_sketch_is_solved_with_like_a_matrix():
    F, rest = jnp.asarray(draw(6, 5, 2)), jnp.asarray(0.3)
    sketch, y = Sketch(F, rest), jnp.asarray(draw(7, 5))
    whole = np.asarray(F @ F.T) + 0.3 * np.eye(5)
    loss = lambda y: jnp.sum(numbers(1, 2, 3, 4, 5) * y**2) / 2
    S = np.eye(5) + np.diag([1.0, 2, 3, 4, 5]) @ whole
    for error in jnp.asarray(draw(8, 2, 5)):
        assert_close(sketch(error), whole @ error)
        assert_close(sketch.solve(loss, y, error), np.linalg.solve(S, error))
        assert_close(sketch.invert(loss, y).solve(loss, y, error), np.linalg.solve(S, error))


# --- flows ---


@pytest.mark.parametrize(("curvature", "counts"), [(0.4, True), (0.6, False), (2.0, False)])
def test_how_much_of_a_descent_a_step_makes(curvature, counts):
    """On a square a step of Euler's makes $1 - c \\, dt / 2$ of it; where $c \\, dt$ is above a
    half, it need not.
    """
    speed = numbers(3.0, -4.0)
    ended = (1 - curvature) * speed
    squares = jnp.vdot(speed, speed), jnp.vdot(ended, ended)
    for dt in numbers(0.5, 1.0, 3.0):
        found = _descent(jnp.asarray(0.7), dt, dt * speed, speed, ended, squares)
        assert_close(found, 0.63 + 0.1 * (1 - curvature / 2) if counts else 0.7)
    assert futile(jnp.asarray(0.2)) and not futile(jnp.asarray(0.3))


def test_sizes_of_a_flow():
    assert_close(rms(numbers(3.0, 4.0, 0.0, 0.0)), 2.5)
    assert_close(_relative(numbers(1.0, 1.0), numbers(4.0, 4.0)), 0.25)
    assert_close(_relative(numbers(1.0, 1.0), numbers(0.0, 0.0)), 1.0)


def test_the_largest_curvature_of_a_square():
    largest = numbers(5.0, 0.3, -0.2)
    field = lambda t, z, args: -largest * z
    found = _curvature(field, numbers(1.0, 1.0, 1.0), numbers(1.0, 1.0, 1.0))
    assert_close(found, 5.0, rtol=1e-6)
    small = lambda t, z, args: 0.01 * field(t, z, args)
    assert_close(_curvature(small, jnp.ones(3), 0.1 * jnp.ones(3)), 0.05, rtol=1e-6)
    assert _curvature(field, jnp.zeros(3), jnp.zeros(3)) == 0


def test_a_record_keeps_its_last_value():
    ts, values = numbers(0.0, 1.0, INF, INF), {"z": numbers(5.0, 6.0, INF, INF)}
    ts, kept, length = _without_padding(ts, values, {"z": jnp.asarray(4.0)})
    assert_close(ts, [0, 1, 1, 1])
    assert_close(kept["z"], [5, 6, 6, 6])
    assert length == 2
    ts, kept, length = _without_padding(
        numbers(INF, INF), {"z": numbers(INF, INF)}, {"z": numbers(4.0)[0]}
    )
    assert_close(ts, [0, 0])
    assert_close(kept["z"], [4, 4])
    assert length == 1


# --- kinks ---


def lasso(a, b):
    """$(z - a)^2 / 2 + b |z|$, whose minimum is a soft threshold."""
    a, b = jnp.asarray(a), jnp.asarray(b)
    return lambda z: jnp.sum(0.5 * (z - a) ** 2 + b * jnp.abs(z))


PULLS, KINKS = numbers(3.0, 0.5, -2.0, -0.2, 0.0), numbers(1.0, 1.0, 0.5, 0.5, 1.0)
SOFT = np.sign(PULLS) * np.maximum(np.abs(PULLS) - np.asarray(KINKS), 0)


@pytest.mark.parametrize("start", [(1.0, 1.0, 1.0, 1.0, 1.0), (-4.0, 5.0, 2.0, -1.0, 0.3)])
def test_a_soft_threshold(start):
    energy = lasso(PULLS, KINKS)
    named = dict(tolerance=jnp.asarray(1e-9), blur=jnp.asarray(1e-12))
    found, gap, steps = settle(energy, numbers(*start), jnp.asarray(True), **named)
    assert_close(found, SOFT, atol=1e-9)
    assert gap <= 1e-9 and steps <= 12
    same, gap, steps = settle(energy, numbers(*start), NOTHING, **named)
    assert steps == 0 and gap == INF
    assert_close(same, numbers(*start))


def test_units_are_held_where_the_energy_rises_to_both_sides():
    """A pull within the kink is held; one beyond it is to go where it pulls."""
    units = jnp.array([True, True, True, True, False])
    held, left = _at_kinks(lasso(PULLS, KINKS), jnp.zeros(5), units)
    assert held.tolist() == [False, True, False, True, False]
    assert left.tolist()[:4] == [False, False, True, False]


def test_units_near_their_kinks_are_held_if_that_is_no_worse():
    energy, z = lasso(PULLS, KINKS), numbers(2.0, 1e-4, -1.5, 0.5, 1e-4)
    there, pins = _hold_near(energy, z, energy(z))
    assert pins.tolist() == [False, True, False, False, True]
    assert_close(there, [2.0, 0.0, -1.5, 0.5, 0.0])
    same, pins = _hold_near(energy, z, energy(z) - 1)
    assert not pins.any()
    assert_close(same, z)


def test_newtons_step_leaves_out_what_is_held():
    matrix = np.array([[2.0, 0.5, 0.3], [0.5, 1.0, 0.2], [0.3, 0.2, 3.0]])
    energy = lambda z: 0.5 * z @ jnp.asarray(matrix) @ z
    z, pins = numbers(1.0, 2.0, 3.0), jnp.array([False, True, False])
    gradient = jnp.where(pins, 0, jax.grad(energy)(z))
    some = np.array([0, 2])
    expected = -np.linalg.solve(matrix[np.ix_(some, some)], np.asarray(gradient)[some])
    assert_close(_newton(energy, z, pins, gradient)[some], expected, rtol=1e-6)
    assert_close(_newton(energy, z, pins, gradient)[1], 0.0, atol=1e-9)
    up = lambda z: -energy(z)  # Where it curves down, Newton's step would climb.
    gradient = jax.grad(up)(z)
    assert_close(_newton(up, z, jnp.zeros(3, bool), gradient), -gradient)


def test_newtons_step_is_as_precise_for_small_gradients():
    """The step does not depend on the unit of the energy."""
    curvatures, z = jnp.asarray(np.logspace(0, 2, 60)), jnp.ones(60)
    for size in (1e-10, 1.0):
        energy = lambda z, size=size: 0.5 * size * jnp.sum(curvatures * z**2)
        found = _newton(energy, z, jnp.zeros(60, bool), jax.grad(energy)(z))
        assert_close(found, -z, rtol=1e-8)


def test_units_are_held_whatever_others_are_beside_them():
    """$|a| + (a - b + 1)^2$ has a kink in $a$ at $b = 1$: the slopes there are -1 and 1."""
    energy = lambda z: jnp.abs(z[0]) + (z[0] - z[1] + 1) ** 2
    held, _ = _at_kinks(energy, numbers(0.0, 1.0), jnp.array([True, False]))
    assert held.tolist() == [True, False]


def test_a_unit_at_a_kink_stays_there():
    """It was not held, and a step leads away from it: there the energy rises."""
    new, held, okay = _search(jnp.sum, numbers(0.0), NOTHING[None], numbers(1.0), jnp.asarray(1e9))
    assert okay and new[0] == 1  # There is no kink.
    rises = lambda z: jnp.sum(jnp.abs(z))
    new, held, okay = _search(rises, numbers(0.0), NOTHING[None], numbers(1.0), jnp.asarray(0.0))
    assert okay and held[0] and new[0] == 0


def test_a_step_ends_at_a_kink_or_goes_on():
    energy, z = lasso(numbers(0.5, 3.0), numbers(1.0, 1.0)), numbers(1.0, 1.0)
    free = jnp.zeros(2, bool)
    new, held, okay = _search(energy, z, free, numbers(-1.5, 1.0), energy(z))
    assert_close(new, [0.0, 2.0])
    assert held.tolist() == [True, False] and okay
    # A unit that is held is let go to where it pulls; one that need not be stays.
    new, held, okay = _search(energy, jnp.zeros(2), ~free, numbers(0.0, 0.0), energy(jnp.zeros(2)))
    assert held.tolist() == [True, False] and okay and new[1] > 0
    # A step that is far too long is shortened.
    new, _, okay = _search(energy, z, free, numbers(0.0, 100.0), energy(z))
    assert okay and energy(new) <= energy(z) and new[1] > 1
    new, held, okay = _search(energy, z, free, numbers(0.0, -1.0), energy(z) - 100)
    assert not okay


def test_the_shortest_rest():
    rest, change = draw(10, 4), draw(11, 4)
    length = np.linalg.lstsq(change[:, None], rest, rcond=None)[0][0]
    assert_close(_shortest(jnp.asarray(rest), jnp.asarray(change)), length)
    assert _shortest(jnp.ones(2), jnp.zeros(2)) == 0


@pytest.mark.parametrize("chords", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [0.3, 1.7])
def test_chords_of_a_limit_leave_the_shortest_rest(chords, size):
    """Steps of a wrong matrix, as long as leaves the shortest rest, with dense matrices."""
    unfolded, v, given, _ = chain()
    v = jax.tree.map(jnp.zeros_like, v)
    _, P, J, H, slope, _, _ = dense(unfolded, v, given)
    A = J @ np.diag(1 / P) @ J.T
    wrong = size * A + 0.2 * np.eye(len(A))
    M, S, g = np.eye(len(A)) + H @ A, np.eye(len(A)) + H @ wrong, -slope
    lam = np.linalg.solve(S, g)
    lam = lam * (g @ M @ lam) / np.sum((M @ lam) ** 2) if chords > 1 else lam
    for _ in range(chords - 1):
        rest = g - M @ lam
        step = np.linalg.solve(S, rest)
        lam = lam + step * (rest @ M @ step) / np.sum((M @ step) ** 2)
    found = _solve(unfolded, chords, False, v, given, jnp.asarray(wrong), jnp.asarray(1.0))
    assert_close(found.delta[2], lam)
    last = np.linalg.solve(S, g - M @ lam)
    assert_close(found.gap, np.linalg.norm(last) / np.linalg.norm(lam))
    now, whole = (2 * g - M @ lam) @ A @ lam, g @ (A @ lam + wrong @ last)
    assert_close(found.relaxed, now / whole)


def test_eigenvalues_of_a_product():
    """Of diagonal matrices the products of their entries, also below one; what is negative by
    rounding counts as nothing.
    """
    H, A = np.diag([0.25, 4.0, -1e-17]), np.diag([2.0, 0.1, 3.0])
    assert_close(eigenvalues(jnp.asarray(H), jnp.asarray(A)), [0.0, 0.4, 0.5])


def moments(given, **masks):
    """Of a chain a, b, c, d with two layers between, by name."""
    linear = eqx.nn.Linear(2, 2, key=jr.key(0))
    energy = jpc.GraphEnergy({"b": ["a"], "c": ["b"], "d": ["c"]})
    params, x = dict.fromkeys("bcd", linear), jnp.ones((1, 2))
    nodes, clamps = jpc.pose(energy, params, {"a": x} | given, masks=masks)
    unfolded, _, given = Unfolded.of(energy.network(params), nodes, clamps)
    found = _moments(unfolded, jax.tree.map(lambda z: z[0], given))
    return {name: found[name] for name in params}


def test_errors_come_after_as_many_steps_as_there_are_layers():
    """What is given whole keeps those from behind it back. Of what is given in part some go on,
    so that errors come at two times.
    """
    x = jnp.ones((1, 2))
    assert moments({"d": x}) == {"b": 2, "c": 1, "d": 0}
    assert moments({"c": x, "d": x}) == {"b": 1, "c": 0, "d": 0}
    with pytest.raises(ValueError, match="from 'c' errors come after 0 and 1 steps"):
        moments({"c": x, "d": x}, c=jnp.array([[True, False]]))


def test_what_nothing_predicts_costs_nothing():
    """Unless it has a precision."""
    double, x, y = lambda z: 2 * z, numbers(3.0)[None], numbers(5.0)[None]
    for named, own in ((dict(), 0.0), (dict(precision={"x": 4.0}), 4 * 9 / 2)):
        energy = jpc.GraphEnergy({"y": ["x"]}, **named)
        assert_close(energy({"y": double}, {"x": x, "y": None}, {"x": None, "y": y}), own + 0.5)


def test_losses_are_sums_over_units():
    """Of two units, by hand."""
    target, given = numbers(2.0, 0.0), numbers(0.0, 1.0)
    assert_close(jpc.squared_error(target, given), (4 + 1) / 2)
    assert_close(jpc.poisson(target, given), 1 + np.e)
    assert_close(jpc.huber(target, given), (2 - 0.5) + 0.5)
    assert_close(jpc.bernoulli(numbers(1.0, 0.0), given), np.log(2) + np.log(1 + np.e))
    assert_close(jpc.cross_entropy(numbers(1.0, 0.0), given), np.log(1 + np.e))


def test_weights_of_both_directions():
    """Of single units: the halves of squared errors, times their weights."""
    double, treble = lambda z: 2 * z, lambda z: 3 * z
    energy, a, b = jpc.BPCEnergy(0.5, 0.25), numbers(3.0), numbers(5.0)
    down, up = energy.terms(([double], [treble]), [a, None], [None, b])
    assert_close(down[0], 0.5 * (5 - 6) ** 2 / 2)
    assert_close(up[0], 0.25 * (3 - 15) ** 2 / 2)


def test_a_flow_with_nothing_to_do_ends_at_once():
    """All states and gradients are zero, and so is what is small beside them."""
    model = jpc.make_mlp(jr.key(0), 2, 3, 2, 2, "linear")
    nodes, clamps = jpc.clamp([jnp.zeros((1, 3))], jnp.zeros((1, 2)), jnp.zeros((1, 2)))
    ended = jpc.GradientFlow()(jpc.PCEnergy(), model, nodes, clamps)
    assert ended.stats["t1"] == 0 and not ended.nodes[1].any()


def test_a_part_of_nothing():
    """It is 0 if there is no difference, and infinite if there is one."""
    assert_close(relative_gap([numbers(3.0)], [numbers(4.0)]), 0.75)
    assert relative_gap([numbers(0.0)], [numbers(0.0)]) == 0
    assert relative_gap([numbers(3.0)], [numbers(0.0)]) == INF


def test_where_nothing_is_compared_there_are_no_errors():
    """The equilibrium of a chain with a free output is its feedforward pass, from anywhere."""
    model, x = jpc.make_mlp(jr.key(0), 2, 3, 2, 2, "tanh"), jnp.asarray(draw(12, 4, 2))
    expected = jpc.feedforward_batch(model, x)
    start = [None, *(z + 1 for z in expected)]
    inferred = jpc.Equilibrium()(jpc.PCEnergy(), model, start, [x, None, None])
    for got, z in zip(inferred.nodes[1:], expected, strict=True):
        assert_close(got, z)
    assert not inferred.stats["error"].any()
