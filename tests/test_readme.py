"""The code that people paste first, of the README, the start and the paper, as it is printed."""

import ast
import inspect
import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
import pytest

import jpc
import jpc.bench
import jpc.data
import jpc.experiments

ROOT = Path(__file__).parents[1]
README, START = (
    re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    for page in ("README.md", "docs/index.md")
)

EXAMPLE = re.compile(r"\*\*Example:\*\*\n\n```python\n(.*?)```", re.DOTALL)

PC_STEP = """
from jpc import make_pc_step

result = make_pc_step(
    model,        # an equinox model with callable layers
    optim,        # optax optimiser
    opt_state,    # optimiser state
    y,            # some target (observation)
    x             # optional input (prior)
)

# updated model and optimiser
model = result["model"]
optim, opt_state = result["optim"], result["opt_state"]
"""

HPC_STEP = """
from jpc import make_hpc_step

result = make_hpc_step(
    generator,          # generative model
    amortiser,          # model for inference amortisation
    optims,             # optimisers, one for each model
    opt_states,         # optimisers' state
    y,
    x
)
"""

CUSTOM_STEP = """
import jpc

# 1. initialise activities with a feedforward pass
activities = jpc.init_activities_with_ffwd(model, x)

# 2. run inference to equilibrium (Eq. 2)
equilibrated_activities = jpc.solve_inference(
    params=(model, None),
    activities=activities,
    output=y,
    input=x
)

# 3. update parameters at the activities' solution (Eq. 3)
update_result = jpc.update_params(
    params=(model, None),
    activities=equilibrated_activities,
    optim=optim,
    opt_state=opt_state,
    output=y,
    input=x
)
"""


def run(code, **names):
    exec(code, names)
    return names


def loss(model, x, y):
    return jpc.test_discriminative_pc(model, y, x)[0]


def prepare(model):
    optim = optax.adam(1e-3)
    return optim, optim.init((eqx.filter(model, eqx.is_array), None))


def assert_close(tree, expected):
    arrays = [jax.tree.leaves(eqx.filter(t, eqx.is_array)) for t in (tree, expected)]
    assert all(jnp.allclose(a, b, rtol=1e-10, atol=1e-10) for a, b in zip(*arrays, strict=True))


@pytest.fixture(scope="module")
def supervised():
    model = jpc.make_mlp(jr.key(0), 4, 8, 3, 2, "tanh")
    optim, opt_state = prepare(model)
    x, y = jr.normal(jr.key(1), (5, 4)), jr.normal(jr.key(2), (5, 2))
    return dict(model=model, optim=optim, opt_state=opt_state, x=x, y=y)


@pytest.fixture(scope="module")
def hybrid():
    generator = jpc.make_mlp(jr.key(0), 2, 8, 3, 4, "tanh")
    amortiser = jpc.make_mlp(jr.key(1), 4, 8, 3, 2, "tanh")
    optims, opt_states = zip(prepare(generator), prepare(amortiser), strict=True)
    x, y = jr.normal(jr.key(2), (5, 2)), jr.normal(jr.key(3), (5, 4))
    models = dict(generator=generator, amortiser=amortiser)
    return dict(**models, optims=optims, opt_states=opt_states, x=x, y=y)


def test_start_begins_with_the_readme():
    assert len(README) == 1 and START[0] == README[0] and len(START) == 2


def test_readme_step_lowers_the_loss():
    names = run(README[0])
    model, x, y = names["model"], names["x"], names["y"]
    assert loss(model, x, y) < names["result"]["loss"]


def test_readme_step_is_the_papers():
    paper, readme = ([ast.dump(node) for node in ast.parse(c).body] for c in (PC_STEP, README[0]))
    assert readme[-3:] == paper[-3:]


def test_epochs_of_the_start_learn_to_read():
    assert run(START[1])["accuracy"] > 90


def test_examples_of_docstrings():
    """Each runs, and what it computes is known otherwise: by hand, or by another method."""
    public = {name: getattr(jpc, name) for name in dir(jpc) if not name.endswith("_pc_params")}
    found = {name: EXAMPLE.search(inspect.getdoc(value) or "") for name, value in public.items()}
    examples = {name: run(match.group(1)) for name, match in found.items() if match}
    step, solved, learned = (
        examples[name] for name in ("make_pc_step", "solve_inference", "update_params")
    )
    assert loss(step["model"], step["x"], step["y"]) < step["result"]["loss"]
    data = dict(y=solved["y"], x=solved["x"])
    before, after, then = (
        jpc.pc_energy_fn((model, None), activities, **data)
        for model, activities in (
            (solved["model"], solved["activities"]),
            (solved["model"], solved["inferred"]),
            (learned["model"], solved["inferred"]),
        )
    )
    assert then < after < before
    assert examples["fit"]["losses"] == sorted(examples["fit"]["losses"], reverse=True)
    exact, flow = examples["Equilibrium"], examples["GradientFlow"]
    assert jnp.all(exact["converged"]) and jnp.all(flow["converged"])
    for a, b in zip(exact["inferred"].nodes[1:3], flow["inferred"].nodes[1:3], strict=True):
        assert jnp.allclose(a, b, atol=2e-3)
    chain = examples["PCEnergy"]
    wrong = 0.1 * loss(chain["model"], chain["x"], chain["y"])
    assert jnp.allclose(chain["value"], wrong, rtol=1e-10)
    graph = examples["GraphEnergy"]
    h = graph["nodes"]["h"]
    errors = graph["given"]["label"] - jax.vmap(graph["params"]["label"])(h)
    assert jnp.allclose(graph["value"], 0.5 * jnp.mean(jnp.sum(errors**2, axis=1)))
    assert jnp.allclose(examples["regime"]["angle"], 0, atol=1e-4)
    x, layers = examples["make_mlp"]["x"], examples["make_mlp"]["model"]
    assert jnp.allclose(examples["make_mlp"]["hidden"], layers[0](x)) and len(layers) == 3


SHARED = re.compile(
    r"\*\*Example\*\*, after \[these lines\][^\n]*\n\n```python\n(.*?)```", re.DOTALL
)
(LINES,) = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs/api/index.md").read_text(), re.M | re.S
)
NO_EXAMPLE = {"Clamps", "Layers", "Loss", "Nodes", "Scalar", "TYPE_CHECKING", "lazily"}  # Types.


def public_names():
    names = [name for name in dir(jpc) if not name.startswith("_")]
    return [name for name in names if not inspect.ismodule(getattr(jpc, name))]


@pytest.fixture(scope="module")
def shared():
    return run(LINES)


LONG = {"measure_regime", "equilibrium_gap", "FlowOptions", "test_generative_pc", "MonteCarlo"}
LONG |= {"compute_infer_energies", "AbstractInference", "Langevin", "make_mcpc_step", "make_cnn"}
LONG |= {"BPCEnergy", "Checkpoints", "LocalEnergy", "Nudged", "test_hpc", "FixedPrediction", "ZIL"}
LONG |= {"Minimise", "Learned", "filter_sequence", "InErrors", "make_tpc_step", "Backprop"}
LONG |= {"Fitted", "finish", "make_bpc_step", "learn", "smooth_sequence", "make_hpc_step"}
LONG |= {"compute_linear_equilib_energy_grads", "update_linear_equilib_energy_params"}
LONG |= {"compute_hpc_param_grads", "make_step", "make_ipc_step", "Record", "Trajectory"}
LONG |= {"compute_linear_equilib_rescaling", "compute_linear_activity_solution", "Masked"}
LONG |= {"update_bpc_params", "compute_bpc_param_grads", "make_residual_mlp", "get_t_max"}
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in LONG))
    for name in sorted(set(public_names()) - NO_EXAMPLE)
]


def test_examples_that_wait_are_there():
    for name in LONG:
        text = inspect.getdoc(getattr(jpc, name)) or ""
        (code,) = EXAMPLE.findall(text) or SHARED.findall(text)
        assert ast.parse(code).body


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_an_example(name, shared, tmp_path, monkeypatch):
    """It runs, what it computes is finite, and a number behind it is what the line computes."""
    text = inspect.getdoc(getattr(jpc, name)) or ""
    if EXAMPLE.search(text):
        return  # By itself: see above.
    monkeypatch.chdir(tmp_path)
    (code,) = SHARED.findall(text)
    names = run(code, **shared)
    for variable, said in re.findall(r"^(\w+) = .*  # (-?\d+\.\d+)$", code, re.MULTILINE):
        last = 10.0 ** -len(said.partition(".")[2])
        assert abs(float(names[variable]) - float(said)) <= 0.51 * last
    made = [value for key, value in names.items() if value is not shared.get(key)]
    arrays = [leaf for leaf in jax.tree.leaves(made) if eqx.is_inexact_array(leaf)]
    assert all(bool(jnp.all(jnp.isfinite(array))) for array in arrays)


def of_modules():
    """The functions and classes of the other public modules; those that train take long."""
    for module in (jpc.data, jpc.bench, jpc.experiments):
        for name in dir(module):
            value = getattr(module, name)
            if not (name.startswith("_") or name in ("Any", "lazily")) and callable(value):
                marks = [pytest.mark.slow] * (name in ("bench", "reproduce"))
                yield pytest.param(value, id=name, marks=marks)


@pytest.mark.parametrize("value", [*of_modules()])
def test_modules_have_examples_too(value, tmp_path, monkeypatch):
    """They run in an empty folder, and what their comments say is what they compute."""
    monkeypatch.chdir(tmp_path)
    (code,) = EXAMPLE.findall(inspect.getdoc(value) or "")
    names = run(code)
    if value is jpc.data.load:
        assert [part.shape for part in names["digits"].train] == [(1293, 64), (1293,)]
    if value is jpc.data.is_own:
        assert names["own"] and not names["published"]
    if value is jpc.data.published_schema:
        assert names["shape"] == (1, 28, 28) and round(float(names["mean"][0]), 4) == 0.1307
    if value is jpc.data.DataError:
        assert "line 3" in names["said"]
    if value in (jpc.bench.bench, jpc.experiments.reproduce):
        assert names["page"].is_file()


def documented():
    for module in (jpc, jpc.data, jpc.bench, jpc.experiments):
        for name in dir(module):
            value = getattr(module, name)
            if not name.startswith("_") and (inspect.isfunction(value) or inspect.isclass(value)):
                yield pytest.param(inspect.getdoc(value) or "", id=name)


@pytest.mark.parametrize("text", [*documented()])
def test_docstrings_have_no_code_but_examples(text):
    """What is not an example is not run."""
    run = [*EXAMPLE.findall(text), *SHARED.findall(text)]
    assert len(run) == len(re.findall(r"^```\w+$", text, re.MULTILINE))
    left = EXAMPLE.sub("", SHARED.sub("", text))
    assert not re.search(r"^[^-\s][^\n]*\n\n {4,}\S", left, re.MULTILINE)


def test_paper_step_lowers_the_loss(supervised):
    names = run(PC_STEP, **supervised)
    x, y = supervised["x"], supervised["y"]
    assert names["result"]["loss"] == loss(supervised["model"], x, y)
    assert loss(names["model"], x, y) < names["result"]["loss"]


def test_paper_custom_step_is_the_step(supervised):
    update = run(CUSTOM_STEP, **supervised)["update_result"]
    result = run(PC_STEP, **supervised)["result"]
    assert_close(update["model"], result["model"])
    assert_close(update["opt_state"], result["opt_state"])


def test_paper_hybrid_step_is_a_step_from_the_amortiser(hybrid):
    result = run(HPC_STEP, **hybrid)["result"]
    generator, amortiser, x, y = (hybrid[name] for name in ("generator", "amortiser", "x", "y"))
    guesses = jpc.init_activities_with_amort(amortiser, generator, y)
    expected = jpc.make_pc_step(
        generator,
        hybrid["optims"][0],
        hybrid["opt_states"][0],
        y,
        x,
        activities=guesses[1:],
        max_t1=300,
    )
    assert_close(result["generator"], expected["model"])


def test_paper_hybrid_step_teaches_the_amortiser(hybrid):
    result = run(HPC_STEP, **hybrid)["result"]
    x, y, inferred = hybrid["x"], hybrid["y"], result["activities"][1]
    before, after = (
        jpc.hpc_energy_fn(amortiser, inferred, result["activities"][0], y, x)
        for amortiser in (hybrid["amortiser"], result["amortiser"])
    )
    assert after < before
