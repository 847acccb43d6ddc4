"""The closed forms of deep linear networks, against the energy itself."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import arrays, assert_close, make_problem, scalings, slowly, weights
from jax.flatten_util import ravel_pytree

import jpc

SIZES = (3, 4, 4, 4, 2)
PROBLEM = make_problem("linear", SIZES, gain=1.5)
X, Y = PROBLEM.x, PROBLEM.y
OPTIM = optax.sgd(1e-2)
COMBINATIONS = list(
    itertools.product(("sp", "ntp", "mupc"), (False, True), (1.0, 0.3), (1.0, 2.0), (0.0, 0.2))
)
OFTEN = [("sp", False), ("mupc", True)]


class Case:
    """One combination of options, in the words of every function and of NumPy."""

    def __init__(self, param_type, skips, precision, gamma, decay):
        self.skips, self.decay, self.precision = skips, decay, precision
        self.params = (PROBLEM.model, jpc.make_skip_model(4) if skips else None)
        self.options = dict(
            param_type=param_type,
            output_energy_scaling=precision,
            gamma=gamma,
            activity_decay=decay,
        )
        scales = scalings(param_type, SIZES[:-1], skips=skips, gamma=gamma)
        self.chain = PROBLEM.chain(scales=scales, skips=skips, precisions=[1, 1, 1, precision])

    def solution(self):
        """All the states at equilibrium."""
        hidden = jpc.compute_linear_activity_solution(
            PROBLEM.model, X, Y, use_skips=self.skips, **self.options
        )[:-1]
        return [np.asarray(z) for z in (X, *hidden, Y)]

    def activity_grads(self, states):
        grads = self.chain.activity_grads(states)[1:]
        return [g + self.decay * z for g, z in zip(grads, states[1:-1], strict=True)]

    def energy(self, states):
        norms = [np.mean(np.sum(z**2, axis=1)) for z in states[1:-1]]
        return self.chain.energy(states) + 0.5 * self.decay * sum(norms)


@pytest.fixture(
    params=[c if c[:2] in OFTEN else slowly(c) for c in COMBINATIONS],
    ids=lambda c: "-".join(map(str, c)),
)
def case(request):
    return Case(*request.param)


def test_hessian_is_that_of_the_energy(case):
    """Of one example; and one Newton step from zero is the solution."""
    hessian = jpc.compute_linear_activity_hessian(
        PROBLEM.weights, use_skips=case.skips, **case.options
    )
    zeros = [jnp.zeros((1, n)) for n in SIZES[1:-1]]
    flat, unravel = ravel_pytree(zeros)
    data = dict(y=Y[:1], x=X[:1])
    energy = lambda flat: jpc.pc_energy_fn(
        case.params, [*unravel(flat), data["y"]], **data, **case.options
    )
    assert_close(hessian, jax.hessian(energy)(flat))
    grads = case.activity_grads([np.asarray(z) for z in (X[:1], *zeros, Y[:1])])
    newton = unravel(-jnp.linalg.solve(hessian, np.concatenate(grads, axis=1)[0]))
    assert_close([z[:1] for z in case.solution()[1:-1]], newton)


def test_solution_has_no_gradient_and_the_equilibrium_energy(case):
    states = case.solution()
    assert_close(case.activity_grads(states), [np.zeros_like(z) for z in states[1:-1]])
    energy = jpc.linear_equilib_energy(case.params, X, Y, **case.options, return_rescaling=True)[0]
    assert_close(energy, case.energy(states))


@pytest.mark.parametrize("case", [c for c in COMBINATIONS if not c[-1]], ids=str, indirect=True)
def test_rescaling_is_that_of_the_paper(case):
    energy, rescaling = jpc.linear_equilib_energy(
        case.params, X, Y, **case.options, return_rescaling=True
    )
    matrices = case.chain.matrices()
    expected, product = np.eye(2) / case.precision, np.eye(2)
    for w in matrices[:0:-1]:
        product = product @ w
        expected = expected + product @ product.T
    assert_close(rescaling, expected)
    residuals = np.asarray(Y) - np.asarray(X) @ (product @ matrices[0]).T
    assert_close(energy, np.mean([0.5 * r @ np.linalg.solve(expected, r) for r in residuals]))


def test_learning_at_equilibrium_is_learning_of_the_closed_form(case):
    """The envelope theorem: activities at equilibrium have no share in the gradient."""
    model, _ = jpc.compute_linear_equilib_energy_grads(case.params, X, Y, **case.options)
    assert_close(weights(model), case.chain.weight_grads(case.solution()))


def test_parts_of_the_closed_form():
    """The same as the functions of the paper's calls, and as one another."""
    options = dict(param_type="mupc", output_energy_scaling=0.3, activity_decay=0.2)
    energy, rescaling = jpc.linear_equilib_energy(
        PROBLEM.params, X, Y, return_rescaling=True, **options
    )
    assert_close(jpc.linear_equilib_energy(PROBLEM.params, X, Y, **options), energy)
    assert_close(jpc.compute_linear_equilib_rescaling(PROBLEM.params, X, **options), rescaling)
    solution = jpc.compute_linear_activity_solution(PROBLEM.model, X, Y, **options)
    args = (PROBLEM.params, solution, Y)
    value, grads = jpc.compute_pc_activity_grad(*args, x=X, **options)
    assert_close(value, energy)
    assert_close(grads, [np.zeros_like(g) for g in grads])
    expected = jpc.compute_pc_param_grads(*args, x=X, **options)
    grads = jpc.compute_linear_equilib_energy_grads(PROBLEM.params, X, Y, **options)
    assert_close(arrays(grads), arrays(expected))
    scales = scalings("mupc", SIZES[:-1])
    chain = PROBLEM.chain(scales=scales)
    last = [chain.predict(4, z) for z in np.asarray(solution[-2])]
    assert_close(solution[-1], np.stack(last))


@pytest.mark.parametrize("form", ["pair", "bare model"])
def test_an_update_is_a_step_of_the_optimiser(form):
    case = Case("sp", False, 0.3, 2.0, 0.2)
    model = eqx.filter(PROBLEM.model, eqx.is_array)
    state = OPTIM.init((model, None) if form == "pair" else model)
    args = (case.params, OPTIM, state, X, Y)
    update = jpc.update_linear_equilib_energy_params(*args, **case.options)
    grads = jpc.compute_linear_equilib_energy_grads(case.params, X, Y, **case.options)
    pairs = zip(PROBLEM.weights, weights(grads[0]), strict=True)
    assert_close(weights(update["model"]), [w - 1e-2 * g for w, g in pairs])
    after, before = (
        jpc.linear_equilib_energy((model, None), X, Y, **case.options)
        for model in (update["model"], PROBLEM.model)
    )
    assert after < before
    assert jax.tree.structure(update["opt_state"]) == jax.tree.structure(state)


def test_penalties_are_included():
    solution = jpc.compute_linear_activity_solution(PROBLEM.model, X, Y)
    args, options = (PROBLEM.params, X, Y), dict(weight_decay=0.1, spectral_penalty=0.2)
    expected = jpc.pc_energy_fn(PROBLEM.params, solution, Y, x=X, **options)
    assert_close(jpc.linear_equilib_energy(*args, **options), expected)
    grads = jpc.compute_linear_equilib_energy_grads(*args, **options)
    expected = jpc.compute_pc_param_grads(PROBLEM.params, solution, Y, x=X, **options)
    assert_close(arrays(grads), arrays(expected))


def test_blocks_of_the_hessian_can_be_left_out():
    hessian = lambda **kwargs: jpc.compute_linear_activity_hessian(PROBLEM.weights, **kwargs)
    blocks = np.kron(np.eye(3), np.ones((4, 4)))
    assert_close(hessian(off_diag=False), blocks * hessian())
    assert_close(hessian(diag=False), (1 - blocks) * hessian())
    assert np.all(hessian(diag=False, off_diag=False) == 0)


def test_widths_may_differ():
    problem = make_problem("linear", (3, 5, 2, 4))
    solution = jpc.compute_linear_activity_solution(problem.model, problem.x, problem.y)
    grads = problem.chain().activity_grads(
        [np.asarray(z) for z in (problem.x, *solution[:-1], problem.y)]
    )
    assert_close(grads[1:], [np.zeros_like(g) for g in grads[1:]])
    hessian = jpc.compute_linear_activity_hessian(problem.weights)
    w1, w2 = (np.asarray(w) for w in problem.weights[1:])
    expected = np.block([[np.eye(5) + w1.T @ w1, -w1.T], [-w1, np.eye(2) + w2.T @ w2]])
    assert_close(hessian, expected)


@pytest.mark.parametrize(
    ("act", "width"),
    [("tanh", 4), ("relu", 1), ("leaky_relu", 1), ("hard_tanh", 1), ("hard_tanh", 4)],
)
def test_a_nonlinear_layer_is_refused_by_name(act, width):
    problem = make_problem(act, (2, width, 2))
    with pytest.raises(Exception, match="Layer 2 is not linear"):
        jpc.linear_equilib_energy(problem.params, problem.x, problem.y)


def test_matrices_that_do_not_chain_are_refused():
    with pytest.raises(ValueError, match=r"Ws\[1\]"):
        jpc.compute_linear_activity_hessian([jnp.ones((4, 3)), jnp.ones((2, 5))])


def test_a_hessian_of_two_layers():
    """Of single units: 1 + c + p w^2."""
    weights = [jnp.array([[0.5]]), jnp.array([[2.0]])]
    hessian = jpc.compute_linear_activity_hessian
    assert_close(hessian(weights), np.array([[5.0]]))
    named = dict(activity_decay=0.3, output_energy_scaling=0.5)
    assert_close(hessian(weights, **named), np.array([[1.3 + 0.5 * 4]]))
    assert_close(hessian(weights, activity_decay=True), np.array([[2 + 4.0]]))


@pytest.mark.parametrize("Ws", [[np.ones(2), np.ones((2, 2))], [np.ones((2, 2, 2))] * 2])
def test_what_is_no_matrix_is_refused(Ws):
    with pytest.raises(ValueError, match=r"Ws\[0\] has shape"):
        jpc.compute_linear_activity_hessian(Ws)


@pytest.mark.parametrize(
    "options", [dict(loss_id="ce"), dict(loss="ce"), dict(energy=jpc.PCEnergy())]
)
def test_the_closed_form_is_that_of_squares(options):
    with pytest.raises(ValueError, match="closed form is that of squared errors"):
        jpc.linear_equilib_energy(PROBLEM.params, X, Y, **options)
    assert jpc.linear_equilib_energy(PROBLEM.params, X, Y, loss="mse") > 0


class Bent(eqx.Module):
    """Linear in its first unit, and a little bent in its second one."""

    bend: float
    bias: float = 0.0

    def __call__(self, z):
        return jnp.stack([z[0] + self.bias, z[1] * (1 + self.bend * jnp.sin(z[1]) ** 2)])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Bent(0.0), None),
        (Bent(5e-4), None),  # As the products of an accelerator are rounded.
        (Bent(5e-3), "Layer 2 is not linear"),
        (Bent(0.0, 0.5), "Layer 2 has a bias"),
    ],
)
def test_how_linear_a_layer_has_to_be(layer, message):
    """To a thousandth, in all of its units, and with no bias in any."""
    model, data = [jnp.negative, layer], jnp.array([[1.0, 2.0]])
    if message is None:
        assert_close(jpc.linear_equilib_energy((model, None), data, -data), 0.0, atol=1e-5)
    else:
        with pytest.raises(RuntimeError, match=message):
            jpc.linear_equilib_energy((model, None), data, data)
