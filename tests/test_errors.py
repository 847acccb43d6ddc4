"""Bad input: what it is answered with, and that it leaves everything as it was.

What is known from shapes, types and options is a `ValueError` or a `TypeError` of one line at the
call; what is known from values is a run-time error. Most of these calls fail before anything is
compiled; the others share shapes and static options wherever they can.
"""

import re
from types import SimpleNamespace

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import arrays, assert_close

import jpc
from jpc import _checks

NAN, INF = float("nan"), float("inf")
VALUE, TYPE, RUNTIME = ValueError, TypeError, RuntimeError
KEY = jr.key(0)
SIZES, BATCH = (3, 4, 4, 2), 5

MODEL = jpc.make_mlp(KEY, 3, 4, 3, 2, "tanh")
LINEAR = jpc.make_mlp(KEY, 3, 4, 3, 2, "linear")
GENERATOR = jpc.make_mlp(KEY, 2, 4, 3, 3, "tanh")
AMORTISER = jpc.make_mlp(KEY, 3, 4, 3, 2, "tanh")
MLP = eqx.nn.MLP(3, 2, 4, 2, key=KEY)
IMAGES = [eqx.nn.Conv2d(n, m, 3, padding=1, key=KEY) for n, m in ((1, 2), (2, 1))]
SKIPS = jpc.make_skip_model(3)

X = jr.normal(jr.key(1), (BATCH, 3))
Y = jax.nn.one_hot(jnp.arange(BATCH) % 2, 2)
LABELS = jnp.arange(BATCH) % 2
IMAGE = jnp.ones((2, 1, 4, 4))
Z = jpc.init_activities_with_ffwd(MODEL, X)
GUESSES = jpc.init_activities_with_amort(AMORTISER, GENERATOR, X)
MATRICES = [np.ones((4, 3)), np.ones((4, 4)), np.ones((2, 4))]

ADAM = optax.adam(1e-3)
SGD = optax.inject_hyperparams(optax.sgd)(0.1)


def init(optim, model=MODEL, skip_model=None):
    return optim.init(eqx.filter((model, skip_model), eqx.is_array))


STATE = init(SGD)
STATES = (init(SGD, GENERATOR), init(SGD, AMORTISER))


def rate(value, *models):
    """A state with another learning rate, for which the compiled program is the same."""
    where = lambda s: s.hyperparams["learning_rate"]
    return eqx.tree_at(where, init(SGD, *models), replace_fn=lambda r: jnp.full_like(r, value))


def spoil(array, value=NAN):
    return jnp.asarray(array).at[0, 0].set(value)


def linear(n, m):
    return eqx.nn.Linear(n, m, key=KEY)


def step(model=MODEL, optim=SGD, state=STATE, y=Y, x=X, **options):
    return jpc.make_pc_step(model, optim, state, y, x, **options)


def layers(*model, **options):
    """A step of another model."""
    return step(list(model), state=init(SGD, list(model)), **options)


def unsupervised(layer_sizes=SIZES, key=KEY, **options):
    return step(x=None, key=key, layer_sizes=layer_sizes, **options)


def hybrid(generator=GENERATOR, amortiser=AMORTISER, optims=(SGD, SGD), states=STATES, y=X, **kw):
    return jpc.make_hpc_step(generator, amortiser, optims, states, y, **kw)


def solve(activities=Z, params=(MODEL, None), y=Y, x=X, **options):
    return jpc.solve_inference(params, activities, y, x, **options)


def update(activities=Z, params=(MODEL, None), optim=SGD, state=STATE, y=Y, x=X, **options):
    return jpc.update_params(params, activities, optim, state, y, x, **options)


def update_activities(activities=Z, optim=ADAM, state=None, y=Y, x=X, **options):
    state = ADAM.init(Z) if state is None else state
    return jpc.update_activities((MODEL, None), activities, optim, state, y, x, **options)


def energy(activities=Z, params=(MODEL, None), y=Y, x=X, **options):
    return jpc.pc_energy_fn(params, activities, y, x=x, **options)


def amortised(model=AMORTISER, equilib=GUESSES, guesses=GUESSES, x=X, y=None):
    return jpc.hpc_energy_fn(model, equilib, guesses, x, y)


def normal(key=KEY, layer_sizes=SIZES, mode="supervised", batch_size=BATCH, **options):
    return jpc.init_activities_from_normal(key, layer_sizes, mode, batch_size, **options)


def discriminate(model=MODEL, y=Y, x=X, **options):
    return jpc.test_discriminative_pc(model, y, x, **options)


def generate(y=X, x=Y, key=KEY, layer_sizes=(2, 4, 4, 3), batch_size=BATCH, **options):
    return jpc.test_generative_pc(GENERATOR, y, x, key, layer_sizes, batch_size, **options)


def evaluate_hybrid(amortiser=AMORTISER, y=X, x=Y):
    return jpc.test_hpc(GENERATOR, amortiser, y, x, KEY, (2, 4, 4, 3), BATCH)


def theory(params=(LINEAR, None), x=X, y=Y, **options):
    return jpc.linear_equilib_energy(params, x, y, **options)


def learn_theory(optim=SGD, state=STATE, x=X, y=Y):
    return jpc.update_linear_equilib_energy_params((LINEAR, None), optim, state, x, y)


def solution(model=LINEAR, x=X, y=Y, **options):
    return jpc.compute_linear_activity_solution(model, x, y, **options)


def hessian(Ws=MATRICES, **options):
    return jpc.compute_linear_activity_hessian(Ws, **options)


def mlp(key=KEY, width=4, depth=3, act_fn="tanh", **options):
    return jpc.make_mlp(key, 3, width, depth, 2, act_fn, **options)


def euler(dt, t1=20.0):
    return jpc.GradientFlow(dfx.Euler(), t1, dt, dfx.ConstantStepSize())


def other(index, array):
    """Activities with one of them replaced."""
    return [array if i == index else z for i, z in enumerate(Z)]


SHAPES = [
    ("hidden layer", lambda: layers(linear(3, 4), linear(5, 4), linear(4, 2)), VALUE,
     r"Layer 2 of model cannot take z_1, of shape \(4,\) for one example: .*\(5,\)"),
    ("input size", lambda: step(x=Y), VALUE,
     r"Layer 1 of model cannot take the input z_0, of shape \(2,\) for one example: .*\(3,\)"),
    ("input with another axis", lambda: step(x=X[None]), VALUE, r"Layer 1 .*\(5, 3\)"),
    ("output size", lambda: step(y=X), VALUE,
     r"output z_3 has shape \(5, 3\), \(3,\) for one example, but layer 3 predicts \(2,\)"),
    ("output (B, 1)", lambda: step(y=Y[:, :1]), VALUE, r"output z_3 has shape \(5, 1\)"),
    ("output (B,)", lambda: step(y=jnp.ones(BATCH)), VALUE, r"z_3 has shape \(5,\), \(\) for"),
    ("output (d,)", lambda: step(y=Y[0]), VALUE, r"z_3 has shape \(2,\), \(\) for one"),
    ("output a number", lambda: step(y=1.0), VALUE, r"output needs a batch.*shape \(\)"),
    ("swapped", lambda: step(y=X, x=Y), VALUE, "Layer 1 of model cannot take the input z_0"),
    ("labels", lambda: step(y=LABELS), VALUE, r"Integer labels need jax.nn.one_hot"),
    ("labels as input", lambda: step(x=LABELS), VALUE, r"input z_0.*jax.nn.one_hot"),
    ("labels in an energy", lambda: energy(y=LABELS), VALUE, "jax.nn.one_hot"),
    ("activity", lambda: solve(other(1, Z[1][:, :3])), VALUE,
     r"activity z_2 has shape \(5, 3\), \(3,\) for one example, but layer 2 predicts \(4,\)"),
    ("activity of the output", lambda: update(other(2, Z[2][:, :1])), VALUE, "activity z_3"),
    ("activity in an energy", lambda: energy(other(0, X)), VALUE, "activity z_1 has shape"),
    ("activity of an update", lambda: update_activities(other(0, X)), VALUE, "activity z_1"),
    ("activities over time", lambda: update([z[None] for z in Z]), VALUE,
     r"activity z_1 has shape \(1, 5, 4\), \(5, 4\) for one"),
    ("too few activities", lambda: solve(Z[1:]), VALUE,
     r"3 layers with an input has 3 activities, z_1 \.\.\. z_3 .*, got 2"),
    ("too many activities", lambda: energy([X, *Z]), VALUE, "3 activities, z_1 .*got 4"),
    ("no activities", lambda: solve([]), VALUE, "3 activities, .*got 0"),
    ("activities without z_0", lambda: solve(x=None), VALUE, "4 activities, z_0 .*got 3"),
    ("neither input nor activities", lambda: solve(None, x=None), TYPE, "activities must be"),
    ("gradients in activities",
     lambda: jpc.compute_pc_activity_grad((MODEL, None), Z[1:], Y, x=X), VALUE, "got 2"),
    ("gradients in parameters",
     lambda: jpc.compute_pc_param_grads((MODEL, None), Z, Y[:, :1], x=X), VALUE, "output z_3"),
    ("vector field", lambda: jpc.neg_pc_activity_grad(0.0, Z, ((MODEL, None), X, X)), VALUE,
     "output z_3"),
    ("batch sizes", lambda: step(y=Y[:3]), VALUE,
     "same batch size, but input z_0 has 5, .*output z_3 has 3"),
    ("batch of one", lambda: step(x=X[:1]), VALUE, "input z_0 has 1, .*output z_3 has 5"),
    ("batch of an activity", lambda: solve(other(0, Z[0][:3])), VALUE, "activity z_1 has 3"),
    ("empty batch", lambda: step(y=Y[:0], x=X[:0]), VALUE,
     r"output needs a batch of examples, got shape \(0, 2\)"),
    ("no features", lambda: step(x=X[:, :0]), VALUE, r"input needs .*\(5, 0\)"),
    ("size of z_2", lambda: unsupervised((3, 4, 5, 2)), VALUE, "activity z_2 .*layer 2"),
    ("size of z_L", lambda: unsupervised((3, 4, 4, 7)), VALUE, "activity z_3 .*layer 3"),
    ("number of sizes", lambda: unsupervised((3, 4, 2)), VALUE, "4 activities, z_0 .*got 3"),
    ("ffwd", lambda: jpc.init_activities_with_ffwd(MODEL, Y), VALUE, "the input z_0"),
    ("skip connection", lambda: step(skip_model=[None, lambda z: z[:1], None]), VALUE,
     r"Layer 2 .*makes \(4,\) of it, but its skip connection \(1,\)"),
]  # fmt: skip

DATA = [
    ("no output", lambda: step(y=None), TYPE, "output must be an array of real .*got None"),
    ("complex", lambda: step(x=X.astype(complex)), TYPE, "input must be .* real numbers"),
    ("objects", lambda: step(y=np.full((BATCH, 2), None)), TYPE, r"got array\(\[\[None"),
    ("strings", lambda: step(y=np.full((BATCH, 2), "a")), TYPE, "output must be an array"),
    ("ragged", lambda: step(y=[[1.0, 2.0], [1.0]]), TYPE, r"array .*got \[\[1.0, 2.0\], "),
    ("a dictionary", lambda: step(y={"y": Y}), TYPE, "output must be an array"),
    ("None as an activity", lambda: solve(other(0, None)), TYPE, r"activities\[0\] must be"),
    ("an array of activities", lambda: solve(Z[0]), TYPE, "activities must be a list"),
    ("input of a test", lambda: discriminate(x=None), TYPE, "input must be an array"),
    ("output of a test", lambda: discriminate(y=None), TYPE, "output must be an array"),
    ("input to infer", lambda: generate(x=None), TYPE, "input must be an array"),
    ("x of an amortiser", lambda: amortised(x=None), TYPE, "x must be an array"),
    ("y of the theory", lambda: theory(y=None), TYPE, "y must be an array"),
    ("output of a hybrid", lambda: hybrid(y=None), TYPE, "output must be an array"),
    ("NaN in the output", lambda: step(y=spoil(Y)), RUNTIME, "output is not finite"),
    ("inf in the output", lambda: step(y=spoil(Y, INF)), RUNTIME, "output is not finite"),
    ("NaN in the input", lambda: step(x=spoil(X)), RUNTIME, "input is not finite"),
    ("inf in the input", lambda: step(x=spoil(X, -INF)), RUNTIME, "input is not finite"),
    ("NaN under jit", lambda: eqx.filter_jit(update)(y=spoil(Y)), RUNTIME, "output is not finite"),
    ("NaN in an activity", lambda: energy(other(1, spoil(Z[1]))), RUNTIME,
     r"activities\[1\] is not finite"),
    ("NaN in ffwd", lambda: jpc.init_activities_with_ffwd(MODEL, spoil(X)), RUNTIME, "input is"),
    ("NaN in a test", lambda: discriminate(y=spoil(Y)), RUNTIME, "output is not finite"),
    ("NaN in a test's input", lambda: discriminate(x=spoil(X)), RUNTIME, "input is not finite"),
    ("NaN in a guess",
     lambda: jpc.init_activities_with_amort(AMORTISER, GENERATOR, spoil(X)), RUNTIME,
     "the amortiser's input is not finite"),
    ("NaN in an amortiser's energy", lambda: amortised(x=spoil(X)), RUNTIME, "x is not finite"),
    ("NaN in its targets", lambda: amortised(equilib=[spoil(z) for z in GUESSES]), RUNTIME,
     "equilib_activities z_2 is not finite"),
    ("NaN in the theory", lambda: theory(y=spoil(Y)), RUNTIME, "output is not finite"),
    ("NaN in a matrix", lambda: hessian([MATRICES[0], spoil(MATRICES[1]), MATRICES[2]]), RUNTIME,
     r"Layer 2 is not linear \(or finite\)"),
]  # fmt: skip

OPTIONS = [
    ("misspelt", lambda: step(weigth_decay=0.1), TYPE, "keyword weigth_decay. .*weight_decay"),
    ("flow in an energy", lambda: energy(max_t1=1.0), TYPE, "Unknown keyword max_t1"),
    ("flow in an update", lambda: update(dt=1.0), TYPE, "Unknown keyword dt"),
    ("flow in a test", lambda: discriminate(max_t1=1.0), TYPE, "Unknown keyword max_t1"),
    ("skips of a hybrid", lambda: hybrid(skip_model=None), TYPE, "Unknown keyword skip_model"),
    ("misspelt in the theory", lambda: theory(gama=2.0), TYPE, "Unknown keyword gama"),
    ("energy twice", lambda: step(energy=jpc.PCEnergy(), loss_id="ce"), VALUE,
     "either energy or loss_id"),
    ("inference twice", lambda: step(inference=jpc.GradientFlow(), dt=0.1), VALUE,
     "either inference or dt"),
    ("reduction twice", lambda: solve(inference=jpc.GradientFlow(), reduction="sum"), VALUE,
     "either inference or reduction"),
    ("loss twice", lambda: step(loss="mse", loss_id="ce"), VALUE, "either loss or loss_id"),
    ("solver twice", lambda: solve(solver=dfx.Heun(), ode_solver=dfx.Heun()), VALUE,
     "either solver or ode_solver"),
    ("loss", lambda: step(loss_id="mae"), VALUE, "loss 'mae': choose from 'mse', 'ce'"),
    ("no loss", lambda: energy(loss=None), VALUE, "Unknown loss None"),
    ("param_type", lambda: step(param_type="mup"), VALUE, "param_type 'mup': .*'mupc'"),
    ("reduction", lambda: step(reduction="none"), VALUE, "reduction 'none': .*'mean'"),
    ("mode", lambda: normal(mode="semi"), VALUE, "mode 'semi': .*'unsupervised'"),
    ("mupc of images", lambda: layers(*IMAGES, x=IMAGE, y=IMAGE, param_type="mupc"), VALUE,
     "'mupc' is for .* between vectors; .*jpc.Layer"),
    ("mupc of one layer",
     lambda: jpc.init_activities_with_ffwd([linear(3, 2)], X, param_type="mupc"), VALUE,
     "at least two layers"),
    ("parameterise", lambda: jpc.parameterise(MODEL, fan_ins=[3, 4, 4], param_type="mup"),
     VALUE, "Unknown param_type 'mup'"),
    ("an energy's name", lambda: step(energy="mse"), TYPE, r"like jpc.PCEnergy\(\), got 'mse'"),
    ("an energy's class", lambda: step(energy=jpc.PCEnergy), TYPE, r"jpc.PCEnergy\(\), got <cl"),
    ("an inference's class", lambda: step(inference=jpc.GradientFlow), TYPE,
     r"inference must be something like jpc.GradientFlow\(\), got <class"),
    ("a solver's name", lambda: step(ode_solver="heun"), TYPE, r"like diffrax.Heun\(\)"),
    ("a solver's class", lambda: solve(solver=dfx.Heun), TYPE, r"like diffrax.Heun\(\)"),
    ("a controller's number", lambda: step(stepsize_controller=0.1), TYPE,
     r"stepsize_controller must be something like diffrax.ConstantStepSize\(\), got 0.1"),
    ("Euler adapts", lambda: step(ode_solver=dfx.Euler()), VALUE,
     r"Euler has no error estimate .*diffrax.ConstantStepSize\(\) and dt"),
    ("constant steps without dt", lambda: step(stepsize_controller=dfx.ConstantStepSize()),
     VALUE, "ConstantStepSize needs a step size: give dt"),
    ("precisions", lambda: step(energy=jpc.PCEnergy(precision=[1.0, 2.0])), VALUE,
     "2 precisions, but the network has 3 layers"),
]  # fmt: skip

BOUNDED = {"max_t1": step, "dt": step, "gamma": step, "output_energy_scaling": energy,
           "stiffness": energy}  # fmt: skip
COEFFICIENTS = {"weight_decay": step, "spectral_penalty": update, "activity_decay": energy}
NUMBERS = [
    *((f"{name} {value}", lambda fn=fn, name=name, value=value: fn(**{name: value}), VALUE,
       f"{name} must be a finite number above 0, got {value:g}")
      for name, fn in BOUNDED.items() for value in (-1, 0, NAN, INF)),
    *((f"{name} {value}", lambda fn=fn, name=name, value=value: fn(**{name: value}), VALUE,
       f"{name} must be a finite number of at least 0, got {value:g}")
      for name, fn in (COEFFICIENTS | {"sigma": normal}).items() for value in (-1, NAN, INF)),
    *((f"{name} not a number", lambda fn=fn, name=name, value=value: fn(**{name: value}),
       VALUE, f"{name} must be a number, got ")
      for (name, fn), value in zip((BOUNDED | COEFFICIENTS | {"sigma": normal}).items(),
                                   ("20", [1.0], "1", 1j, "10", np.ones(1), "0.1", None,
                                    jnp.ones(2)),
                                   strict=True)),
    ("decay in the theory", lambda: theory(activity_decay=-1.0), VALUE, "activity_decay must"),
    ("decay in a Hessian", lambda: hessian(activity_decay=-1.0), VALUE, "activity_decay must"),
]  # fmt: skip

STARTS = [
    ("neither key nor sizes", lambda: step(x=None), VALUE, "give key and layer_sizes"),
    ("no sizes", lambda: unsupervised(None), VALUE, "give key and layer_sizes"),
    ("no key", lambda: unsupervised(key=None), VALUE, "give key and layer_sizes"),
    ("a seed", lambda: unsupervised(key=0), TYPE, r"single jax.random.key\(seed\), got 0"),
    ("many keys", lambda: normal(jr.split(KEY, 2)), TYPE, "single jax.random.key"),
    ("no key of a test", lambda: generate(key=None), TYPE, "single jax.random.key.*got None"),
    ("batch_size", lambda: step(batch_size=4), VALUE, "batch_size is 4, .*output has 5"),
    ("batch_size of a test", lambda: generate(batch_size=4), VALUE,
     "activity z_0 has 4, .*output z_3 has 5"),
    ("batch of none", lambda: normal(batch_size=0), VALUE, "positive.*batch_size=0"),
    ("batch of a half", lambda: normal(batch_size=2.5), VALUE, "batch_size=2.5"),
    ("sizes a number", lambda: normal(layer_sizes=4), VALUE, "layer_sizes must list.*got 4"),
    ("one size", lambda: normal(layer_sizes=[4]), VALUE, "layer_sizes must list"),
    ("sizes floats", lambda: normal(layer_sizes=[3.0, 4.0]), VALUE, "layer_sizes=3.0"),
    ("sizes a string", lambda: normal(layer_sizes="34"), VALUE, "layer_sizes='3'"),
    ("sizes None", lambda: normal(layer_sizes=[3, None, 2]), VALUE, "layer_sizes=None"),
    ("sizes zero", lambda: normal(layer_sizes=[3, (0, 4), 2]), VALUE, "layer_sizes=0"),
    ("sizes of a test", lambda: generate(layer_sizes=(2, 4, 3)), VALUE, "4 activities"),
]  # fmt: skip

MODELS = [
    ("a whole MLP", lambda: step(MLP), TYPE, "model must be a list of layers .*got MLP"),
    ("no model", lambda: step(None), TYPE, "model must be a list of layers .*got NoneType"),
    ("a whole MLP to test", lambda: discriminate(MLP), TYPE, "model must be a list"),
    ("a whole MLP as params", lambda: solve(params=(MLP, None)), TYPE, "must be a list"),
    ("empty", lambda: step([]), VALUE, "model has no layers"),
    ("one layer", lambda: layers(linear(3, 2)), VALUE, "one layer has nothing to infer"),
    ("not callable", lambda: step([linear(3, 4), 3]), TYPE, "Layer 2 of model is not callable"),
    ("a hole", lambda: step([None, linear(3, 2)]), TYPE, "Layer 1 of model .*got NoneType"),
    ("a layer's class", lambda: layers(eqx.nn.Linear, linear(4, 2)), TYPE, "Layer 1 .*class"),
    ("a layer of two", lambda: layers(lambda z: (z, z), linear(3, 2)), VALUE, "Layer 1 .*tuple"),
    ("a layer with a key", lambda: layers(linear(3, 4), eqx.nn.Dropout(), linear(4, 2)), VALUE,
     "Layer 2 .*Dropout requires a key.*hold a key in the layer.*layers.md"),
    ("no parameters", lambda: layers(jnp.tanh, lambda z: z[:2]), VALUE, "has no parameters"),
    ("skips of another", lambda: step(skip_model=SKIPS[:2]), VALUE,
     "skip_model has 2 entries for 3 layers"),
    ("skips not a list", lambda: step(skip_model=jnp.tanh), TYPE, "skip_model must be a list"),
    ("a skip not callable", lambda: step(skip_model=[None, 3, None]), TYPE,
     "Layer 2 of skip_model is not callable"),
    ("params a model", lambda: solve(params=MODEL), TYPE, r"params must be \(model, None\)"),
    ("params three", lambda: energy(params=(MODEL, None, None)), TYPE, "params must be"),
    ("params in the theory", lambda: theory(LINEAR), TYPE, "params must be .*got list"),
    ("params for norms", lambda: jpc.compute_param_norms(MODEL[:2]), TYPE, "params must be"),
    ("generator", lambda: hybrid(MLP), TYPE, "generator must be a list"),
    ("amortiser", lambda: hybrid(amortiser=None), TYPE, "amortiser must be a list"),
    ("amortiser of another width", lambda: hybrid(amortiser=mlp(width=5)), VALUE,
     r"must mirror the generator: .*\(4,\), \(4,\).*\(5,\), \(5,\)"),
    ("amortiser of another depth", lambda: evaluate_hybrid(mlp(depth=2)), VALUE, "must mirror"),
    ("amortiser of another z_0",
     lambda: jpc.init_activities_with_amort([linear(3, 4), linear(4, 3)], GENERATOR, X), VALUE,
     "Layer 1 of generator cannot take"),
    ("amortiser of other data",
     lambda: jpc.init_activities_with_amort(AMORTISER, GENERATOR, Y), VALUE,
     "Layer 1 of amortiser cannot take"),
    ("too few guesses", lambda: amortised(guesses=GUESSES[1:]), VALUE, "4 amort_act.*got 3"),
    ("too many targets", lambda: amortised(y=Y), VALUE, "without z_0 if y is given.*and 4"),
    ("guess", lambda: amortised(guesses=[GUESSES[0], X, *GUESSES[2:]]), VALUE,
     r"amort_activities z_1 has shape \(5, 3\).*layer 2 predicts \(4,\)"),
    ("target", lambda: amortised(equilib=[z[:, :1] for z in GUESSES]), VALUE,
     r"equilib_activities z_2 has shape \(5, 1\)"),
    ("target in gradients",
     lambda: jpc.compute_hpc_param_grads(AMORTISER, [X] * 4, GUESSES, X), VALUE,
     "equilib_activities z_2"),
    ("labels as a target", lambda: amortised(equilib=GUESSES[1:], y=LABELS), VALUE, "one_hot"),
    ("batch of an amortiser", lambda: amortised(x=X[:3]), VALUE, "same batch size, but x has 3"),
    ("activation", lambda: jpc.get_act_fn("tahn"), VALUE, "'tahn': choose from .*'tanh'"),
    ("no activation", lambda: mlp(act_fn=None), VALUE, "activation function None: choose"),
    ("depth 0", lambda: mlp(depth=0), VALUE, "positive integers, got depth=0"),
    ("depth 2.5", lambda: mlp(depth=2.5), VALUE, "depth=2.5"),
    ("width of a string", lambda: mlp(width="4"), VALUE, "width='4'"),
    ("key of a network", lambda: mlp(0), TYPE, r"single jax.random.key\(seed\), got 0"),
    ("use_bias", lambda: mlp(use_bias="mupc"), VALUE, "use_bias 'mupc': .*False, True"),
    ("param_type of a network", lambda: mlp(param_type="mup"), VALUE, "param_type 'mup'"),
    ("skips of no depth", lambda: jpc.make_skip_model(0), VALUE, "depth=0"),
    ("skips of a model", lambda: jpc.make_skip_model(MODEL), VALUE, r"depth=\[Sequential"),
]  # fmt: skip

OPTIMISERS = [
    ("state of another optimiser", lambda: step(optim=ADAM), VALUE,
     r"opt_state is not a state of this optimiser for model: .* optim.init\(eqx.filter\(model"),
    ("state of another width", lambda: update(optim=ADAM, state=init(ADAM, mlp(width=5))),
     VALUE, "opt_state is not a state"),
    ("state of another depth", lambda: update(optim=ADAM, state=init(ADAM, mlp(depth=4))),
     VALUE, "opt_state is not a state"),
    ("no state", lambda: update(state=None), VALUE, "opt_state is not a state"),
    ("state without the skips", lambda: step(optim=ADAM, state=init(ADAM), skip_model=SKIPS),
     VALUE, r"optim.init\(eqx.filter\(\(model, skip_model\), eqx"),
    ("state of the model", lambda: update_activities(state=init(ADAM)), VALUE,
     r"for activities: make one with optim.init\(activities\)"),
    ("state of the theory", lambda: learn_theory(state=init(ADAM)), VALUE, "opt_state is not"),
    ("states swapped", lambda: hybrid(optims=(ADAM, ADAM), states=(init(ADAM), init(ADAM))),
     VALUE, r"for generator: make one with optim.init\(eqx.filter\(generator"),
    ("no optimiser", lambda: step(optim=None), TYPE, "optim must be something like optax.adam"),
    ("a rate", lambda: update(optim=0.1), TYPE, r"like optax.adam\(1e-3\), got 0.1"),
    ("optax.adam", lambda: update_activities(optim=optax.adam), TYPE, "got <function adam"),
    ("one optimiser", lambda: hybrid(optims=ADAM), VALUE, "lists of two, the generator's first"),
    ("one state", lambda: hybrid(states=[STATES[0]]), VALUE, "lists of two"),
    ("no optimisers", lambda: hybrid(optims=None), VALUE, "lists of two"),
]  # fmt: skip

RECORDS = [
    ("every 0", lambda: solve(record_every=0), VALUE, "record_every must be .* above 0, got 0"),
    ("every '1'", lambda: step(record_every="1"), VALUE, "record_every must be a number"),
    ("later than the end", lambda: solve(record_every=30.0), VALUE,
     "record_every must fit at least once .*max_t1, which is 20, got 30"),
    ("too often", lambda: solve(record_every=1e-9), VALUE, "at most max_steps times"),
    ("every step under jit", lambda: eqx.filter_jit(lambda y: solve(y=y, record_iters=True))(Y),
     VALUE, "Under jit .*give record_every"),
    ("energies under jit", lambda: eqx.filter_jit(lambda y: step(y=y, record_energies=True))(Y),
     VALUE, "Under jit .*give record_every"),
    ("until a traced time",
     lambda: eqx.filter_jit(lambda t: solve(max_t1=t, record_every=1.0))(jnp.asarray(3.0)),
     VALUE, "Under jit record_every and max_t1 must be Python's numbers"),
    ("Record of nothing", jpc.Record, VALUE, "either ts, or length"),
    ("Record of both", lambda: jpc.Record(ts=jnp.ones(2), length=3), VALUE, "either ts, or"),
    ("no steps", lambda: jpc.GradientFlow(max_steps=0), VALUE, "max_steps must be a whole"),
]  # fmt: skip

VALUES = [
    ("Euler, large dt", lambda: solve(inference=euler(10.0)), RUNTIME, "Inference diverged"),
    ("Euler, huge dt", lambda: solve(inference=euler(1e300, 1e301)), RUNTIME, "z_1 is not finite"),
    ("max_steps", lambda: solve(inference=jpc.GradientFlow(max_steps=3)), RUNTIME,
     "took `max_steps` steps"),
    ("NaN in a weight", lambda: step(eqx.tree_at(lambda m: m[1].layers[1].weight, MODEL,
                                                 replace_fn=spoil)), RUNTIME, "z_2 is not finite"),
    ("rate inf", lambda: step(state=rate(INF)), RUNTIME, "After learning, layer 1 of model is"),
    ("rate NaN", lambda: step(state=rate(NAN)), RUNTIME, "layer 1 of model is not finite"),
    ("rate 1e300", lambda: step(y=1e10 * Y, state=rate(1e300), max_t1=0.1), RUNTIME,
     "layer . of model is not finite"),
    ("rate of learning", lambda: update(state=rate(INF)), RUNTIME, "layer 1 of model is not"),
    ("rate of an amortiser", lambda: hybrid(states=(STATES[0], rate(INF, AMORTISER))), RUNTIME,
     "layer . of amortiser is not finite"),
    ("rate of the theory", lambda: learn_theory(state=rate(INF, LINEAR)), RUNTIME, "layer 1"),
    ("rate of inference",
     lambda: update_activities(optim=optax.sgd(INF), state=optax.sgd(INF).init(Z)), RUNTIME,
     r"activities\[0\] is not finite"),
]  # fmt: skip

THEORY = [
    ("nonlinear", lambda: theory((MODEL, None)), RUNTIME, "Layer 2 is not linear.*'linear'"),
    ("nonlinear solution", lambda: solution(MODEL), RUNTIME, "Layer 2 is not linear"),
    ("nonlinear rescaling",
     lambda: jpc.compute_linear_equilib_rescaling((MODEL, None), X), RUNTIME, "Layer 2 is not"),
    ("cross-entropy", lambda: theory(loss_id="ce"), VALUE, "closed form is .*squared errors"),
    ("loss", lambda: solution(loss="ce"), VALUE, "closed form is that of squared errors"),
    ("energy", lambda: theory(energy=jpc.PCEnergy()), VALUE, "leave out energy"),
    ("images", lambda: theory((IMAGES, None), IMAGE, IMAGE), VALUE, "from vectors to vectors"),
    ("images in a solution", lambda: solution(IMAGES, IMAGE, IMAGE), VALUE, "vectors"),
    ("one layer", lambda: solution([linear(3, 2)]), VALUE, "nothing to infer"),
    ("a whole MLP", lambda: solution(MLP, use_skips=True), TYPE, "model must be a list"),
    ("y (B, 1)", lambda: theory(y=Y[:, :1]), VALUE, r"output z_3 has shape \(5, 1\)"),
    ("y of one", lambda: theory(y=Y[:1]), VALUE, "same batch size"),
    ("labels", lambda: solution(y=LABELS), VALUE, "one_hot"),
    ("labels in gradients",
     lambda: jpc.compute_linear_equilib_energy_grads((LINEAR, None), X, LABELS), VALUE, "hot"),
    ("x", lambda: theory(x=Y), VALUE, "Layer 1 of model cannot take the input"),
    ("matrices that do not chain", lambda: hessian(MATRICES[1::-1]), VALUE,
     r"Ws\[1\] has shape \(4, 3\): the matrices must chain"),
    ("a vector", lambda: hessian([np.ones(3), np.ones((2, 3))]), VALUE, r"Ws\[0\] .*\(3,\)"),
    ("one matrix", lambda: hessian(MATRICES[:1]), VALUE, "one layer has no activities"),
    ("no matrix", lambda: hessian([None, MATRICES[0]]), TYPE, r"Ws\[0\] must be an array"),
    ("one array", lambda: hessian(np.ones((2, 3, 3))), TYPE, "Ws must be a list of arrays"),
    ("a model", lambda: hessian(LINEAR), TYPE, r"Ws\[0\] must be an array .*got Sequential"),
    ("skips of other widths", lambda: hessian([*MATRICES[:1], np.ones((5, 4)), np.ones((2, 5))],
                                              use_skips=True), VALUE, "Layer 2 .*skip"),
    ("param_type", lambda: hessian(param_type="mup"), VALUE, "Unknown param_type 'mup'"),
]  # fmt: skip

METRICS = [
    ("mse (B, 1)", lambda: jpc.mse_loss(Y, Y[:, :1]), VALUE, r"shape \(5, 1\) .*\(5, 2\)"),
    ("ce of labels", lambda: jpc.cross_entropy_loss(Y, LABELS), VALUE, "jax.nn.one_hot"),
    ("accuracy of labels", lambda: jpc.compute_accuracy(LABELS, Y), VALUE, "jax.nn.one_hot"),
    ("accuracy of fewer", lambda: jpc.compute_accuracy(Y[:3], Y), VALUE, r"\(3, 2\)"),
    ("test of labels", lambda: discriminate(y=LABELS), VALUE, r"shape \(5,\) .*one_hot"),
    ("test of fewer", lambda: discriminate(y=Y[:3]), VALUE, r"shape \(3, 2\) do not fit"),
    ("test of the input", lambda: generate(x=LABELS), VALUE, "the input z_0.*one_hot"),
    ("swapped", lambda: generate(y=Y, x=X), VALUE, "Layer 1 of model cannot take the input"),
    ("hybrid test of labels", lambda: evaluate_hybrid(x=LABELS), VALUE, "one_hot"),
]  # fmt: skip

TABLE = {
    "shapes": SHAPES,
    "data": DATA,
    "options": OPTIONS,
    "numbers": NUMBERS,
    "starts": STARTS,
    "models": MODELS,
    "optimisers": OPTIMISERS,
    "records": RECORDS,
    "values": VALUES,
    "theory": THEORY,
    "metrics": METRICS,
}
# They take seconds to compile, and others like them are there.
SELDOM = {"max_steps", "rate of an amortiser", "Euler, large dt", "rate of the theory"}
SELDOM |= {"inf in the input"}  # The output has it, too.
CASES = [
    pytest.param(*case, id=f"{group}: {name}", marks=[pytest.mark.slow] * (name in SELDOM))
    for group, cases in TABLE.items()
    for name, *case in cases
]
GIVEN = (MODEL, GENERATOR, AMORTISER, STATE, STATES, X, Y, Z, GUESSES)
BEFORE = [np.array(leaf) for leaf in arrays(GIVEN)]


@pytest.mark.parametrize(("call", "kind", "message"), CASES)
def test_bad_input_is_answered_and_changes_nothing(call, kind, message):
    with pytest.raises(kind) as caught:
        jax.block_until_ready(arrays(call()))
    assert caught.type is kind or issubclass(caught.type, RUNTIME)
    said = str(caught.value)
    if kind is RUNTIME:  # Without the stack around it, which shows this file.
        said = said.rpartition("EquinoxRuntimeError: ")[2].partition("\n\n")[0]
    assert re.search(message, said) and "\n" not in said, said
    assert_close(arrays(GIVEN), BEFORE, rtol=0, atol=0)


def test_nothing_is_logged_besides(caplog):
    with pytest.raises(RuntimeError, match="not linear"):
        theory((MODEL, None))
    assert not caplog.records


def labelled(model):
    """An optimiser for trees of one structure only."""
    return optax.multi_transform({"all": SGD}, jax.tree.map(lambda _: "all", arrays_of(model)))


def arrays_of(model):
    return eqx.filter(model, eqx.is_array)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: normal(layer_sizes=np.array(SIZES)), id="sizes in an array"),
        pytest.param(lambda: energy([np.asarray(z) for z in Z], y=np.asarray(Y)), id="NumPy"),
        pytest.param(lambda: energy(y=Y.astype(bool), x=X.tolist()), id="booleans and lists"),
        pytest.param(lambda: hessian([np.ones((4, 3), int), np.ones((2, 4), int)]), id="integers"),
        pytest.param(
            lambda: update(optim=labelled(MODEL), state=labelled(MODEL).init(arrays_of(MODEL))),
            id="an optimiser of the bare model",
        ),
        pytest.param(
            lambda: eqx.filter_jit(lambda y: solve(y=y, record_every=5.0))(Y),
            id="recording under jit",
        ),
    ],
)
def test_good_input_is_not_refused(call):
    assert all(np.all(np.isfinite(array)) for array in arrays(call()))


@pytest.fixture
def accelerator(monkeypatch):
    """A clock that one sets, and calls that nobody has looked at yet."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(_checks, "accelerated", lambda: True)
    monkeypatch.setattr(_checks, "_WAITING", _checks._Waiting())
    monkeypatch.setattr(_checks, "time", clock)
    return clock


def test_on_an_accelerator_the_next_call_raises(accelerator):
    """It is not waited for, whichever call comes next, and each error comes once."""
    energy = lambda y: jpc.pc_energy_fn((MODEL, None), Z, y, x=X)
    expected = energy(Y)
    accelerator.now += 1
    energy(spoil(Y))
    accelerator.now += 1
    with pytest.raises(RuntimeError, match="output is not finite"):
        jpc.init_activities_with_ffwd(MODEL, X)
    np.testing.assert_array_equal(energy(Y), expected)
    np.testing.assert_array_equal(energy(Y), expected)


def test_calls_in_quick_succession_are_looked_at_together(accelerator):
    """Of eight of them the first that failed says why, not the others; and nothing is lost."""
    energy = lambda y=Y, x=X: jpc.pc_energy_fn((MODEL, None), Z, y, x=x)
    energy()  # The first of all is looked at by the next.
    for given in ({}, dict(x=spoil(X)), dict(y=spoil(Y)), {}, {}, {}, {}):
        energy(**given)
    with pytest.raises(RuntimeError, match="input is not finite"):
        energy()
    assert np.isfinite(energy())


def test_calls_that_hold_much_are_looked_at_soon(accelerator, monkeypatch):
    monkeypatch.setattr(_checks, "_LITTLE", 1)
    energy = lambda y: jpc.pc_energy_fn((MODEL, None), Z, y, x=X)
    energy(Y)
    energy(spoil(Y))
    with pytest.raises(RuntimeError, match="output is not finite"):
        energy(Y)
