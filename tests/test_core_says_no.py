"""Bad calls of the core, and of what is around it: each is answered in one line of our own.

The words that are expected name the argument, or what is wrong with it. Most of these calls fail
before anything is compiled.
"""

import functools as ft
import re

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import optimistix as optx
import pytest

import jpc
import jpc.bench
import jpc.data
from jpc._energy import unfit
from jpc._fixed import join, split

NAN, INF = float("nan"), float("inf")
VALUE, TYPE, RUNTIME = ValueError, TypeError, RuntimeError
KEY, BATCH = jr.key(0), 4
MODEL = jpc.make_mlp(KEY, 3, 4, 3, 2, "tanh")
LINEAR = jpc.make_mlp(KEY, 3, 4, 3, 2, "linear")
BIASED = jpc.make_mlp(KEY, 3, 4, 3, 2, "linear", use_bias=True)
DOWN = jpc.make_mlp(KEY, 2, 4, 2, 3, "tanh")
UP = jpc.make_mlp(KEY, 3, 4, 2, 2, "tanh")[::-1]
X = jr.normal(jr.key(1), (BATCH, 3))
Y = jax.nn.one_hot(jnp.arange(BATCH) % 2, 2)
LABELS = np.arange(BATCH) % 2
WORDS = np.array(["cat", "dog"] * 2)
OBJECTS = np.array([None] * BATCH, object)
Z = jpc.init_activities_with_ffwd(MODEL, X)
NODES, CLAMPS = jpc.clamp(Z[:-1], Y, X)
FREE, PC, BPC = Z[:-1], jpc.PCEnergy(), jpc.BPCEnergy()
SGD, ADAM = optax.sgd(0.1), optax.adam(0.1)
STATE = SGD.init((eqx.filter(MODEL, eqx.is_array), None))
MASK = jnp.ones(Y.shape, bool)
IMAGES = jnp.ones((2, 3, 8, 8))
GRAPH = jpc.GraphEnergy({"h": ["x"], "y": ["h"]})
FNS = {"h": eqx.nn.Linear(3, 4, key=KEY), "y": eqx.nn.Linear(4, 2, key=KEY)}
SEQUENCE = [eqx.nn.Linear(2, 2, key=KEY), eqx.nn.Linear(2, 3, key=KEY)]
SEEN, BEFORE = jnp.ones((5, BATCH, 3)), jnp.zeros((BATCH, 2))
METHODS = {
    "flow": jpc.GradientFlow(),
    "flow of a batch": jpc.GradientFlow(reduction="mean"),
    "descent": jpc.Descent(0.1),
    "minimise": jpc.Minimise(),
    "langevin": jpc.Langevin(),
    "equilibrium": jpc.Equilibrium(),
    "in errors": jpc.InErrors(jpc.Descent(0.1)),
    "backprop": jpc.Backprop(),
    "fixed prediction": jpc.FixedPrediction(),
    "zil": jpc.ZIL(),
    "nudged": jpc.Nudged(),
    "nudge": jpc.Nudged(0.1),
    "monte carlo": jpc.MonteCarlo(),
}
FLOW = METHODS["flow"]


class Foreign:
    """A tensor of another library."""

    shape, dtype, ndim, requires_grad = (BATCH, 2), "torch.float32", 2, False

    def __init__(self):
        self.data = [[0.0, 1.0]] * BATCH

    def __repr__(self):
        return "tensor([[0., 1.]])"


def infer(method=FLOW, energy=PC, params=MODEL, nodes=NODES, clamps=CLAMPS, key=KEY, **named):
    return method(energy, params, nodes, clamps, key=key, **named)


def other(states, index, value):
    return [value if i == index else z for i, z in enumerate(states)]


def learn(energy=PC, params=MODEL, nodes=NODES, clamps=CLAMPS, optim=SGD, state=None):
    state = SGD.init(eqx.filter(MODEL, eqx.is_array)) if state is None else state
    return jpc.learn(energy, params, nodes, clamps, optim=optim, opt_state=state)


def pose(params, output, input, key):
    return jpc.clamp(jpc.feedforward_batch(params, input)[:-1], output, input)


def general(params=MODEL, optim=SGD, state=None, y=Y, x=X, *, pose=pose, inference=None, **named):
    state = SGD.init(eqx.filter(MODEL, eqx.is_array)) if state is None else state
    inference = jpc.Backprop() if inference is None else inference
    how = dict(energy=PC, inference=inference, pose=pose) | named
    return jpc.make_step(params, optim, state, y, x, **how)


def step(model=MODEL, optim=SGD, state=STATE, y=Y, x=X, **options):
    return jpc.make_pc_step(model, optim, state, y, x, **options)


quick = ft.partial(step, inference=jpc.Backprop())  # Soon compiled.


def solve(activities=Z, y=Y, x=X, **options):
    return jpc.solve_inference((MODEL, None), activities, y, x, **options)


def update(optim=SGD, state=STATE, **options):
    return jpc.update_params((MODEL, None), Z, optim, state, Y, X, **options)


def still(model, output, input, **rest):
    """A step that does nothing."""
    return dict(model=model, loss=jnp.sum(output))


def nowhere(model, output, input, **rest):
    return dict(model=model, loss=jnp.asarray(NAN))


def measured(model, output, input, **rest):
    return dict(loss=jnp.sum(output))


def fit(step=still, state=None, data=(X, Y), epochs=1, batch_size=2, key=KEY, **named):
    state = dict(model=jnp.ones(2)) if state is None else state
    named = dict(progress=False) | named
    return jpc.fit(step, state, data, epochs=epochs, batch_size=batch_size, key=key, **named)


def stopped(**named):
    return fit(stop=jpc.EarlyStopping("loss", **named))


def linear(model=LINEAR, x=X, y=Y, **options):
    return jpc.linear_equilib_energy((model, None), x, y, **options)


def gap(activities=Z, **options):
    return jpc.equilibrium_gap((MODEL, None), activities, Y, X, **options)


def bpc(down=DOWN, up=UP, activities=None, y=X, x=Y, **options):
    activities = [jnp.ones((BATCH, 4)), X] if activities is None else activities
    return jpc.bpc_energy_fn(down, up, activities, y, x=x, **options)


def ipc(**named):
    return jpc.make_ipc_step(MODEL, SGD, STATE, Y, X, **named)


def filtered(**named):
    given = dict(energy=PC, inference=jpc.Equilibrium(), params=SEQUENCE, start=BEFORE)
    return jpc.filter_sequence(**(given | dict(observations=SEEN) | named))


def smoothed(**named):
    given = dict(energy=PC, inference=jpc.Equilibrium(), params=SEQUENCE, start=BEFORE)
    return jpc.smooth_sequence(**(given | dict(observations=SEEN) | named))


def posed(given=None, energy=GRAPH, params=FNS, **named):
    return jpc.pose(energy, params, {"x": X, "y": Y} if given is None else given, **named)


def loaded(**named):
    return jpc.data.load("digits", progress=False, **named)


# --- point 1 of the issue: the core ---

EVERY_METHOD = [
    *(
        (f"output (B, 1), {name}", ft.partial(infer, m, clamps=other(CLAMPS, 3, Y[:, :1])), VALUE,
         r"z_3 .*\(1,\).*\(2,\)")
        for name, m in METHODS.items()
    ),
    *(
        (f"in both, {name}", ft.partial(infer, m, clamps=other(CLAMPS, 1, Z[0])), VALUE,
         "both nodes and clamps")
        for name, m in METHODS.items()
    ),
    *(
        (f"in neither, {name}", ft.partial(infer, m, clamps=other(CLAMPS, 0, None)), VALUE,
         "neither nodes nor clamps")
        for name, m in METHODS.items()
    ),
    *(
        (f"integer nodes, {name}",
         ft.partial(infer, m, nodes=other(NODES, 1, jnp.ones((BATCH, 4), int))), TYPE,
         "nodes: z_1 .*int")
        for name, m in METHODS.items()
    ),
]  # fmt: skip

STATES = [
    ("energy of (B, 1)", lambda: PC(MODEL, NODES, other(CLAMPS, 3, Y[:, :1])), VALUE, "z_3"),
    ("learning of (B, 1)", lambda: learn(clamps=other(CLAMPS, 3, Y[:, :1])), VALUE, "z_3"),
    ("hidden (B, 1)", lambda: infer(nodes=other(NODES, 1, Z[0][:, :1])), VALUE,
     r"cannot take what enters it, of shape \(1,\)"),
    ("epc (B, 1)", lambda: jpc.EPCEnergy(PC)(MODEL, NODES, other(CLAMPS, 3, Y[:, :1])), VALUE,
     "z_3"),
    ("errors (B, 1)",
     lambda: jpc.EPCEnergy(PC)(MODEL, other(NODES, 1, Z[0][:, :1]), CLAMPS), VALUE, "z_1"),
    ("bpc of (B, 1)",
     lambda: BPC((DOWN, UP), [None, jnp.ones((BATCH, 4)), None], [Y, None, X[:, :1]]), VALUE,
     r"\(1,\)"),
    ("bpc in neither", lambda: BPC((DOWN, UP), [None] * 3, [Y, None, X]), VALUE, "neither"),
    ("bpc in both",
     lambda: BPC((DOWN, UP), [Y, jnp.ones((BATCH, 4)), None], [Y, None, X]), VALUE, "both"),
    ("graph in neither", lambda: GRAPH(FNS, {"x": None}, {"y": Y}), VALUE, "neither"),
    ("graph of (B, 1)",
     lambda: GRAPH(FNS, {"h": jnp.ones((BATCH, 4))}, {"x": X, "y": Y[:, :1]}), VALUE, "'y'"),
    ("amortised (B, 1)",
     lambda: jpc.AmortisedEnergy()(MODEL[:1], [X, None], [None, Z[0][:, :1]]), VALUE, r"\(1,\)"),
    ("precise (B, 1)",
     lambda: jpc.PrecisionEnergy()(MODEL, NODES, other(CLAMPS, 3, Y[:, :1])), VALUE, "z_3"),
    ("decay of both", lambda: jpc.states([X], [X]), VALUE, "both"),
    ("states of two lengths", lambda: jpc.states([None, X], [X]), VALUE, "as long|length"),
    ("states of a list and a dict", lambda: jpc.states([X], {0: X}), TYPE, "list.*dict"),
    ("nodes and clamps of two lengths", lambda: infer(nodes=NODES[1:]), VALUE, "as long|length"),
    ("nodes an array", lambda: infer(nodes=Z[0]), TYPE, "nodes must be"),
    ("nodes None", lambda: infer(nodes=None), TYPE, "nodes must be"),
    ("clamps None", lambda: infer(clamps=None), TYPE, "clamps must be"),
    ("nothing to infer",
     lambda: infer(METHODS["equilibrium"], nodes=[None] * 4, clamps=[X, *Z]), VALUE, "nothing to"),
    ("two batch sizes", lambda: infer(nodes=other(NODES, 1, Z[0][:2])), VALUE, "batch size"),
    ("batch sizes of an energy", lambda: PC(MODEL, NODES, other(CLAMPS, 0, X[:2])), VALUE,
     "batch size"),
    ("a number as a node", lambda: infer(nodes=other(NODES, 1, 1.0)), TYPE, "z_1"),
    ("a node without a batch", lambda: infer(nodes=other(NODES, 1, jnp.asarray(1.0))), VALUE,
     "z_1"),
    ("objects as nodes", lambda: infer(nodes=other(NODES, 1, np.full((4, 4), None))), TYPE, "z_1"),
    ("words as clamps", lambda: infer(clamps=other(CLAMPS, 3, WORDS)), TYPE, "z_3"),
    ("booleans as nodes", lambda: infer(nodes=other(NODES, 1, jnp.ones((4, 4), bool))), TYPE,
     "z_1"),
    ("complex nodes", lambda: infer(nodes=other(NODES, 1, Z[0] + 1j)), TYPE, "z_1"),
    ("another library's", lambda: infer(clamps=other(CLAMPS, 3, Foreign())), TYPE, "z_3"),
    ("an empty batch",
     lambda: infer(nodes=[None, *(z[:0] for z in FREE), None], clamps=[X[:0], None, None, Y[:0]]),
     VALUE, "batch"),
    ("too few layers", lambda: infer(params=MODEL[:2]), VALUE, "4 states|z_3|3 states"),
    ("too many layers", lambda: infer(params=[*MODEL, MODEL[2]]), VALUE, "'?4'?"),
    ("params a module", lambda: infer(params=eqx.nn.MLP(3, 2, 4, 2, key=KEY)), TYPE, "params"),
    ("params None", lambda: infer(params=None), TYPE, "params"),
    ("params (model, None)", lambda: infer(params=(MODEL, None)), TYPE, "params|layer|Layer"),
    ("params with a hole", lambda: infer(params=[MODEL[0], None, MODEL[2]]), TYPE, "Layer 2"),
    ("params swapped", lambda: infer(params=MODEL[::-1]), VALUE, "predict|take"),
    ("an energy's class", lambda: infer(energy=jpc.PCEnergy), TYPE, r"energy.*PCEnergy\(\)"),
    ("no energy", lambda: infer(energy=None), TYPE, "energy"),
    ("an energy's name", lambda: infer(energy="pc"), TYPE, "energy.*'pc'"),
    ("arguments swapped", lambda: FLOW(MODEL, PC, NODES, CLAMPS), TYPE, "energy"),
    ("a record's name", lambda: infer(record="all"), TYPE, "record"),
    ("a record's class", lambda: infer(record=jpc.Record), TYPE, "record"),
    ("a key's number", lambda: infer(jpc.Langevin(), key=0), TYPE, "key"),
    ("no key", lambda: infer(jpc.Langevin(), key=None), VALUE, "give a key"),
]  # fmt: skip

KINDS = [
    ("solver's class", lambda: jpc.GradientFlow(dfx.Heun), TYPE, r"solver .*diffrax.Heun\(\)"),
    ("solver's name", lambda: jpc.GradientFlow("heun"), TYPE, "solver .*'heun'"),
    ("no solver", lambda: jpc.GradientFlow(None), TYPE, "solver"),
    ("controller's class", lambda: jpc.GradientFlow(controller=dfx.PIDController), TYPE,
     "controller .*diffrax.PIDController"),
    ("controller's name", lambda: jpc.GradientFlow(controller="pid"), TYPE, "controller"),
    ("solver as controller", lambda: jpc.GradientFlow(controller=dfx.Heun()), TYPE, "controller"),
    ("meter's class", lambda: jpc.GradientFlow(progress_meter=dfx.TqdmProgressMeter), TYPE,
     "progress_meter"),
    ("meter True", lambda: jpc.GradientFlow(progress_meter=True), TYPE, "progress_meter"),
    ("optimiser's function", lambda: jpc.Descent(optax.adam), TYPE, "Descent needs .*adam"),
    ("optimiser's name", lambda: jpc.Descent("adam"), TYPE, "Descent needs .*'adam'"),
    ("optimiser None", lambda: jpc.Descent(None), TYPE, "Descent needs"),
    ("minimiser's class", lambda: jpc.Minimise(optx.BFGS), TYPE, "Minimise needs"),
    ("minimiser's name", lambda: jpc.Minimise("bfgs"), TYPE, "Minimise needs"),
    ("an optimiser as minimiser", lambda: jpc.Minimise(ADAM), TYPE, "Descent"),
    ("SDE solver's class", lambda: jpc.Langevin(solver=dfx.Euler), TYPE, "solver"),
    ("SDE solver's name", lambda: jpc.Langevin(solver="euler"), TYPE, "solver"),
    ("a path", lambda: jpc.Langevin(path="brownian"), TYPE, "path"),
    ("method's class in errors", lambda: jpc.InErrors(jpc.Descent), TYPE, "inference"),
    ("method's name in errors", lambda: jpc.InErrors("descent"), TYPE, "inference"),
    ("method's class of a nudge", lambda: jpc.Nudged(0.1, inference=jpc.Equilibrium), TYPE,
     "inference"),
    ("warm's class", lambda: jpc.MonteCarlo(warm=jpc.Descent), TYPE, "warm"),
    ("sampler's class", lambda: jpc.MonteCarlo(sampler=jpc.Langevin), TYPE, "sampler"),
    ("learn by name", lambda: learn(optim="sgd"), TYPE, "optim .*optax.*'sgd'"),
    ("learn by function", lambda: learn(optim=optax.sgd), TYPE, "optim"),
    ("learn by a rate", lambda: learn(optim=0.1), TYPE, "optim"),
    ("learn with another's state", lambda: learn(state=ADAM.init(1.0)), VALUE, "opt_state"),
    ("learn with no state", lambda: learn(state=()), VALUE, "opt_state"),
    ("learn by line search", lambda: learn(optim=optax.lbfgs(),
     state=optax.lbfgs().init(eqx.filter(MODEL, eqx.is_array))), TYPE, "optim.*value"),
    ("learn no energy", lambda: learn(energy=None), TYPE, "energy"),
    ("learn an energy's class", lambda: learn(energy=jpc.PCEnergy), TYPE, "energy"),
    ("learn no parameters", lambda: learn(params=[jnp.tanh] * 3, state=SGD.init([None] * 3),
     nodes=[None, X, X, None], clamps=[X, None, None, X]), VALUE, "parameters"),
    ("step's energy", lambda: general(energy=jpc.PCEnergy), TYPE, "energy"),
    ("step's inference", lambda: general(inference=jpc.Backprop), TYPE, "inference"),
    ("step's pose", lambda: general(pose="pose"), TYPE, "pose"),
    ("step's pose of nothing", lambda: general(pose=lambda *a: None), TYPE, "pose"),
    ("step's pose of three", lambda: general(pose=lambda *a: (1, 2, 3)), TYPE, "pose"),
    ("step's transform", lambda: general(transform=3), TYPE, "transform"),
    ("step's record", lambda: general(record="all"), TYPE, "record"),
    ("step's optimiser", lambda: general(optim="sgd"), TYPE, "optim"),
    ("ipc's optimiser", lambda: ipc(activity_optim=optax.sgd), TYPE, "activity_optim"),
    ("ipc's steps", lambda: ipc(steps=2.5), VALUE, "steps"),
    ("bpc's inference", lambda: jpc.make_bpc_step(DOWN, UP, (SGD, SGD), (1, 1), X, Y,
                                                  inference=jpc.Descent), TYPE, "inference"),
    ("regime's inference", lambda: jpc.measure_regime(PC, MODEL, NODES, CLAMPS, inference="x"),
     TYPE, "inference"),
    ("regime's energy", lambda: jpc.measure_regime("pc", MODEL, NODES, CLAMPS,
                                                   inference=jpc.Backprop()), TYPE, "energy"),
]  # fmt: skip

TIMES = [
    *(
        (f"{name}={value!r}", ft.partial(made, **{name: value}), (VALUE, TYPE), name)
        for made, name in [
            (jpc.GradientFlow, "t1"),
            (jpc.GradientFlow, "dt0"),
            (jpc.GradientFlow, "rtol"),
            (jpc.Langevin, "t1"),
            (jpc.Langevin, "dt"),
            (jpc.Langevin, "temperature"),
            (jpc.Equilibrium, "rtol"),
            (jpc.Nudged, "beta"),
            (jpc.Nudged, "strength"),
            (jpc.Nudged, "rtol"),
            (ft.partial(jpc.Descent, 0.1), "rtol"),
            (ft.partial(jpc.FixedPrediction, 3), "dt"),
        ]
        for value in [NAN, INF, -1.0, 0, "1", [1.0, 2.0], jnp.ones(3), 1j, jnp.asarray(-1.0),
                      np.float32("nan"), np.asarray([1.0]), True]
    ),
    ("step size NaN", lambda: jpc.Descent(NAN), VALUE, "step size"),
    ("step size negative", lambda: jpc.Descent(jnp.asarray(-0.1)), VALUE, "step size"),
    ("step size True", lambda: jpc.Descent(True), (VALUE, TYPE), "step size"),
    ("step sizes", lambda: jpc.Descent(jnp.ones(3)), TYPE, "step size"),
    ("record at NaN", lambda: jpc.Record(ts=jnp.asarray([NAN])), VALUE, "ts"),
    ("record at a time", lambda: jpc.Record(ts=1.0), (VALUE, TYPE), "ts"),
    ("record at words", lambda: jpc.Record(ts="all"), (VALUE, TYPE), "ts"),
    ("record at no times", lambda: jpc.Record(ts=jnp.zeros(0)), TYPE, "ts"),
    ("record backwards", lambda: jpc.Record(ts=jnp.asarray([2.0, 1.0])), VALUE, "ts"),
    ("record before", lambda: jpc.Record(ts=jnp.asarray([-1.0, 1.0])), VALUE, "ts"),
    ("record a matrix", lambda: jpc.Record(ts=jnp.ones((2, 2))), (VALUE, TYPE), "ts"),
    ("record nothing", lambda: jpc.Record("nodes", length=3), TYPE, "fn"),
    ("preconditioner", lambda: jpc.Langevin(preconditioner=NAN), VALUE, "preconditioner"),
    ("preconditioner's name", lambda: jpc.Langevin(preconditioner="rms"), (VALUE, TYPE),
     "preconditioner"),
    ("preconditioners of others", lambda: infer(jpc.Langevin(preconditioner=[1.0, 2.0])), VALUE,
     "preconditioner"),
    ("preconditioners negative", lambda: jpc.Langevin(preconditioner=[1.0, -2.0]), VALUE,
     "preconditioner"),
]  # fmt: skip

COUNTS = [
    *(
        (f"{made} {name}={value!r}", ft.partial(getattr(jpc, made), *first, **{name: value}),
         (VALUE, TYPE), name)
        for made, first, name in [
            ("GradientFlow", (), "max_steps"),
            ("Descent", (0.1,), "steps"),
            ("Minimise", (), "max_steps"),
            ("Langevin", (), "max_steps"),
            ("Equilibrium", (), "chords"),
            ("Equilibrium", (), "shared"),
            ("Equilibrium", (), "max_steps"),
            ("Equilibrium", (), "dense"),
            ("Nudged", (), "chords"),
            ("Nudged", (), "shared"),
            ("FixedPrediction", (), "steps"),
            ("MonteCarlo", (), "samples"),
            ("Record", (), "length"),
        ]
        for value in [2.5, "3", -1, NAN, [2], True]
    ),
    ("no chord or step", lambda: jpc.Equilibrium(chords=0, max_steps=0), VALUE, "one chord"),
    ("sequence of 2.5", lambda: jpc.SequenceEnergy(PC, 2.5), VALUE, "length"),
    ("sequence of none", lambda: jpc.SequenceEnergy(PC, 0), VALUE, "length"),
    ("sequence of another energy", lambda: jpc.SequenceEnergy(GRAPH, 3), TYPE, "energy"),
    ("throw a word", lambda: jpc.GradientFlow(throw="no"), (VALUE, TYPE), "throw"),
    ("throw a word at equilibrium", lambda: jpc.Equilibrium(throw="no"), (VALUE, TYPE), "throw"),
    ("together a word", lambda: jpc.Minimise(together="yes"), (VALUE, TYPE), "together"),
    ("reduction", lambda: jpc.GradientFlow(reduction="max"), VALUE, "reduction"),
    ("kind", lambda: jpc.Nudged(kind="output"), VALUE, "kind"),
    ("sign", lambda: jpc.Nudged(0.1, sign="both"), VALUE, "sign"),
    ("matrix of another size", lambda: infer(jpc.Equilibrium(matrix=jnp.eye(5))), (VALUE, TYPE),
     "matrix"),
    ("matrix of another batch",
     lambda: infer(jpc.Equilibrium(max_steps=0).prepare(PC, MODEL, NODES, CLAMPS),
                   params=[*MODEL[:2], eqx.nn.Linear(4, 3, key=KEY)],
                   clamps=other(CLAMPS, 3, X)), VALUE, "matrix"),
    ("matrix a word", lambda: infer(jpc.Equilibrium(matrix="own")), VALUE, "matrix"),
    ("matrix of a nudge", lambda: infer(jpc.Nudged(matrix=jnp.eye(5))), VALUE, "matrix"),
    ("matrix of a nudge, a word", lambda: jpc.Nudged(matrix="own"), TYPE, "matrix"),
    ("matrix of a nudge, a vector", lambda: infer(jpc.Nudged(matrix=jnp.ones(2))), VALUE, "matr"),
]  # fmt: skip

ENERGIES = [
    ("loss not scalar", lambda: jpc.PCEnergy(lambda y, p: (y - p) ** 2)(MODEL, NODES, CLAMPS),
     VALUE, r"loss .*number.*\(2,\)"),
    ("loss not scalar, inferred",
     lambda: infer(energy=jpc.PCEnergy(lambda y, p: (y - p) ** 2)), VALUE, "loss"),
    ("loss not scalar in a step", lambda: step(loss_id=lambda y, p: y - p), VALUE, "loss"),
    ("loss of None", lambda: infer(energy=jpc.PCEnergy(lambda y, p: None)), (VALUE, TYPE), "loss"),
    ("loss of one argument", lambda: infer(energy=jpc.PCEnergy(lambda y: 0.0)), (VALUE, TYPE),
     "loss"),
    ("loss's name", lambda: jpc.PCEnergy("mse"), TYPE, "loss .*jpc.squared_error.*'mse'"),
    ("no loss", lambda: jpc.PCEnergy(None), TYPE, "loss"),
    ("precision in the place of loss", lambda: jpc.PCEnergy(0.5), TYPE, "loss"),
    ("loss's name in a graph", lambda: jpc.GraphEnergy({"y": ["x"]}, loss={"y": "ce"}), TYPE,
     "loss"),
    ("loss's name of a node", lambda: jpc.Node(loss="mse"), TYPE, "loss"),
    ("terms not scalar", lambda: Odd()(MODEL, NODES, CLAMPS), VALUE, r"[Tt]erms .*\(4,\)"),
    ("terms not scalar, inferred", lambda: infer(energy=Odd()), VALUE, r"[Tt]erms .*\(4,\)"),
    *(
        (f"{name}({value!r})", ft.partial(getattr(jpc, name), value), (VALUE, TYPE),
         "coefficient.*least 0|coefficient")
        for name in ("GaussianPrior", "WeightDecay", "ActivityDecay", "SpectralPenalty")
        for value in [-5, -1.0, NAN, INF, "0.1", None, [1.0], jnp.ones(2), jnp.asarray(-1.0), 1j,
                      True, X]
    ),
    *(
        (f"precision={value!r}", ft.partial(jpc.PCEnergy, precision=value), (VALUE, TYPE),
         "precision")
        for value in [-1.0, 0.0, 0, NAN, INF, "1", None, [1.0, -1.0], [1.0, "2"], [1.0, NAN],
                      jnp.asarray(-1.0), jnp.asarray([1.0, 0.0, 1.0]), [], {}, {1: 1.0},
                      [jnp.ones(2), -jnp.ones(2)], [jnp.zeros(2)], True, 1j, np.float64(-2)]
    ),
    ("too many precisions", lambda: infer(energy=jpc.PCEnergy(precision=[1.0, 1.0])), VALUE,
     "2 precisions"),
    ("precisions of other units",
     lambda: infer(energy=jpc.PCEnergy(precision=[jnp.ones(3), 1.0, 1.0])), VALUE, "precision"),
    ("precisions of classes",
     lambda: infer(energy=jpc.PCEnergy(jpc.cross_entropy, [1.0, 1.0, jnp.ones(2)])), VALUE,
     "squared error"),
    ("precision of a graph", lambda: jpc.GraphEnergy({"y": ["x"]}, precision={"y": -1.0}),
     VALUE, "precision.*'y'"),
    ("precision 0 of a graph", lambda: jpc.GraphEnergy({"y": ["x"]}, precision={"y": 0.0}),
     VALUE, "precision.*'y'"),
    ("prior of a graph", lambda: jpc.GraphEnergy({"y": ["x"]}, precision={"x": -1.0}), VALUE,
     "precision.*'x'"),
    ("precision a list", lambda: jpc.GraphEnergy({"y": ["x"]}, precision=[1.0]), TYPE,
     "precision"),
    ("precision's name", lambda: jpc.Node(precision="1"), (VALUE, TYPE), "precision"),
    ("precision None", lambda: jpc.Node(precision=None), (VALUE, TYPE), "precision"),
    ("a node's fn", lambda: jpc.Node("linear", ("x",)), TYPE, "fn"),
    ("a node's parents", lambda: jpc.Node(jnp.tanh, "x"), TYPE, "parents"),
    ("parents a list", lambda: jpc.GraphEnergy(["x", "y"]), TYPE, "parents"),
    ("parents None", lambda: jpc.GraphEnergy(None), TYPE, "parents"),
    ("parents of a number", lambda: jpc.GraphEnergy({"y": [0]}), TYPE, "parents"),
    ("parents a string", lambda: jpc.GraphEnergy({"y": "x"}), TYPE, "parents"),
    ("parents 3", lambda: jpc.GraphEnergy({"y": 3}), TYPE, "parents"),
    ("no graph", lambda: jpc.GraphEnergy({}), VALUE, "parents"),
    ("unknown loss", lambda: jpc.GraphEnergy({"y": ["x"]}, loss={"z": jpc.huber}), VALUE, "'z'"),
    ("graph's params a list", lambda: GRAPH(list(FNS.values()), {}, {"x": X}), TYPE, "params"),
    ("graph's params None", lambda: posed(params=None), TYPE, "params"),
    ("graph's params not callable", lambda: posed(params={"h": 3, "y": 4}), TYPE, "params.*'h'"),
    ("graph's nodes a list", lambda: GRAPH(FNS, [X], [X]), (TYPE, VALUE), "nodes|'x'"),
    ("log precision", lambda: jpc.Precise(jnp.tanh, "1"), TYPE, "log_precision"),
    ("log precision NaN", lambda: jpc.Precise(jnp.tanh, jnp.asarray(NAN)), VALUE,
     "log_precision"),
    ("log precision an integer", lambda: jpc.Precise(jnp.tanh, jnp.asarray(1)), TYPE,
     "log_precision"),
    ("precise nothing", lambda: jpc.Precise(None, jnp.asarray(0.0)), TYPE, "fn"),
    ("bpc's weight", lambda: jpc.BPCEnergy(-1.0), VALUE, "forward_weight"),
    ("bpc's other weight", lambda: jpc.BPCEnergy(1.0, NAN), VALUE, "backward_weight"),
    ("bpc's source gradient", lambda: jpc.BPCEnergy(source_gradient=2.0), VALUE,
     "source_gradient"),
    ("bpc's weight's name", lambda: jpc.BPCEnergy("1"), (VALUE, TYPE), "forward_weight"),
    ("energy + 3", lambda: PC + 3, TYPE, "Only energies .*2.0 \\* energy"),
    ("3 + energy", lambda: 3 + PC, TYPE, "Only energies"),
    ("sum", lambda: sum([PC, PC]) and sum([1, PC]), TYPE, "Only energies"),
    ("energy - 3", lambda: PC - 3, TYPE, "Only energies"),
    ("3 - energy", lambda: 3 - PC, TYPE, "Only energies"),
    ("energy + a class", lambda: PC + jpc.WeightDecay, TYPE, "Only energies"),
    ("energy * energy", lambda: PC * PC, TYPE, "Only numbers"),
    ("energy * '2'", lambda: PC * "2", TYPE, "Only numbers"),
    ("energy * NaN", lambda: PC * NAN, VALUE, "number"),
    ("energy * array", lambda: PC * jnp.ones(2), TYPE, "Only numbers"),
    ("AddEnergy of a number", lambda: jpc.AddEnergy(1.0, PC), TYPE, "Only energies"),
    ("ScaledEnergy of a class", lambda: jpc.ScaledEnergy(1.0, jpc.PCEnergy), TYPE, "energies"),
    ("ScaledEnergy swapped", lambda: jpc.ScaledEnergy(PC, 1.0), TYPE, "number"),
    ("errors of a class", lambda: jpc.EPCEnergy(jpc.PCEnergy), TYPE, "energy"),
    ("errors of nothing", lambda: jpc.EPCEnergy(None), TYPE, "energy"),
    ("errors of bpc", lambda: jpc.EPCEnergy(BPC), TYPE, "BPCEnergy does not say"),
    ("samples of a class", lambda: jpc.SampledEnergy(jpc.PCEnergy), TYPE, "energy"),
    ("locals of a class", lambda: jpc.LocalEnergy(jpc.PCEnergy), TYPE, "energy"),
    ("prior of another state", lambda: infer(energy=PC + jpc.GaussianPrior(1.0, 7)), VALUE, "7"),
    ("prior's node", lambda: jpc.GaussianPrior(1.0, 0.5), TYPE, "node"),
    ("prior unbounded", lambda: infer(jpc.Descent(0.1), PC + jpc.GaussianPrior(-5)), VALUE,
     "coefficient"),
    ("a layer", lambda: jpc.Layer(3), TYPE, "fn"),
    ("a layer's skip", lambda: jpc.Layer(jnp.tanh, 0.5), TYPE, "skip"),
    ("a layer's scale", lambda: jpc.Layer(jnp.tanh, scale="2"), (VALUE, TYPE), "scale"),
    ("a layer's scale NaN", lambda: jpc.Layer(jnp.tanh, scale=NAN), VALUE, "scale"),
    ("squared error (B, 1)", lambda: jpc.squared_error(Y[0], Y[0, :1]), VALUE, r"\(1,\)"),
    ("cross-entropy (B, 1)", lambda: jpc.cross_entropy(Y[0, :1], Y[0]), VALUE, r"\(1,\)"),
    ("huber (B, 1)", lambda: jpc.huber(Y[0, :1], Y[0]), VALUE, r"\(1,\)"),
    ("poisson (B, 1)", lambda: jpc.poisson(Y[0, :1], Y[0]), VALUE, r"\(1,\)"),
    ("bernoulli (B, 1)", lambda: jpc.bernoulli(Y[0, :1], Y[0]), VALUE, r"\(1,\)"),
    ("squared error of a word", lambda: jpc.squared_error("a", Y[0]), TYPE, "target"),
    ("squared error of None", lambda: jpc.squared_error(Y[0], None), TYPE, "prediction"),
]  # fmt: skip


class Odd(jpc.AbstractEnergy):
    """Terms that are no scalars."""

    def terms(self, params, nodes, clamps):
        return [nodes[1]]


# --- point 2: quiet nonsense ---

NONSENSE = [
    ("accuracy of integers", lambda: jpc.compute_accuracy(LABELS, LABELS), VALUE, "one_hot"),
    ("accuracy of numbers", lambda: jpc.compute_accuracy(jnp.ones(3), jnp.ones(3)), VALUE,
     "classes"),
    ("accuracy of NaN", lambda: jpc.compute_accuracy(Y, Y.at[0, 0].set(NAN)), RUNTIME,
     "preds is not finite"),
    ("accuracy of NaN truths", lambda: jpc.compute_accuracy(Y.at[0, 0].set(NAN), Y), RUNTIME,
     "finite"),
    ("accuracy of one class", lambda: jpc.compute_accuracy(Y[:, :1], Y[:, :1]), VALUE, "class"),
    ("accuracy of words", lambda: jpc.compute_accuracy(WORDS, WORDS), TYPE, "numbers"),
    ("accuracy of objects", lambda: jpc.compute_accuracy(OBJECTS, OBJECTS), TYPE, "numbers"),
    ("accuracy of none", lambda: jpc.compute_accuracy(Y[:0], Y[:0]), VALUE, "examples"),
    ("accuracy of None", lambda: jpc.compute_accuracy(None, Y), TYPE, "truths"),
    ("accuracy of numbers 3", lambda: jpc.compute_accuracy(3, 3), VALUE, "examples"),
    ("mse of words", lambda: jpc.mse_loss(WORDS, WORDS), TYPE, "numbers"),
    ("mse of scalars", lambda: jpc.mse_loss(1.0, 2.0), VALUE, "examples"),
    ("mse of none", lambda: jpc.mse_loss(Y[:0], Y[:0]), VALUE, "examples"),
    ("ce of words", lambda: jpc.cross_entropy_loss(Y, WORDS), TYPE, "numbers"),
    ("ce of one class", lambda: jpc.cross_entropy_loss(Y[:, :1], Y[:, :1]), VALUE, "class"),
    ("ce of numbers", lambda: jpc.cross_entropy_loss(jnp.ones(3), jnp.ones(3)), VALUE, "class"),
    ("ce of negative targets", lambda: jpc.cross_entropy_loss(Y, -Y), RUNTIME, "negative"),
    ("ce of targets not summing to one", lambda: jpc.cross_entropy_loss(Y, 2 * Y), RUNTIME,
     "sum to"),
    ("a step's negative targets", lambda: quick(y=-Y, loss_id="ce"), RUNTIME, "negative"),
    ("a step's large targets", lambda: quick(y=2 * Y, loss_id="ce"), RUNTIME, "sum to"),
    ("a test's targets", lambda: jpc.test_discriminative_pc(MODEL, -Y, X, loss_id="ce"), RUNTIME,
     "negative"),
    ("an energy's targets", lambda: jpc.pc_energy_fn((MODEL, None), Z, 3 * Y, x=X, loss="ce"),
     RUNTIME, "sum to"),
    ("a cross-entropy of regression", lambda: quick(y=X[:, :2], loss_id="ce"), RUNTIME,
     "negative|sum to"),
    ("bits of a step", lambda: quick(y=3 * Y, loss_id="bernoulli"), RUNTIME, "between 0 and 1"),
    ("counts of a step", lambda: quick(y=-Y, loss_id="poisson"), RUNTIME, "negative"),
    ("theory of tanh", lambda: linear(MODEL), RUNTIME, "Layer 2 is not linear"),
    ("theory of gelu", lambda: linear(jpc.make_mlp(KEY, 3, 4, 3, 2, "gelu")), RUNTIME,
     "Layer 2 is not linear"),
    ("theory of small tanh", lambda: linear([MODEL[0], Small(), MODEL[2]]), RUNTIME,
     "Layer 2 is not linear"),
    ("theory of biases", lambda: linear(BIASED), RUNTIME, "Layer 1 .*bias"),
    ("solution of biases", lambda: jpc.compute_linear_activity_solution(BIASED, X, Y), RUNTIME,
     "Layer 1 .*bias"),
    ("theory of relu", lambda: linear(jpc.make_mlp(KEY, 3, 4, 3, 2, "relu")), RUNTIME, "Layer 2"),
    ("NaN as a loss", lambda: fit(nowhere), RUNTIME, "loss is not finite|loss is NaN"),
    ("patience -1", lambda: stopped(patience=-1), VALUE, "patience"),
    ("patience 0", lambda: stopped(patience=0), VALUE, "patience"),
    ("patience 1.5", lambda: stopped(patience=1.5), VALUE, "patience"),
    ("patience '3'", lambda: stopped(patience="3"), VALUE, "patience"),
    ("min_delta", lambda: stopped(min_delta=-1.0), VALUE, "min_delta"),
    ("min_delta NaN", lambda: stopped(min_delta=NAN), VALUE, "min_delta"),
    ("minimise", lambda: stopped(minimise="max"), (VALUE, TYPE), "minimise"),
    ("a metric's number", lambda: jpc.EarlyStopping(3), TYPE, "metric"),
    ("validation=1.0", lambda: loaded(validation=1.0), VALUE, "validation"),
    ("validation=True", lambda: loaded(validation=True), (VALUE, TYPE), "validation"),
    ("validation='0.1'", lambda: loaded(validation="0.1"), (VALUE, TYPE), "validation"),
    ("validation=NaN", lambda: loaded(validation=NAN), VALUE, "validation"),
    ("validation=-0.1", lambda: loaded(validation=-0.1), VALUE, "validation"),
    ("validation=2.5", lambda: loaded(validation=2.5), VALUE, "validation"),
    ("validation=None", lambda: loaded(validation=None), (VALUE, TYPE), "validation"),
    ("restore another size", lambda: DIGITS.restore(np.ones((2, 63))), VALUE, r"\(1, 8, 8\)"),
    ("restore a word", lambda: DIGITS.restore("image"), TYPE, "images"),
    ("restore None", lambda: DIGITS.restore(None), TYPE, "images"),
    ("restore objects", lambda: DIGITS.restore(np.full((1, 64), None)), TYPE, "images"),
    ("string labels", lambda: fit(data=(X, WORDS)), TYPE, "output .*numbers"),
    ("object labels", lambda: fit(data=(X, OBJECTS)), TYPE, "output .*numbers"),
    ("string labels of a step", lambda: step(y=WORDS), TYPE, "output must be an array"),
    ("objects of a step", lambda: step(y=OBJECTS), TYPE, "output must be an array"),
    ("metrics of a model", lambda: fit(state=dict(model=MODEL), metrics=("model",)), (VALUE, TYPE),
     "metrics"),
    ("metrics a word", lambda: fit(metrics="loss"), TYPE, "metrics"),
    ("metrics a number", lambda: fit(metrics=3), TYPE, "metrics"),
    ("metrics unknown", lambda: fit(metrics=("acc",)), VALUE, "acc"),
    ("solve by Langevin", lambda: solve(inference=jpc.Langevin()), VALUE,
     "solve_inference.*make_pc_step|make_pc_step"),
    ("solve by samples", lambda: solve(inference=jpc.MonteCarlo()), VALUE, "make_pc_step"),
    ("lbfgs", lambda: update(optax.lbfgs(), optax.lbfgs().init(
        (eqx.filter(MODEL, eqx.is_array), None))), TYPE, "optim.*value"),
    ("polyak", lambda: update(optax.polyak_sgd(), optax.polyak_sgd().init(
        (eqx.filter(MODEL, eqx.is_array), None))), TYPE, "optim.*value"),
    ("lbfgs of activities", lambda: jpc.update_activities(
        (MODEL, None), Z, optax.lbfgs(), optax.lbfgs().init(Z), Y, X), TYPE, "optim.*value"),
    ("lbfgs of a step", lambda: step(optim=optax.lbfgs(), state=optax.lbfgs().init(
        (eqx.filter(MODEL, eqx.is_array), None))), TYPE, "optim.*value"),
    ("lbfgs of ipc", lambda: ipc(activity_optim=optax.lbfgs()), TYPE, "optim.*value"),
    ("checkpoints a path", lambda: fit(checkpoints="runs"), TYPE, r"jpc.Checkpoints\("),
    ("checkpoints True", lambda: fit(checkpoints=True), TYPE, r"jpc.Checkpoints\("),
    ("checkpoints a class", lambda: fit(checkpoints=jpc.Checkpoints), TYPE, r"jpc.Checkpoints\("),
    ("stop a word", lambda: fit(stop="loss"), TYPE, r"jpc.EarlyStopping\("),
    ("stop a number", lambda: fit(stop=3), TYPE, r"jpc.EarlyStopping\("),
    ("classes a word", lambda: fit(data=(X, LABELS), classes="2"), VALUE, "classes"),
    ("classes 0", lambda: fit(data=(X, LABELS), classes=0), VALUE, "classes"),
    ("classes -1", lambda: fit(data=(X, LABELS), classes=-1), VALUE, "classes"),
    ("classes 2.5", lambda: fit(data=(X, LABELS), classes=2.5), VALUE, "classes"),
    ("classes too few", lambda: fit(data=(X, LABELS), classes=1), VALUE, "labels from 0 to 1"),
    ("Checkpoints('')", lambda: jpc.Checkpoints(""), VALUE, "directory"),
    ("Checkpoints(None)", lambda: jpc.Checkpoints(None), TYPE, "directory"),
    ("Checkpoints(3)", lambda: jpc.Checkpoints(3), TYPE, "directory"),
    ("Checkpoints every 0", lambda: jpc.Checkpoints("runs", every=0), VALUE, "every"),
    ("Checkpoints keep -1", lambda: jpc.Checkpoints("runs", keep=-1), VALUE, "keep"),
    ("Checkpoints seconds", lambda: jpc.Checkpoints("runs", seconds=-1.0), VALUE, "seconds"),
    ("Checkpoints seconds '1'", lambda: jpc.Checkpoints("runs", seconds="1"), VALUE, "seconds"),
    ("Checkpoints resume", lambda: jpc.Checkpoints("runs", resume="newest"), (VALUE, TYPE),
     "resume"),
    ("Checkpoints config", lambda: jpc.Checkpoints("runs", config=X), TYPE, "config"),
    ("batch_size '4'", lambda: step(batch_size="4"), (VALUE, TYPE), "batch_size must be"),
    ("batch_size 4.5", lambda: step(batch_size=4.5), (VALUE, TYPE), "batch_size"),
    ("batch_size '4' of fit", lambda: fit(batch_size="4"), VALUE, "batch_size"),
]  # fmt: skip

DIGITS = jpc.data.load("digits", progress=False, flatten=True)


class Small(eqx.Module):
    """A layer that is almost linear as far as one usually looks."""

    def __call__(self, z):
        return 100 * jnp.tanh(z / 100)


# --- beyond the issue ---

FITS = [
    ("no step", lambda: fit(None), TYPE, "step"),
    ("a step's name", lambda: fit("make_pc_step"), TYPE, "step"),
    ("a step's answer", lambda: fit(lambda **given: 3), TYPE, "dictionary"),
    ("a step of other names", lambda: fit(lambda params, output, input, key: {}), TYPE,
     "step.*model"),
    ("state a model", lambda: fit(state=MODEL), TYPE, "state must be"),
    ("state None", lambda: fit(state=[]), TYPE, "state must be"),
    ("epochs '3'", lambda: fit(epochs="3"), VALUE, "epochs"),
    ("epochs 0", lambda: fit(epochs=0), VALUE, "epochs"),
    ("epochs True", lambda: fit(epochs=True), VALUE, "epochs"),
    ("epochs 2.5", lambda: fit(epochs=2.5), VALUE, "epochs"),
    ("batch_size 0", lambda: fit(batch_size=0), VALUE, "batch_size"),
    ("batch_size 99", lambda: fit(batch_size=99), VALUE, "batch_size"),
    ("key 0", lambda: fit(key=0), TYPE, "key"),
    ("key None", lambda: fit(key=None), TYPE, "key"),
    ("data an array", lambda: fit(data=X), (TYPE, VALUE), "data|pair"),
    ("data a dictionary", lambda: fit(data={"x": X, "y": Y}), TYPE, "data must be"),
    ("data None", lambda: fit(data=None), TYPE, "data must be"),
    ("data of a word", lambda: fit(data="mnist"), TYPE, "data must be"),
    ("data of three", lambda: fit(data=(X, Y, Y)), TYPE, "pair"),
    ("data unequal", lambda: fit(data=(X[:2], Y)), VALUE, "equally many"),
    ("data an iterator", lambda: fit(data=iter([(X, Y)])), TYPE, "spent"),
    ("data empty", lambda: fit(data=[]), VALUE, "no batches"),
    ("data of another library", lambda: fit(data=(X, Foreign())), TYPE, "output .*numbers"),
    ("complex data", lambda: fit(data=(X, Y + 1j)), TYPE, "output .*real"),
    ("NaN data", lambda: fit(data=(X.at[0, 0].set(NAN), Y), step=real_step(),
                             state=real_state()), RUNTIME, "input is not finite"),
    ("labels negative", lambda: fit(data=(X, LABELS - 1)), VALUE, "labels from -1"),
    ("shuffle a word", lambda: fit(shuffle="no"), (VALUE, TYPE), "shuffle"),
    ("progress a word", lambda: fit(progress="bar"), (VALUE, TYPE), "progress"),
    ("test without evaluate", lambda: fit(test=(X, Y)), VALUE, "both of them"),
    ("evaluate without test", lambda: fit(evaluate=measured), VALUE, "both of them"),
    ("evaluate a word", lambda: fit(test=(X, Y), evaluate="acc"), TYPE, "evaluate"),
    ("evaluate a number", lambda: fit(test=(X, Y), evaluate=lambda **given: 3.0), TYPE,
     "evaluate"),
    ("test of another size", lambda: fit(test=(X[:2], Y), evaluate=measured), VALUE, "test"),
    ("test of an array", lambda: fit(test=X, evaluate=measured), (TYPE, VALUE), "test|pair"),
    ("validation 0.1", lambda: fit(validation=0.1, test=(X, Y), evaluate=measured), TYPE,
     "validation must be"),
    ("inspect a word", lambda: fit(inspect="model"), TYPE, "inspect"),
    ("inspect of a number", lambda: fit(inspect=lambda **state: 3), TYPE, "inspect"),
    ("callbacks a function", lambda: fit(callbacks=print), TYPE, "callbacks"),
    ("callbacks of words", lambda: fit(callbacks=["print"]), TYPE, "callbacks"),
    ("pace a word", lambda: fit(pace="fast"), TYPE, "pace"),
    ("mesh a list", lambda: fit(mesh=jax.devices()), TYPE, "mesh"),
    ("sharding alone", lambda: fit(sharding=lambda *a: None), VALUE, "mesh"),
    ("sharding a word", lambda: fit(mesh=jax.make_mesh((1,), ("a",)), sharding="all"), TYPE,
     "sharding"),
    ("report True", lambda: fit(report=True), TYPE, "report"),
    ("report ''", lambda: fit(report=""), VALUE, "report"),
    ("a metric to stop by", lambda: fit(stop=jpc.EarlyStopping("acc")), VALUE, "'acc'"),
    ("optim in the state alone", lambda: fit(jpc.make_pc_step, dict(model=MODEL)), TYPE,
     "step.*optim"),
    ("output in the state", lambda: fit(state=dict(model=X, output=Y)), VALUE, "output cannot"),
    ("load_run nothing", lambda: jpc.load_run("/nowhere/at/all"), (FileNotFoundError, VALUE),
     "nowhere"),
    ("load_run None", lambda: jpc.load_run(None), TYPE, "folder"),
    ("load_run a number", lambda: jpc.load_run(3), TYPE, "folder"),
    ("load nothing", lambda: jpc.data.load(None), (TYPE, VALUE), "name|None"),
    ("load a typo", lambda: jpc.data.load("minst"), VALUE, "minst"),
    ("load a number", lambda: jpc.data.load(3), (TYPE, VALUE), "3"),
    ("load with target", lambda: loaded(target="y"), VALUE, "target"),
]  # fmt: skip


def real_step():
    return ft.partial(jpc.make_pc_step, inference=jpc.Backprop())


def real_state():
    return dict(model=MODEL, optim=SGD, opt_state=STATE)


DOORS = [
    *(
        (f"make_pc_step {name}={value!r}", ft.partial(step, **{name: value}), (VALUE, TYPE), name)
        for name, values in {
            "max_t1": [NAN, -1.0, "20", [1.0], True, None, jnp.ones(2)],
            "dt": [NAN, -1.0, "0.1", [0.1], True],
            "gamma": [0.0, NAN, "1", True],
            "output_energy_scaling": [0.0, -1.0, NAN, "1", True],
            "weight_decay": [-1.0, NAN, "1", None],
            "activity_decay": [-1.0, NAN, "1", None],
            "spectral_penalty": [-1.0, NAN, "1", None],
            "ode_solver": [dfx.Heun, "heun", None],
            "stepsize_controller": [dfx.PIDController, "pid", None],
            "inference": [jpc.Equilibrium, "equilibrium", 3],
            "energy": [jpc.PCEnergy, "pc", 3],
            "param_type": ["mup", None, 3, ["sp"]],
            "reduction": ["max", None, ["sum"]],
            "loss": ["mae", 3, None, ["ce"]],
            "mask": [1.0, "all", X > 0, 1 - Y],
            "input_mask": [1.0, "all", Y > 0],
            "skip_model": [3, [None], "skips", [3] * 3],
            "record_every": [0, -1.0, NAN, "1", True, [1.0]],
            "activities": [3, Z[0], Z[:1], [None] * 3, "ffwd", [WORDS] * 3],
            "record_activities": ["yes"],
            "record_energies": ["yes"],
            "activity_norms": ["yes"],
            "param_norms": [3],
            "grad_norms": [jnp.ones(2)],
            "calculate_accuracy": ["yes"],
            "batch_size": [True, 0, -1, [4], NAN],
            "key": [0, "seed"],
        }.items()
        for value in values
    ),
    ("no such option", lambda: step(lr=0.1), TYPE, "lr"),
    ("a typo", lambda: step(max_t2=1.0), TYPE, "max_t2.*max_t1"),
    ("sigma", lambda: step(x=None, key=KEY, layer_sizes=(3, 4, 4, 2), sigma=-1.0), VALUE, "sigma"),
    ("sigma NaN", lambda: step(x=None, key=KEY, layer_sizes=(3, 4, 4, 2), sigma=NAN), VALUE,
     "sigma"),
    ("a foreign output", lambda: step(y=Foreign()), TYPE, "output must be an array"),
    ("a foreign input", lambda: step(x=Foreign()), TYPE, "input must be an array"),
    ("swapped model and optimiser", lambda: jpc.make_pc_step(SGD, MODEL, STATE, Y, X), VALUE,
     "Layer 1 of model"),
    ("swapped state and output", lambda: jpc.make_pc_step(MODEL, SGD, Y, STATE, X), (TYPE, VALUE),
     "output|opt_state"),
    ("labels out of range", lambda: step(y=LABELS), VALUE, "one_hot"),
    ("input 3-d", lambda: step(x=X[None, None]), VALUE, "input"),
    ("input a set", lambda: step(x={1.0, 2.0}), TYPE, "input must be"),
    ("input a generator", lambda: step(x=(i for i in range(3))), TYPE, "input must be"),
    ("output a model", lambda: step(y=MODEL), TYPE, "output must be"),
    ("gap of few", lambda: gap(Z[:1]), VALUE, "activities"),
    ("gap of a word", lambda: gap("ffwd"), TYPE, "activities"),
    ("gap with inference", lambda: gap(inference=jpc.Backprop()), TYPE, "inference"),
    ("t_max of nothing", lambda: jpc.get_t_max([]), (VALUE, TYPE), "activities"),
    ("t_max of a number", lambda: jpc.get_t_max(3), (VALUE, TYPE), "activities"),
    ("t_max of None", lambda: jpc.get_t_max(None), (VALUE, TYPE), "activities"),
    ("energies of no time",
     lambda: jpc.compute_infer_energies((MODEL, None), [z[None] for z in Z], 0, Y, x=X), VALUE,
     "t_max"),
    ("energies of too long",
     lambda: jpc.compute_infer_energies((MODEL, None), [z[None] for z in Z], 9, Y, x=X), VALUE,
     "t_max"),
    ("energies of half",
     lambda: jpc.compute_infer_energies((MODEL, None), [z[None] for z in Z], 0.5, Y, x=X), VALUE,
     "t_max"),
    ("energies of a word",
     lambda: jpc.compute_infer_energies((MODEL, None), [z[None] for z in Z], "1", Y, x=X), VALUE,
     "t_max"),
    ("energies of words",
     lambda: jpc.compute_infer_energies((MODEL, None), "all", 1, Y, x=X), TYPE,
     "activities"),
    ("field's args", lambda: jpc.neg_pc_activity_grad(0.0, Z, ((MODEL, None), Y)), (VALUE, TYPE),
     "args"),
    ("field's args None", lambda: jpc.neg_pc_activity_grad(0.0, Z, None), (VALUE, TYPE), "args"),
    ("field's options", lambda: jpc.neg_pc_activity_grad(0.0, Z, ((MODEL, None), Y, X, "ce")),
     (VALUE, TYPE), "args|options"),
    ("norms of a number", lambda: jpc.compute_activity_norms(3), TYPE, "activities"),
    ("norms of nothing", lambda: jpc.compute_activity_norms([]), VALUE, "activities"),
    ("norms of words", lambda: jpc.compute_activity_norms([WORDS]), TYPE, "activities"),
    ("norms of None", lambda: jpc.compute_activity_norms(None), TYPE, "activities"),
    ("norms of no params", lambda: jpc.compute_param_norms(None), TYPE, "params"),
    ("norms of numbers", lambda: jpc.compute_param_norms((3, None)), TYPE, "params|model"),
    ("norms of empty", lambda: jpc.compute_param_norms(([], None)), VALUE, "params|model"),
    ("ffwd of a number", lambda: jpc.init_activities_with_ffwd(MODEL, 3), VALUE, "input"),
    ("errors of sizes", lambda: jpc.init_epc_errors("3", 4), VALUE, "layer_sizes"),
    ("errors of a batch", lambda: jpc.init_epc_errors((3, 4, 2), True), VALUE, "batch_size"),
    ("errors of a mode", lambda: jpc.init_epc_errors((3, 4, 2), 4, "semi"), VALUE, "mode"),
    ("errors of sizes True", lambda: jpc.init_epc_errors((True, 4, 2), 4), VALUE, "layer_sizes"),
    ("epc energy of few", lambda: jpc.epc_energy_fn((MODEL, None), Z[:1], Y, x=X), VALUE, "error"),
    ("epc energy of words", lambda: jpc.epc_energy_fn((MODEL, None), "none", Y, x=X), TYPE,
     "errors"),
    ("epc of ce", lambda: jpc.epc_energy_fn((MODEL, None), FREE, -Y, x=X, loss="ce"), RUNTIME,
     "negative"),
    ("bpc weight", lambda: bpc(forward_energy_weight=-1.0), VALUE, "forward_energy_weight"),
    ("bpc's unknown", lambda: bpc(weight_decay=1.0), TYPE, "weight_decay"),
    ("bpc's activities", lambda: bpc(activities=[X]), VALUE, "activities"),
    ("bpc's energy", lambda: bpc(energy=jpc.PCEnergy), TYPE, "energy"),
    ("bpc of PCEnergy", lambda: bpc(energy=PC), (TYPE, VALUE), "energy|PCEnergy|params|Layer"),
    ("bpc's model", lambda: bpc(up=None), TYPE, "bottom_up_model"),
    ("bpc's depth", lambda: bpc(up=UP[:1]), VALUE, "bottom_up_model"),
    ("bpc unreversed", lambda: bpc(up=UP[::-1]), VALUE, "bottom_up_model"),
    ("bpc's optimisers", lambda: jpc.make_bpc_step(DOWN, UP, SGD, (1, 1), X, Y), VALUE, "optims"),
    ("bpc's record", lambda: jpc.make_bpc_step(
        DOWN, UP, (SGD, SGD), tuple(SGD.init(eqx.filter(m, eqx.is_array)) for m in (DOWN, UP)),
        X, Y, record="all"), TYPE, "record"),
    ("pdm's factor", lambda: jpc.compute_pdm_activity_grad(DOWN, UP, [], X, Y,
                                                           bpc_terms_factor=-1), VALUE, "factor"),
    ("pdm's factor 2", lambda: jpc.compute_pdm_activity_grad(
        DOWN, UP, [jnp.ones((BATCH, 4)), X], X, Y, bpc_terms_factor=2.0), VALUE,
     "bpc_terms_factor"),
    ("pdm's lateral", lambda: jpc.compute_pdm_activity_grad(DOWN, UP, [], X, Y, lateral_gamma=1),
     VALUE, "lateral_gamma"),
    ("regime of a key", lambda: jpc.regime((MODEL, None), Y, X, key=0), TYPE, "key"),
    ("regime of a model", lambda: jpc.regime(MODEL, Y, X), TYPE, "params"),
    ("regime without an input", lambda: jpc.regime((MODEL, None), Y), VALUE, "input"),
    ("ipc of a half", lambda: ipc(steps=0), VALUE, "steps"),
    ("ipc of True", lambda: ipc(steps=True), VALUE, "steps"),
    ("ipc of an option", lambda: ipc(max_t1=3.0), TYPE, "max_t1"),
    ("filter's energy", lambda: filtered(energy=jpc.PCEnergy), TYPE, "energy"),
    ("filter's inference", lambda: filtered(inference="x"), TYPE, "inference"),
    ("filter's params", lambda: filtered(params=None), TYPE, "params"),
    ("filter's one layer", lambda: filtered(params=SEQUENCE[:1]), VALUE, "two layers"),
    ("filter's layers", lambda: filtered(params=[3, 4]), TYPE, "params"),
    ("filter's start", lambda: filtered(start=None), TYPE, "start"),
    ("filter's start of others", lambda: filtered(start=X), VALUE, "start|Layer 1"),
    ("filter's observations", lambda: filtered(observations=3.0), VALUE, "observations"),
    ("filter's words", lambda: filtered(observations=WORDS), TYPE, "observations"),
    ("filter's batch", lambda: filtered(observations=SEEN[:, :2]), VALUE, "observations"),
    ("filter's units", lambda: filtered(observations=SEEN[..., :2]), VALUE, "observations"),
    ("filter's key", lambda: filtered(inference=jpc.Langevin(), key=0), TYPE, "key"),
    ("filter's mask", lambda: filtered(observations=jpc.Masked(SEEN, jnp.ones((5, 1), bool))),
     VALUE, "mask"),
    ("smoother's energy", lambda: smoothed(energy=GRAPH), TYPE, "energy"),
    ("smoother's params", lambda: smoothed(params=3), TYPE, "params"),
    ("tpc without a start", lambda: jpc.make_tpc_step(
        SEQUENCE, SGD, SGD.init(eqx.filter(SEQUENCE, eqx.is_array)), SEEN, energy=PC,
        inference=jpc.Equilibrium()), VALUE, "start"),
    ("tpc's state", lambda: jpc.make_tpc_step(SEQUENCE, SGD, 3, SEEN, BEFORE, energy=PC,
                                              inference=jpc.Equilibrium()), VALUE, "opt_state"),
    ("sample's key", lambda: jpc.sample(0, MODEL, (5, 3)), TYPE, "key"),
    ("sample's layers", lambda: jpc.sample(KEY, None, (5, 3)), TYPE, "layers"),
    ("sample's shape", lambda: jpc.sample(KEY, MODEL, 5), VALUE, "shape"),
    ("sample's other shape", lambda: jpc.sample(KEY, MODEL, (5, 7)), VALUE, "shape|Layer 1"),
    ("sample's temperature", lambda: jpc.sample(KEY, MODEL, (5, 3), -1.0), VALUE, "temperature"),
    ("mcpc's warm", lambda: jpc.make_mcpc_step(
        MODEL, SGD, STATE, Y, X, energy=PC, pose=pose, key=KEY, warm="x"), TYPE, "warm"),
    ("mcpc's key", lambda: jpc.make_mcpc_step(
        MODEL, SGD, SGD.init(eqx.filter(MODEL, eqx.is_array)), Y, X, energy=PC, pose=pose,
        key=0), TYPE, "key"),
    ("hpc of one optimiser", lambda: jpc.make_hpc_step(MODEL, MODEL, SGD, STATE, Y), VALUE,
     "optims"),
    ("hpc's generator", lambda: jpc.make_hpc_step(3, MODEL, (SGD, SGD), (1, 1), Y), TYPE,
     "generator"),
]  # fmt: skip

PIECES = [
    ("clamp of nothing", lambda: jpc.clamp(None, Y, X), TYPE, "activities"),
    ("clamp of an array", lambda: jpc.clamp(Z[0], Y, X), TYPE, "activities"),
    ("clamp of a word", lambda: jpc.clamp("ffwd", Y, X), TYPE, "activities"),
    ("clamp words", lambda: jpc.clamp(FREE, WORDS, X), TYPE, "output"),
    ("clamp None inside", lambda: jpc.clamp([None, Z[0]], Y, X), TYPE, r"activities\[0\]"),
    ("clamp a number", lambda: jpc.clamp(FREE, 3.0, X), TYPE, "output"),
    ("clamp labels", lambda: infer(clamps=jpc.clamp(FREE, Y[:, 0], X)[1]), VALUE, "z_3"),
    ("clamp batches", lambda: jpc.clamp(FREE, Y[:2], X), VALUE, "batch size"),
    ("clamp swapped", lambda: jpc.clamp(Y, FREE, X), TYPE, "activities"),
    ("clamp a mask of floats", lambda: jpc.clamp([*FREE, Y], Y, X, mask=Y), VALUE, "mask"),
    ("clamp a mask alone", lambda: jpc.clamp([*FREE, Y], None, X, mask=MASK), VALUE, "mask"),
    ("clamp a mask's shape", lambda: jpc.clamp([*FREE, Y], Y, X, mask=MASK[0]), VALUE, "mask"),
    ("clamp without the last", lambda: jpc.clamp(FREE, Y, X, mask=MASK), VALUE, "activities"),
    ("masked floats", lambda: jpc.Masked(Y, Y), TYPE, "mask"),
    ("masked shapes", lambda: jpc.Masked(Y, MASK[:, :1]), VALUE, "mask"),
    ("masked words", lambda: jpc.Masked("y", MASK), TYPE, "value"),
    ("masked None", lambda: jpc.Masked(None, MASK), TYPE, "value"),
    ("masked lists", lambda: jpc.Masked(Y, "some"), TYPE, "mask"),
    ("masked and no node", lambda: infer(clamps=other(CLAMPS, 3, jpc.Masked(Y, MASK))), VALUE,
     "in part"),
    ("pose's energy", lambda: posed(energy=jpc.GraphEnergy), TYPE, "energy"),
    ("pose's other energy", lambda: posed(energy=BPC), TYPE, "BPCEnergy"),
    ("pose a list", lambda: posed([X, Y]), TYPE, "given"),
    ("pose an unknown", lambda: posed({"z": X}), VALUE, "'z'"),
    ("pose nothing", lambda: posed({}), VALUE, "'x'"),
    ("pose None", lambda: posed({"x": None, "y": Y}), TYPE, "'x'"),
    ("pose words", lambda: posed({"x": X, "y": WORDS}), TYPE, "'y'"),
    ("pose labels", lambda: posed({"x": X, "y": LABELS}), (VALUE, TYPE), "'y'.*one_hot|'y'"),
    ("pose batches", lambda: posed({"x": X, "y": Y[:2]}), VALUE, "batch size"),
    ("pose a number", lambda: posed({"x": 3.0, "y": Y}), TYPE, "'x'"),
    ("pose (B, 1)", lambda: posed({"x": X, "y": Y[:, :1]}), VALUE, "'y'"),
    ("pose another x", lambda: posed({"x": Y, "y": Y}), VALUE, "cannot take"),
    ("pose masks", lambda: posed(masks={"y": Y}), VALUE, "mask"),
    ("pose masks a list", lambda: posed(masks=[MASK]), TYPE, "masks"),
    ("pose start a list", lambda: posed(start=[X]), TYPE, "start"),
    ("ffwd's layers", lambda: jpc.feedforward(None, X[0]), TYPE, "layers"),
    ("ffwd's state", lambda: jpc.feedforward(MODEL, Y[0]), VALUE, "cannot take"),
    ("ffwd's batch", lambda: jpc.feedforward_batch(MODEL, Y), VALUE, "cannot take"),
    ("ffwd's one example", lambda: jpc.feedforward_batch(MODEL, X[0]), VALUE, "cannot take"),
    ("ffwd's None", lambda: jpc.feedforward_batch(MODEL, None), TYPE, "batch"),
    ("ffwd's word", lambda: jpc.feedforward_batch(MODEL, "x"), TYPE, "batch"),
    ("ffwd's model", lambda: jpc.feedforward_batch(eqx.nn.MLP(3, 2, 4, 2, key=KEY), X), TYPE,
     "layers"),
    ("parameterise's model", lambda: jpc.parameterise(3, fan_ins=[1]), TYPE, "model"),
    ("parameterise nothing", lambda: jpc.parameterise([], fan_ins=[]), VALUE, "model"),
    ("parameterise's fan-ins", lambda: jpc.parameterise(MODEL, fan_ins=[3, 4]), VALUE, "fan_ins"),
    ("parameterise's fan-in", lambda: jpc.parameterise(MODEL, fan_ins=3), (VALUE, TYPE),
     "fan_ins"),
    ("parameterise's zero", lambda: jpc.parameterise(MODEL, fan_ins=[3, 0, 4]), VALUE, "fan_ins"),
    ("parameterise's skips", lambda: jpc.parameterise(MODEL, [None], fan_ins=[3, 4, 4]), VALUE,
     "skip_model"),
    ("parameterise's skip", lambda: jpc.parameterise(MODEL, [3] * 3, fan_ins=[3, 4, 4]), TYPE,
     "skip_model"),
    ("parameterise's type", lambda: jpc.parameterise(MODEL, fan_ins=[3, 4, 4], param_type="x"),
     VALUE, "param_type"),
    ("parameterise's gamma", lambda: jpc.parameterise(MODEL, fan_ins=[3, 4, 4], gamma=0.0),
     VALUE, "gamma"),
    ("parameterise's gamma '2'", lambda: jpc.parameterise(MODEL, fan_ins=[3, 4, 4], gamma="2"),
     (VALUE, TYPE), "gamma"),
    ("mupc of one layer", lambda: jpc.parameterise(MODEL[:1], fan_ins=[3], param_type="mupc"),
     VALUE, "two layers"),
    ("an activation", lambda: jpc.get_act_fn(3), VALUE, "activation"),
    ("an activation None", lambda: jpc.get_act_fn(None), VALUE, "activation"),
    ("an activation list", lambda: jpc.get_act_fn(["tanh"]), VALUE, "activation"),
    ("mlp's width True", lambda: jpc.make_mlp(KEY, 3, True, 3, 2, "tanh"), VALUE, "width"),
    ("mlp's depth True", lambda: jpc.make_mlp(KEY, 3, 4, True, 2, "tanh"), VALUE, "depth"),
    ("mlp's input None", lambda: jpc.make_mlp(KEY, None, 4, 3, 2, "tanh"), VALUE, "input_dim"),
    ("mlp's output -1", lambda: jpc.make_mlp(KEY, 3, 4, 3, -1, "tanh"), VALUE, "output_dim"),
    ("mlp's widths", lambda: jpc.make_mlp(KEY, 3, [4], 3, 2, "tanh"), VALUE, "width"),
    ("mlp's activations", lambda: jpc.make_mlp(KEY, 3, 4, 3, 2, ["tanh"]), VALUE, "activation"),
    ("mlp's activation's class", lambda: jpc.make_mlp(KEY, 3, 4, 3, 2, eqx.nn.PReLU), TYPE,
     "act_fn"),
    ("mlp's key a word", lambda: jpc.make_mlp("0", 3, 4, 3, 2, "tanh"), TYPE, "key"),
    ("residual's widths", lambda: jpc.make_residual_mlp(KEY, 3, [4, 5], 3, 2, "tanh"), VALUE,
     "width"),
    ("cnn's shape", lambda: jpc.make_cnn(KEY, (28, 28), 10), VALUE, "input_shape"),
    ("cnn's shape floats", lambda: jpc.make_cnn(KEY, (1, 28.0, 28), 10), VALUE, "input_shape"),
    ("cnn's size", lambda: jpc.make_cnn(KEY, (1, 28, 28), 10, size="vgg16"), VALUE, "size"),
    ("cnn's pool", lambda: jpc.make_cnn(KEY, (1, 28, 28), 10, pool="min"), VALUE, "pool"),
    ("cnn's channels", lambda: jpc.make_cnn(KEY, (1, 28, 28), 10, channels=0), VALUE, "channels"),
    ("cnn of small images", lambda: jpc.make_cnn(KEY, (1, 4, 4), 10), VALUE, "too small"),
    ("normal's sigma", lambda: jpc.init_activities_from_normal(KEY, (3, 2), "supervised", 4, "1"),
     VALUE, "sigma"),
    ("normal's batch True", lambda: jpc.init_activities_from_normal(
        KEY, (3, 2), "supervised", True), VALUE, "batch_size"),
    ("normal's mode", lambda: jpc.init_activities_from_normal(KEY, (3, 2), None, 4), VALUE,
     "mode"),
    ("hessian of words", lambda: jpc.compute_linear_activity_hessian(["W_1", "W_2"]), TYPE, "Ws"),
    ("hessian of nothing", lambda: jpc.compute_linear_activity_hessian([]), VALUE, "layer|Ws"),
    ("hessian's decay", lambda: jpc.compute_linear_activity_hessian(
        [np.ones((2, 2))] * 2, activity_decay=-1.0), VALUE, "activity_decay"),
    ("hessian's NaN", lambda: jpc.compute_linear_activity_hessian(
        [np.full((2, 2), NAN)] * 2), RUNTIME, "finite"),
    ("solution of a word", lambda: jpc.compute_linear_activity_solution("net", X, Y), TYPE,
     "model"),
    ("rescaling of None", lambda: jpc.compute_linear_equilib_rescaling((LINEAR, None), None),
     TYPE, "x must be"),
    ("theory's mask", lambda: linear(mask=MASK), VALUE, "mask"),
    ("theory's precision", lambda: linear(output_energy_scaling=-1.0), VALUE,
     "output_energy_scaling"),
]  # fmt: skip

EQUILIBRIUM, NUDGED = METHODS["equilibrium"], METHODS["nudged"]
SHORT = other(NODES, 1, Z[0][:2])

# What a second look found.
LATER = [
    ("prepare (B, 1)", lambda: EQUILIBRIUM.prepare(PC, MODEL, NODES, other(CLAMPS, 3, Y[:, :1])),
     VALUE, "z_3"),
    ("prepare of two batches", lambda: EQUILIBRIUM.prepare(PC, MODEL, SHORT, CLAMPS), VALUE,
     "batch size"),
    ("prepare for nothing", lambda: NUDGED.prepare(PC, MODEL, None, CLAMPS), TYPE, "nodes must"),
    ("the problem of a limit", lambda: NUDGED.problem(PC, MODEL, NODES, CLAMPS), VALUE, "finite"),
    ("fill with another shape", lambda: jpc.Masked(Y, MASK).fill(X), VALUE, "free must be"),
    ("fill with a word", lambda: jpc.Masked(Y, MASK).fill("all"), VALUE, "free must be"),
    ("a step long", lambda: jpc.FixedPrediction(5, dt=3.0), VALUE, "dt must .* at most 2"),
    ("a step of words", lambda: general(y=WORDS), TYPE, "output must be arrays of numbers"),
    ("a step of objects", lambda: general(x=OBJECTS), TYPE, "input must be arrays of numbers"),
    ("a regime's transform", lambda: jpc.measure_regime(
        PC, MODEL, NODES, CLAMPS, inference=jpc.Backprop(), transform=3), TYPE, "transform"),
    ("record_layers", lambda: jpc.pc_energy_fn((MODEL, None), Z, Y, x=X, record_layers="no"),
     VALUE, "record_layers"),
    ("record_iters", lambda: solve(record_iters="yes"), VALUE, "record_iters"),
    ("return_rescaling", lambda: linear(return_rescaling="yes"), VALUE, "return_rescaling"),
    ("flatten", lambda: loaded(flatten="yes"), VALUE, "flatten"),
    ("normalise", lambda: loaded(normalise="no"), VALUE, "normalise"),
]  # fmt: skip

MISFITS = [eqx.nn.Linear(n, m, key=KEY) for n, m in ((3, 4), (5, 4), (4, 2))]
UNEVEN = jpc.PCEnergy(precision=[1.0, jnp.ones(3), 1.0])
HEADED = jpc.GraphEnergy({"h": ["x"], "y": ["h"]}, loss={"y": lambda t, p: t - p})
POSED = jpc.pose(GRAPH, FNS, {"x": X, "y": Y})
ENTROPY = jpc.PCEnergy(jpc.cross_entropy)


def shaped(z):
    return z.astype(int)


# What a third look found: which layer, which state.
THIRD = [
    ("a misfit", lambda: PC(MISFITS, NODES, CLAMPS), VALUE, "What predicts z_2 cannot take"),
    ("a misfit of backprop", lambda: infer(jpc.Backprop(), params=MISFITS), VALUE,
     "What predicts z_2 cannot take"),
    ("a misfit on the way", lambda: jpc.feedforward(MISFITS, X[0]), VALUE, "Layer 2 cannot take"),
    ("a misfit of a batch", lambda: jpc.feedforward_batch(MISFITS, X), VALUE, "Layer 2 cannot"),
    ("a misfit upwards", lambda: BPC((DOWN, MODEL[:2]), *jpc.clamp([FREE[0]], X, Y)), VALUE,
     "Layer . of bottom_up cannot take"),
    ("a misfit of a graph", lambda: jpc.pose(GRAPH, FNS | {"y": FNS["h"]}, {"x": X}), VALUE,
     "What predicts 'y' cannot take"),
    ("a layer of whole numbers", lambda: PC([MODEL[0], shaped, MODEL[2]], NODES, CLAMPS), TYPE,
     "What predicts z_2 must make floats"),
    ("whose precision", lambda: UNEVEN(MODEL, NODES, CLAMPS), VALUE, "z_2: A precision"),
    ("whose precision, exactly", lambda: infer(jpc.Equilibrium(), UNEVEN), VALUE,
     "z_2: A precision"),
    ("whose loss", lambda: HEADED(FNS, *POSED), VALUE, "'y': The loss of one example"),
    ("whose loss, by backprop", lambda: infer(jpc.Backprop(), HEADED, FNS, *POSED), VALUE,
     "'y': The loss of one example"),
    ("masked nodes", lambda: PC(MODEL, other(NODES, 3, jpc.Masked(Y, MASK)), [X, *[None] * 3]),
     TYPE, "z_3 is a jpc.Masked"),
    ("times beyond the end", lambda: infer(jpc.GradientFlow(
        dfx.Euler(), 2.0, 1.0, dfx.ConstantStepSize()), record=jpc.Record(
        ts=jnp.array([0.5, 1.0, 3.0]))), RUNTIME, "times beyond t1"),
    ("a record of something else", lambda: infer(jpc.Descent(0.1), record=jpc.Record(
        lambda z: z, length=3)), TYPE, "Record's fn must take"),
    ("a record of words", lambda: infer(jpc.Descent(0.1), record=jpc.Record(
        lambda *z: "all", length=3)), TYPE, "Record's fn must .* return arrays"),
    ("another's solver", lambda: jpc.GradientFlow(dfx.SemiImplicitEuler()), VALUE,
     "SemiImplicitEuler is no solver"),
    ("an optimiser of other trees", lambda: infer(jpc.Descent(optax.multi_transform(
        {"a": SGD}, ["a"]))), VALUE, "optim cannot take the nodes"),
    ("a nudge of nothing", lambda: infer(jpc.Nudged(), nodes=[None] * 4, clamps=[X, *FREE, Y]),
     VALUE, "nothing to infer"),
    ("a number as a name", lambda: jpc.GraphEnergy({1: ["x"]}), TYPE, "name of a state"),
    ("a prior from the end", lambda: jpc.GaussianPrior(1.0, -1), VALUE, "node must be"),
    ("targets of a general step", lambda: general(energy=ENTROPY, y=-Y), RUNTIME,
     "z_3 .* some are negative"),
    ("sums of a general step", lambda: general(energy=ENTROPY, y=2 * Y), RUNTIME, "do not sum"),
    ("checkpoints in a file", lambda: fit(checkpoints=jpc.Checkpoints(__file__)), OSError,
     "is a file"),
]  # fmt: skip

STEPS = dfx.StepTo(ts=jnp.linspace(0.0, 1.0, 11))
MORE = FNS | {"w": FNS["h"]}
ALL = dict(nodes=[None] * 4, clamps=[X, *Z])

# What a fourth look found.
FOURTH = [
    ("steps and a step", lambda: jpc.GradientFlow(t1=1.0, dt0=0.1, controller=STEPS), VALUE,
     "controller .*leave dt0 out"),
    ("steps that end before", lambda: jpc.GradientFlow(t1=2.0, controller=STEPS), VALUE,
     "controller=.* from 0 to t1, which is 2, got 0 to 1"),
    ("a callable too many", lambda: GRAPH(MORE, *POSED), VALUE, "params has 'w'"),
    *(
        (f"nothing free, {name}", lambda name=name: infer(METHODS[name], **ALL), VALUE,
         "nothing to infer")
        for name in ("flow", "flow of a batch", "minimise", "langevin", "monte carlo")
    ),
    ("a rate that is none", lambda: learn(optim=optax.sgd(NAN)), RUNTIME,
     "optim .* check its learning rate"),
    ("learning from NaN", lambda: learn(nodes=other(NODES, 1, NAN * Z[0])), RUNTIME,
     "gradient of params is not finite"),
    ("an energy divided", lambda: PC / 2.0, TYPE, r"0.5 \* energy, got energy / 2.0"),
    ("amortised too short", lambda: jpc.AmortisedEnergy()(MODEL[:1], [X], [None]), VALUE,
     "one more of nodes"),
    ("a state too many", lambda: GRAPH(FNS, {"h": jnp.ones((BATCH, 4)), "q": X}, POSED[1]), VALUE,
     "'q' among the nodes"),
    ("a filter that does not infer", lambda: filtered(inference=jpc.Backprop()), VALUE,
     "inference=.*leaves the states"),
    ("a smoother that does not infer", lambda: smoothed(inference=jpc.Nudged()), VALUE,
     "inference=.*leaves the states"),
]  # fmt: skip

HIDDEN = [jax.jit(layer) for layer in MODEL]
FIFTH = [
    ("jitted layers", lambda: step(model=HIDDEN), TYPE, "Layer 1 of model hides its parameters"),
    ("jitted layers of a first pass", lambda: jpc.init_activities_with_ffwd(HIDDEN, X), TYPE,
     "hides its parameters.*eqx.filter_jit"),
    ("jitted layers of the core", lambda: infer(params=HIDDEN), TYPE, "Layer 1 of params hides"),
    ("mapped layers", lambda: infer(params=[*MODEL[:2], jax.vmap(MODEL[2])]), TYPE,
     "Layer 3 of params hides"),
    ("a jitted skip", lambda: step(skip_model=[None, HIDDEN[1], None]), TYPE,
     "Layer 2 of skip_model hides"),
    ("a jitted node", lambda: posed(params=FNS | {"h": jax.jit(FNS["h"])}), TYPE,
     r"params\['h'\] hides"),
    ("layers from a generator", lambda: step(model=(layer for layer in MODEL)), TYPE,
     "model must be a list .*generator"),
    ("a set of layers", lambda: step(model={jnp.tanh}), TYPE, "model must be a list .*set"),
    ("layers by name", lambda: step(model={"a": MODEL[0]}), TYPE, "model must be a list .*dict"),
    ("a layer's class", lambda: step(model=[eqx.nn.Linear] * 3), TYPE,
     r"Layer 1 of model is a class: .*Linear\(\.\.\.\)"),
    ("a node's class", lambda: posed(params=FNS | {"h": eqx.nn.Linear}), TYPE, "is a class"),
    ("a layer of nothing", lambda: step(model=[lambda z: None] * 3), VALUE,
     "must make one array of real numbers of it, but it makes None"),
    ("a layer of two", lambda: step(model=[*MODEL[:2], lambda z: (z, z)]), VALUE,
     "Layer 3 .*must make one array"),
    ("a layer of whole numbers", lambda: step(model=[lambda z: (z > 0) * 1, *MODEL]), VALUE,
     r"Layer 1 .*it makes int(32|64)\[3\]"),
    ("a layer of complex numbers", lambda: step(model=[lambda z: z + 0j, *MODEL]), VALUE,
     "Layer 1 .*it makes complex"),
    *(
        (f"a layer that {how}{where}", ft.partial(call, fn), TYPE,
         rf"{named} needs numbers that are not known .*jnp\.where")
        for how, fn in [
            ("asks", lambda z: z if z[0] > 0 else -z),
            ("is NumPy's", lambda z: np.tanh(np.asarray(z))),
            ("takes a float", lambda z: float(z[0]) * z),
        ]
        for where, named, call in [
            ("", "Layer 1 of model", lambda fn: step(model=[fn, *MODEL])),
            (", the core", "z_1",
             lambda fn: infer(params=[fn, *MODEL[:1], MODEL[2]], nodes=[None, X, Z[1], None])),
            (", jitted", "Layer 1 of model",
             lambda fn: jax.jit(lambda x: step(model=[fn, *MODEL], x=x)["loss"])(X)),
        ]
    ),
    ("data of no epoch", lambda: fit(data=lambda: 3), TYPE, "data is a function, and gets the ep"),
    ("data of two", lambda: fit(data=lambda a, b: []), TYPE, "data is a function, and gets the"),
    ("data that makes a number", lambda: fit(data=lambda epoch: 3), TYPE,
     "data is a function of the epoch, and must return batches .*got 3"),
    ("data that makes nothing", lambda: fit(data=lambda epoch: None), TYPE, "got None"),
    ("data that makes a word", lambda: fit(data=lambda epoch: "ab"), TYPE, "got 'ab'"),
    ("data that makes a pair", lambda: fit(data=lambda epoch: (X, Y)), TYPE,
     r"must return batches .*got a tuple of 2: an array \(4, 3\)"),
    ("data that makes a dictionary", lambda: fit(data=lambda epoch: {"x": X}), TYPE, "batches"),
    ("data of a later epoch",
     lambda: fit(data=lambda epoch: 3 if epoch else [(X, Y)], epochs=2, batch_size=4), TYPE,
     "batches .*got 3"),
    ("test data of no epoch", lambda: fit(test=lambda: 3, evaluate=measured), TYPE,
     "test is a function"),
    ("equilibrium prepared, swapped",
     lambda: jpc.Equilibrium().prepare(MODEL, PC, NODES, CLAMPS), TYPE, "energy must be"),
    ("nudge prepared, swapped", lambda: jpc.Nudged().prepare(MODEL, PC, NODES, CLAMPS), TYPE,
     "energy must be"),
    ("matrix of this size", lambda: infer(jpc.Equilibrium(matrix=jnp.eye(2))), VALUE,
     r"matrix .*\[\(2, 2\)\], got something else of this shape"),
    *(
        (f"a nudge by {rule}", ft.partial(jpc.Nudged, 0.1, inference=rule), TYPE,
         "inference must find an equilibrium")
        for rule in (jpc.Backprop(), jpc.ZIL(), jpc.FixedPrediction(), jpc.Nudged())
    ),
    ("a schema's name", lambda: jpc.data.read_schema("digits"), TYPE, "as_dict of a schema"),
    ("a schema of others", lambda: jpc.data.read_schema({"a": 1}), TYPE, "as_dict of a schema"),
    ("more data, a number", lambda: jpc.data.read_like(3, 4), TYPE, "a path and a schema"),
    ("words as images", lambda: jpc.data.augment(KEY, WORDS), TYPE, "images"),
    ("images by a number", lambda: jpc.data.augment(3, IMAGES), TYPE, "key"),
    ("images by two keys", lambda: jpc.data.augment(jr.split(KEY), IMAGES), TYPE, "key"),
    ("images padded by half", lambda: jpc.data.augment(KEY, IMAGES, pad=0.5), VALUE, "pad"),
    ("images padded by less", lambda: jpc.data.augment(KEY, IMAGES, pad=-1), VALUE, "pad"),
    ("images flipped by a word", lambda: jpc.data.augment(KEY, IMAGES, flip="no"), VALUE, "flip"),
]  # fmt: skip

ONE = eqx.tree_at(lambda m: m.bias, eqx.nn.Linear(4, 2, key=KEY), jnp.array([0.0, 0.1]))
HALF = np.ma.masked_array(np.asarray(Y), np.eye(BATCH, 2))
RECORDS = np.zeros(BATCH, dtype=[("a", "f4")])
SIXTH = [
    *(
        (f"a key as {name}", call, (VALUE, TYPE), words)
        for name, call, words in [
            ("a precision", lambda: jpc.PCEnergy(precision=KEY), "precision"),
            ("a stiffness", lambda: jpc.PCEnergy(stiffness=KEY), "stiffness"),
            ("a node's precision", lambda: jpc.Node(precision=KEY), "precision"),
            ("a scale", lambda: jpc.Layer(jnp.tanh, scale=KEY), "scale"),
            ("a value", lambda: jpc.Masked(jr.split(KEY, 2), jnp.ones(2, bool)), "value"),
            ("seconds", lambda: jpc.Checkpoints("runs", seconds=KEY), "seconds"),
            ("a state", lambda: infer(nodes=other(NODES, 1, jr.split(KEY, BATCH))), "z_1"),
            ("a model", lambda: step(model=KEY), "model must be a list"),
        ]
    ),
    ("bytes as precisions", lambda: jpc.PCEnergy(precision=b"ab"), VALUE, "precision"),
    ("bytes as sizes", lambda: jpc.init_epc_errors(b"abc", 4), VALUE, "layer_sizes"),
    ("a number as a model", lambda: step(model=jnp.asarray(1.0)), TYPE, "model must be a list"),
    ("a matrix as a model", lambda: step(model=np.eye(3)), TYPE, "model must be a list"),
    ("a node's NaN", lambda: jpc.Node(precision=NAN), VALUE, "precision"),
    ("a node's infinity", lambda: jpc.Node(precision=-INF), VALUE, "precision"),
    ("a node's learned", lambda: jpc.Node(learned="yes"), VALUE, "learned"),
    ("a class in a layer", lambda: jpc.Layer(eqx.nn.Linear), TYPE, "fn is a class"),
    ("a class as a skip", lambda: jpc.Layer(jnp.tanh, eqx.nn.Identity), TYPE, "skip is a class"),
    ("resume an array", lambda: jpc.Checkpoints("runs", resume=X), VALUE, "resume"),
    ("resume a model", lambda: jpc.Checkpoints("runs", resume=MODEL), VALUE, "resume"),
    ("too wide", lambda: jpc.make_mlp(KEY, 3, 10**12, 3, 2, "tanh"), VALUE, "width=10000"),
    ("too deep", lambda: jpc.make_skip_model(10**30), VALUE, "below .*depth="),
    ("a step of no steps", lambda: jpc.FixedPrediction(dt=2), VALUE, "dt is of a number of steps"),
    ("an array of no steps", lambda: jpc.FixedPrediction(dt=jnp.asarray(0.5)), VALUE, "dt=0.5"),
    *(
        (f"a mask of {kind}{where}", ft.partial(call, mask), VALUE, "mask of .*output|mask of 'y'")
        for kind, mask in [("words", "all"), ("lists", [[True, False]] * BATCH), ("None", (None,)),
                           ("objects", np.full((BATCH, 2), None)), ("records", RECORDS)]
        for where, call in [
            ("", lambda mask: jpc.clamp(Z, Y, X, mask=mask)),
            (" of a graph", lambda mask: posed(masks={"y": mask})),
        ]
    ),
    *(
        (f"a graph's {name} {value!r}"[:40], ft.partial(jpc.GraphEnergy, {"y": ["x"]},
                                                        **{name: value}), TYPE, f"{name} must")
        for name in ("loss", "precision")
        for value in (0, "", [], False, X)
    ),
    ("a graph's arrays", lambda: jpc.GraphEnergy({"y": X}), TYPE, "parents of 'y'"),
    ("a solver's class as a path", lambda: jpc.Langevin(path=dfx.Heun), TYPE, "path must be"),
    ("a path of numbers", lambda: jpc.Langevin(path=[1.0]), TYPE, "path must be"),
    ("a class of a node", lambda: jpc.Node(eqx.nn.Linear, ("x",)), TYPE, "fn is a class"),
    ("a class, precisely", lambda: jpc.Precise(eqx.nn.Linear, jnp.zeros(())), TYPE, "is a class"),
    ("images far beyond", lambda: jpc.data.augment(KEY, IMAGES, pad=2**40), VALUE, "pad is"),
    ("a number to learn from", lambda: fit(data=jnp.asarray(1.0)), TYPE, "data must be a pair"),
    ("a key to learn from", lambda: fit(data=KEY), TYPE, "data must be a pair"),
    ("a set in the state", lambda: fit(state=dict(model={1.0})), TYPE, "state.'model'. holds"),
    ("dates in the state", lambda: fit(state=dict(model=np.array(["2020-01-01"], "M8[D]"))), TYPE,
     "state.'model'. holds"),
    ("an array as a name", lambda: jpc.data.load(X), TYPE, "name must be"),
    ("validation of an array", lambda: loaded(validation=X), VALUE, "validation="),
    *(
        (f"a mask of NumPy, {name}", call, TYPE, "numbers, got masked_array")
        for name, call in [
            ("clamped", lambda: jpc.clamp(FREE, HALF, X)),
            ("a step", lambda: step(y=HALF)),
            ("a general step", lambda: general(y=HALF)),
            ("fitted", lambda: fit(data=(X, HALF))),
        ]
    ),
    ("theory of one bias", lambda: linear([eqx.nn.Linear(3, 4, use_bias=False, key=KEY), ONE]),
     RUNTIME, "Layer 2 has a bias"),
    ("beyond numbers", lambda: step(y=10**30), TYPE, "output must be"),
    *(
        (f"{name} of {kind}", ft.partial(update, **{name: value}), TYPE,
         f"{name.replace('state', 'opt_state')} holds what no program can take")
        for name in ("optim", "state")
        for kind, value in [("a set", {1.0}), ("objects", OBJECTS), ("words", WORDS),
                            ("records", RECORDS), ("dates", np.array(["2020-01-01"], "M8[D]"))]
    ),
    ("a bpc's state of objects", lambda: jpc.update_bpc_activities(
        DOWN, UP, [jnp.ones((BATCH, 4)), X], SGD, OBJECTS, X, Y), TYPE, "opt_state holds"),
    *(
        (f"no activities, {name}", call, TYPE, "activities must be a list .*got None")
        for name, call in [
            ("energy", lambda: jpc.pc_energy_fn((MODEL, None), None, Y, x=X)),
            ("gradient", lambda: jpc.compute_pc_activity_grad((MODEL, None), None, Y, x=X)),
            ("learning", lambda: jpc.compute_pc_param_grads((MODEL, None), None, Y, x=X)),
            ("inference", lambda: solve(None)),
            ("a gap", lambda: gap(None)),
            ("an update", lambda: jpc.update_params((MODEL, None), None, SGD, STATE, Y, X)),
        ]
    ),
]  # fmt: skip


class Nothing(jpc.AbstractInference):
    """A method that forgets to return."""

    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        pass


class Says(jpc.AbstractEnergy):
    """Whatever is given as its terms."""

    what: object

    def terms(self, params, nodes, clamps):
        return self.what(nodes) if callable(self.what) else self.what


class Listed(jpc.AbstractNetworkEnergy):
    """A network that is no dictionary."""

    def network(self, params):
        return [jpc.Node()]


IN_ERRORS, BACKPROP = jpc.EPCEnergy(PC), METHODS["backprop"]
HALVES = dict(
    nodes=[None, *FREE, Y], clamps=[X, None, None, jpc.Masked(Y, MASK.at[0, 0].set(False))]
)
ENDED = jpc.RESULTS.successful
NUL = "a\0b"
SEVENTH = [
    ("a loss of whole numbers", lambda: step(loss_id=lambda y, p: jnp.argmax(p)), VALUE,
     "must be a float, .*int"),
    ("another without an error estimate", lambda: jpc.GradientFlow(dfx.LeapfrogMidpoint()), VALUE,
     "LeapfrogMidpoint has no error estimate"),
    *(
        (f"errors as states, {name}", call, VALUE, "EPCEnergy are errors, .*InErrors")
        for name, call in [
            ("a step", lambda: step(energy=IN_ERRORS)),
            ("a part of them", lambda: step(energy=0.5 * IN_ERRORS + jpc.WeightDecay(0.1))),
            ("an energy", lambda: jpc.pc_energy_fn((MODEL, None), Z, Y, x=X, energy=IN_ERRORS)),
            ("a filter", lambda: filtered(energy=IN_ERRORS)),
        ]
    ),
    ("guesses of no one", lambda: step(energy=jpc.AmortisedEnergy()), VALUE, "of them is None"),
    ("a penalty alone", lambda: infer(energy=jpc.WeightDecay(1.0)), VALUE, "and no states"),
    *(
        (f"solved by {name}", lambda name=name: solve(inference=METHODS[name]), VALUE,
         "leaves the states where they are predicted")
        for name in ("backprop", "fixed prediction", "zil", "nudged")
    ),
    ("field's list of options", lambda: jpc.neg_pc_activity_grad(
        0.0, Z, ((MODEL, None), Y, X, ["mse"])), VALUE, "args must be"),
    ("accuracy of no class", lambda: jpc.compute_accuracy(Y.at[0].set(0.0), Y), RUNTIME,
     "an example without a class"),
    ("the core's targets", lambda: infer(BACKPROP, ENTROPY, clamps=other(CLAMPS, 3, -Y)), RUNTIME,
     "clamps: z_3 must be .* negative"),
    ("the core's sums", lambda: infer(BACKPROP, ENTROPY, clamps=other(CLAMPS, 3, 2 * Y)), RUNTIME,
     "clamps: z_3 must be .* sum to 1"),
    ("half of an example's classes", lambda: infer(jpc.Descent(0.1, 2), ENTROPY, **HALVES),
     RUNTIME, "z_3: mask gives only some of the classes"),
    ("NaN as a clamp", lambda: infer(BACKPROP, clamps=other(CLAMPS, 3, NAN * Y)), RUNTIME,
     "clamps: z_3 is not finite"),
    ("an end by name", lambda: jpc.finish(PC, MODEL, NODES, NODES, CLAMPS, "successful", {}), TYPE,
     "result must be .*RESULTS"),
    ("an end's list", lambda: jpc.finish(PC, MODEL, NODES, NODES, CLAMPS, ENDED, [1]), TYPE,
     "stats must be"),
    ("a method without an answer", lambda: general(inference=Nothing()), TYPE,
     "method of inference returns .*None"),
    ("terms of None", lambda: Says(None)(MODEL, NODES, CLAMPS), TYPE, "returned None"),
    ("terms of words", lambda: Says("x")(MODEL, NODES, CLAMPS), TYPE, "real numbers, .*'x'"),
    ("complex terms", lambda: Says(lambda z: [1j * z[1][0]])(MODEL, NODES, CLAMPS), TYPE,
     r"real numbers, but terms\(...\)\[0\]"),
    ("a network as a list", lambda: Listed()(MODEL, NODES, CLAMPS), TYPE, "of jpc.Node"),
    ("more samples than steps", lambda: jpc.MonteCarlo(
        sampler=jpc.Langevin(t1=0.2, dt=0.1), samples=50), VALUE, "samples=50 .* 1 steps"),
    ("bpc of nothing", lambda: jpc.BPCEnergy(0.0, 0), VALUE, "both 0"),
    ("bpc's weights of nothing", lambda: bpc(forward_energy_weight=0, backward_energy_weight=0),
     VALUE, "both 0"),
    ("a pose of three", lambda: general(pose=lambda p, y, x: None), TYPE,
     r"make_step calls pose\(params, output, input, key\)"),
    ("a pose of NumPy's", lambda: general(pose=lambda p, y, x, k: np.asarray(y)), TYPE,
     "pose needs numbers that are not known"),
    ("a pose of no states", lambda: general(pose=lambda *a: ({}, {})), VALUE, "no states"),
    ("a transform of two", lambda: general(transform=lambda p, q: p), TYPE,
     r"make_step calls transform\(params\)"),
    ("a callback of two", lambda: fit(callbacks=[lambda a, b: 0]), TYPE,
     r"callbacks\[0\]\(record\)"),
    ("a look at a state by place", lambda: fit(inspect=lambda s: {}), TYPE, "fit calls inspect"),
    ("a look at words", lambda: fit(inspect=lambda **s: {"a": "text"}), TYPE, "inspect .*'text'"),
    ("a look that hides the loss", lambda: fit(inspect=lambda **s: {"loss": 1.0}), VALUE,
     "inspect returned 'loss': give it a name of its own"),
    ("a pace of nothing", lambda: fit(pace=lambda: 0), TYPE, r"fit calls pace\(seconds\)"),
    ("no number to stop by", lambda: fit(metrics=["model"], stop=jpc.EarlyStopping("model")),
     VALUE, "there are none"),
    ("a report in no folder", lambda: fit(report=NUL), VALUE, "report has a NUL"),
    ("checkpoints in no folder", lambda: jpc.Checkpoints(NUL), VALUE, "directory has a NUL"),
    ("a rule of one", lambda: fit(mesh=ONE_DEVICE, sharding=lambda n: None), TYPE,
     r"fit calls sharding\(name, array\)"),
    ("a rule of nothing", lambda: fit(mesh=ONE_DEVICE, sharding=lambda n, a: None), TYPE,
     "sharding must return a jax.sharding.PartitionSpec, got None"),
    ("a step of Python's floats", lambda: fit(lambda model, output, **r: dict(
        model=model, loss=float(output[0, 0]))), TYPE, "step needs numbers that are not known"),
    ("data as a list", lambda: fit(data=[X, Y]), TYPE, "is a tuple, no list"),
    ("a fit that is compiled", lambda: jax.jit(lambda x: fit(data=(x, Y)).state)(X), TYPE,
     "fit compiles the training step itself"),
    ("a gradient of a fit", lambda: jax.grad(lambda x: fit(data=(x, Y)).history[-1]["loss"])(X),
     TYPE, "fit compiles the training step itself"),
    ("load nothing at all", lambda: jpc.data.load(""), VALUE, "name is empty"),
    ("load a column by number", lambda: loaded(target=1), TYPE, "target must be names"),
    ("load without a letter", lambda: loaded(leave_out="a"), TYPE, "leave_out must be names"),
    ("load regression", lambda: loaded(regression="yes"), VALUE, "regression"),
    ("load a size", lambda: loaded(image_size="8"), VALUE, "image_size must be"),
    ("validation of none", lambda: loaded(validation=1e-9), VALUE, "at least one of them"),
    ("load from a number", lambda: jpc.data.load("mnist", root=3, download=False), TYPE, "root"),
]  # fmt: skip
ONE_DEVICE = jax.make_mesh((1,), ("a",))


class Penalises(jpc.AbstractPenalty):
    """By whatever is given."""

    what: object

    def penalty(self, params):
        return self.what


class Wired(jpc.AbstractNetworkEnergy):
    """A state that is predicted by nothing at all."""

    def network(self, params):
        return {0: jpc.Node(), 1: jpc.Node(params[0])}


class Answers(jpc.AbstractInference):
    """A method that returns something made of the nodes."""

    what: object

    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        return self.what(nodes)


ITSELF = Answers(lambda nodes: nodes)
SCHEMA = DIGITS.schema.as_dict()
SAMPLED = jpc.Langevin(t1=0.1, dt=0.05, preconditioner=[None, jnp.ones(3), jnp.ones(4), None])
EIGHTH = [
    *(
        (f"{name} in a folder of that name", call, VALUE, f"{name} begins with ~")
        for name, call in [
            ("directory", lambda: jpc.Checkpoints("~/runs")),
            ("report", lambda: fit(report="~/runs/1")),
            ("folder", lambda: jpc.load_run("~/runs/1")),
            ("out", lambda: jpc.bench.bench("deep", "smoke", "~/bench", run=False)),
        ]
    ),
    *(
        (f"bench {name}={value!r}"[:40], ft.partial(jpc.bench.bench, "deep", "smoke",
                                                    **(dict(run=False) | {name: value})),
         (VALUE, TYPE), name)
        for name, values in {"out": [None, 3, ""], "run": ["no", None], "progress": ["bar"],
                             "only": ["mlp", None], "minutes": ["1", NAN, -1.0, None]}.items()
        for value in values
    ),
    ("where is a list", lambda: jpc.data.where(["mnist"]), VALUE, "no data set"),
    ("fetch a list", lambda: jpc.data.fetch(["mnist"]), VALUE, "no data set"),
    ("fetch with progress", lambda: jpc.data.fetch("digits", progress="no"), VALUE, "progress"),
    ("fetch to nowhere", lambda: jpc.data.fetch("mnist", root=NUL), VALUE, "root has a NUL"),
    ("normalised by a word", lambda: jpc.data.published_schema("mnist", "no"), VALUE, "normalise"),
    ("a schema without a shape",
     lambda: jpc.data.read_schema({k: v for k, v in SCHEMA.items() if k != "shape"}), VALUE,
     "given has no 'shape'"),
    *(
        (f"a schema's {key} {value!r}", ft.partial(jpc.data.read_schema, SCHEMA | {key: value}),
         VALUE, f"{key} of a schema must be")
        for key, value in [("shape", "abc"), ("mean", [NAN]), ("mean", "0"), ("std", [0.0]),
                           ("std", [-1.0]), ("low", NAN), ("high", "1"), ("name", 3),
                           ("target_std", [0.0]), ("classes", {"0": 1})]
    ),
    ("decode words", lambda: DIGITS.schema.decode(WORDS), TYPE, "outputs must be"),
    ("a class of a record", lambda: jpc.Record(eqx.nn.Linear, length=3), TYPE, "fn must be"),
    ("a step beyond the end", lambda: jpc.GradientFlow(
        dfx.Euler(), 1.0, 20.0, dfx.ConstantStepSize()), VALUE,
     r"dt0 \(dt\) is a step, and must be at most t1 \(max_t1\), which is 1: got 20"),
    ("a first step beyond the end", lambda: step(max_t1=0.1, dt=20.0), VALUE, r"\(dt\) is a step"),
    ("a noisy step beyond the end", lambda: jpc.Langevin(t1=0.01, dt=1.0), VALUE, "dt is a step"),
    ("a preconditioner of others", lambda: infer(SAMPLED), VALUE,
     r"preconditioner has the shape \(3,\)"),
    ("neither matrices nor steps", lambda: jpc.Equilibrium(dense=0, max_steps=0), VALUE,
     "at least one chord or step"),
    ("a penalty of None", lambda: (PC + Penalises(None))(MODEL, NODES, CLAMPS), TYPE,
     r"terms\(...\)\[1\] is None"),
    ("terms of None and a number", lambda: Says([None, 1.0])(MODEL, NODES, CLAMPS), TYPE,
     r"terms\(...\)\[0\] is None"),
    ("a layer without parents", lambda: Wired()(MODEL, [None, FREE[0]], [X, None]), VALUE,
     "What predicts z_1 cannot take no parents"),
    ("a lesson of states", lambda: jpc.LocalEnergy()(MODEL, NODES, CLAMPS), TYPE,
     "pairs of a state and its error, .* z_0 is None"),
    ("a lesson of three", lambda: jpc.LocalEnergy()(MODEL, [(X, X, X)] * 4, CLAMPS), TYPE,
     "pairs of a state and its error, .* z_0 is "),
    ("a lesson of lists", lambda: jpc.LocalEnergy()(MODEL, [[X, X]] * 4, CLAMPS), TYPE,
     "pairs of a state and its error, .* z_0 is "),
    ("classes of one number", lambda: jpc.cross_entropy(1.0, 2.0), VALUE, "several classes"),
    ("a loss of an input", lambda: jpc.GraphEnergy({"y": ["x"]}, loss={"x": jpc.huber}), VALUE,
     "loss has 'x', which nothing predicts"),
    ("classes that are floats", lambda: fit(data=(X, LABELS * 1.0), classes=2), VALUE,
     r"output of float64, and classes= is .*labels.astype\(int\)"),
    *(
        (f"a method that returns nodes, {name}", call, TYPE, "method of inference returns must be")
        for name, call in [
            ("a step", lambda: step(inference=ITSELF)),
            ("inference", lambda: solve(inference=ITSELF)),
            ("a filter", lambda: filtered(inference=ITSELF)),
            ("a smoother", lambda: smoothed(inference=ITSELF)),
            ("a regime", lambda: jpc.measure_regime(PC, MODEL, NODES, CLAMPS, inference=ITSELF)),
            ("in errors", lambda: infer(jpc.InErrors(ITSELF))),
        ]
    ),
    ("a method without numbers", lambda: general(inference=Answers(
        lambda nodes: jpc.Inferred(nodes, ENDED, None))), TYPE, "stats must be"),
    ("a method's word", lambda: general(inference=Answers(
        lambda nodes: jpc.Inferred(nodes, "ok", {}))), TYPE, "result must be"),
    *(
        (f"a guess that is missing, {name}", ft.partial(jpc.AmortisedEnergy(), MODEL[:2], *given),
         VALUE, "one of them is None")
        for name, given in [
            ("inside", ([X, None, Z[1]], [None, Z[0], Z[1]])),
            ("at first", ([None, Z[0], Z[1]], [None, Z[0], Z[1]])),
            ("compared", ([X, Z[0], None], [None, None, Z[1]])),
            ("compared last", ([X, Z[0], None], [None, Z[0], None])),
        ]
    ),
    ("a key as a metric", lambda: fit(test=(X, Y), evaluate=lambda **k: {"key": k["key"]}), TYPE,
     "evaluate must return a dictionary of arrays of numbers"),
]  # fmt: skip

TABLE = {
    "methods": EVERY_METHOD,
    "states": STATES,
    "kinds": KINDS,
    "times": TIMES,
    "counts": COUNTS,
    "energies": ENERGIES,
    "nonsense": NONSENSE,
    "fit": FITS,
    "doors": DOORS,
    "pieces": PIECES,
    "later": LATER,
    "third": THIRD,
    "fourth": FOURTH,
    "fifth": FIFTH,
    "sixth": SIXTH,
    "seventh": SEVENTH,
    "eighth": EIGHTH,
}
# They take seconds to compile, and others like them are there.
SELDOM = {"third: times beyond the end", "kinds: learn by line search"}
SELDOM |= {"nonsense: counts of a step", "nonsense: a step's negative targets"}
SELDOM |= {"seventh: half of an example's classes"}
CASES = [
    pytest.param(
        *case,
        id=f"{group}: {' '.join(name.split())[:60]}",
        marks=[pytest.mark.slow] * (f"{group}: {name}" in SELDOM),
    )
    for group, cases in TABLE.items()
    for name, *case in cases
]


@pytest.fixture(autouse=True)
def nowhere_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("call", "kind", "words"), CASES)
def test_a_bad_call_is_answered_in_one_line(call, kind, words):
    with pytest.raises(kind) as caught:
        jax.block_until_ready(jax.tree.leaves(call()))
    said = str(caught.value)
    if isinstance(caught.value, RUNTIME):  # Without the stack around it.
        said = said.rpartition("EquinoxRuntimeError: ")[2].partition("\n\n")[0]
    said = said.partition("\n-----")[0]  # Or JAX's note on its own frames.
    assert re.search(words, said) and "\n" not in said, said


@pytest.mark.parametrize(
    "number", [2, 2.0, np.float32(2), np.int64(2), np.asarray(2.0), jnp.asarray(2.0)]
)
def test_any_kind_of_number_is_one(number):
    """Python's, NumPy's, JAX's, also whole ones."""
    for made in (
        jpc.PCEnergy(precision=number) + jpc.WeightDecay(number),
        number * jpc.PCEnergy(precision=[number, 1.0, number]) + jpc.GaussianPrior(number),
        jpc.BPCEnergy(number),
        jpc.Layer(jnp.tanh, scale=number),
        jpc.GradientFlow(t1=number, dt0=number, rtol=number),
        jpc.Langevin(t1=number, dt=number, temperature=number, preconditioner=number),
        jpc.Equilibrium(rtol=number),
        jpc.Nudged(number, strength=number),
        jpc.Descent(number, rtol=number),
        jpc.FixedPrediction(3, number),
    ):
        assert isinstance(made, jpc.AbstractEnergy | jpc.AbstractInference | jpc.Layer)


def test_what_is_traced_is_a_number():
    """Precisions can be learned, and mapped over; the value is 2 F(1) for a precision of 2."""
    value = lambda p: jpc.PCEnergy(precision=p)(MODEL, NODES, CLAMPS)
    one, slope = jax.jit(jax.value_and_grad(value))(1.0)
    np.testing.assert_allclose(slope, one, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(value)(jnp.arange(3.0)), one * np.arange(3), rtol=1e-6)
    steps = lambda dt: infer(jpc.Descent(dt, 3)).nodes[1]
    assert jnp.all(jnp.isfinite(jax.jit(jax.vmap(steps))(jnp.array([0.1, 0.2]))))


def test_less_than_nothing_has_a_way_of_its_own():
    """What a constructor refuses can be written: an energy is subtracted."""
    plain = PC(MODEL, NODES, CLAMPS)
    np.testing.assert_allclose((-1.0 * PC)(MODEL, NODES, CLAMPS), -plain)
    less = (PC - jpc.WeightDecay(0.5))(MODEL, NODES, CLAMPS)
    decay = jpc.WeightDecay(0.5)(MODEL, NODES, CLAMPS)
    np.testing.assert_allclose(less, plain - decay)
    negative = jpc.Node(MODEL[0], (0,), precision=-1.0)
    assert negative.cost(Z[0][0], Z[0][0] + 1, None) < 0


def test_a_record_of_fewer_steps_takes_fewer():
    """As it says: more steps than there is room for are not taken."""
    ended = infer(jpc.Descent(0.1, 20), record=jpc.Record(length=3))
    assert ended.trajectory.ts.shape == (4, BATCH) and jnp.all(ended.stats["steps"] == 3)
    for got, last in zip(FREE, ended.trajectory.values[1:3], strict=True):
        np.testing.assert_array_equal(last[0], got)
    same = infer(jpc.Descent(0.1, 3))
    np.testing.assert_allclose(ended.nodes[1], same.nodes[1], rtol=1e-6)


def test_a_gap_of_nothing_is_none():
    """Targets that are predicted exactly leave nothing to learn."""
    found = jpc.equilibrium_gap((MODEL, None), Z, Z[-1], X)
    assert found["gradient_error"] == 0 and not found["layer_gradient_errors"].any()


def test_accuracy_of_what_is_traced_and_not_finite_is_none():
    assert jnp.isnan(jax.jit(jpc.compute_accuracy)(Y, Y.at[0, 0].set(NAN)))


@pytest.mark.parametrize("solver", [dfx.Euler(), pytest.param(dfx.Heun(), marks=pytest.mark.slow)])
def test_steps_can_be_given_one_by_one(solver):
    """Ten of equal length are a constant step."""
    same = jpc.GradientFlow(solver, 1.0, 0.1, dfx.ConstantStepSize())
    found, expected = infer(jpc.GradientFlow(solver, 1.0, controller=STEPS)), infer(same)
    np.testing.assert_allclose(found.nodes[1], expected.nodes[1], rtol=1e-6)
    assert jnp.all(found.stats["steps"] == 10)


def test_flags_and_words_of_numpy_are_fixed():
    """As Python's are: a program is of one of them, and does not take them."""
    given = (np.True_, np.str_("ce"), np.float32(2))
    fixed, arrays = split(given)
    assert arrays == [None, None, 2.0] and join(fixed, arrays) == given


@pytest.mark.parametrize("rows", [None, [True, True, False, False]])
def test_targets_count_where_they_are_given(rows):
    """Of examples that are not given nothing can be wrong."""
    given = lambda y: y if rows is None else jpc.Masked(y, jnp.broadcast_to(WHICH, y.shape))
    WHICH = None if rows is None else jnp.array(rows)[:, None]
    wrong = lambda y: [bool(bad) for bad in unfit("y", [jpc.cross_entropy], given(y)).values()][
        -2:
    ]
    assert wrong(Y) == [False, False]
    assert wrong(-Y) == [True, True] and wrong(2 * Y) == [False, True]
    late = rows is None
    assert wrong(Y.at[3].set(5.0)) == [False, late] and wrong(Y.at[3].set(-Y[3])) == [late, late]


def test_a_solver_of_half_steps_adapts():
    """Its error estimate is that of two half steps against one."""
    assert jpc.GradientFlow(dfx.HalfSolver(dfx.Euler())).solver


def test_params_may_hold_what_is_no_callable():
    """For another energy, say: a sum of them has the same parameters."""
    assert GRAPH(FNS | {"size": X}, *POSED) == GRAPH(FNS, *POSED)


WRAPPED = [pytest.param(eqx.filter_jit, marks=pytest.mark.slow), eqx.filter_checkpoint]


@pytest.mark.parametrize("how", WRAPPED)
def test_layers_may_be_wrapped_where_their_parameters_are_seen(how):
    """A layer of its own program is the same function, and learns the same."""
    wrapped = [how(layer) for layer in MODEL]
    state = SGD.init((eqx.filter(wrapped, eqx.is_array), None))
    found, same = quick(model=wrapped, state=state), quick()
    for got, expected in zip(
        *(jax.tree.leaves(eqx.filter(r["model"], eqx.is_array)) for r in (found, same)),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    fixed = jax.jit(lambda z: jnp.tanh(2 * z))  # It has no parameters.
    assert jnp.isfinite(quick(model=[fixed, *MODEL], state=STATE)["loss"])
