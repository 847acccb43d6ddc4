"""What the command can train with besides plain predictive coding, and what it says of it."""

import dataclasses
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import slowly
from jaxtyping import install_import_hook

import jpc
import jpc.data
from jpc._fit.run import Pace

with install_import_hook("jpc.cli", "beartype.beartype"):
    from jpc.cli import advice, build, config as config_module, steps, variants
    from jpc.cli.check import make_config
    from jpc.cli.config import ConfigError
    from jpc.cli.diagnose import Diagnosis, find_place, follow
    from jpc.cli.rules import rule_of, why_no_regime
    from jpc.cli.tasks import make_task

TINY = dict(depth=2, width=6)


@pytest.fixture(autouse=True, scope="module")
def single_precision():
    """As the command has it."""
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.fixture(scope="module")
def digits():
    whole = jpc.data.load("digits", flatten=True)
    images, labels = whole.train
    return dataclasses.replace(whole, train=(images[:32], labels[:32]))


def make(digits, rule="pc", task="discriminative", network=TINY, **tables):
    given = dict(data=dict(task=task), training=dict(rule=rule, batch_size=8), network=network)
    return make_task(make_config(given | tables), digits)


def batch_of(task, digits):
    images, labels = (array[:8] for array in digits.train)
    pair = task.pair(jnp.asarray(images), jax.nn.one_hot(labels, 10))
    return dict(zip(("input", "output"), pair, strict=True))


def check_same(ours, theirs):
    leaves = [jax.tree.leaves(eqx.filter(tree, eqx.is_array)) for tree in (ours, theirs)]
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def _energies(tables):
    options = build.make_options(make_config(tables))
    return [options[name] for name in options if name == "energy"]


class TestChoices:
    @pytest.mark.parametrize("rule", config_module.RULES)
    @pytest.mark.parametrize("task", config_module.TASKS)
    def test_a_task_is_taken_or_refused_with_a_reason(self, rule, task):
        own = dict(dataset="own.csv") if task == "regression" else {}
        tables = dict(data=dict(task=task, **own), training=dict(rule=rule))
        try:
            config = make_config(tables)
        except ConfigError as error:
            assert str(error).startswith(f"--rule {rule} goes with --task ")
            assert f", not {task}: " in str(error)
        else:
            assert task in rule_of(config).tasks
            assert config.inference.method in rule_of(config).methods

    @pytest.mark.parametrize(
        ("tables", "message"),
        [
            (dict(training=dict(rule="ipc"), inference=dict(method="heun")), "not heun"),
            (dict(training=dict(rule="epc"), inference=dict(method="equilibrium")), "not equil"),
            (dict(training=dict(rule="precision"), energy=dict(loss="ce")), "squared errors"),
            (dict(training=dict(rule="precision"), energy=dict(output_precision=1)), "leave out"),
            (dict(training=dict(rule="precision"), energy=dict(stiffness=10.0)), "leave out"),
            (dict(training=dict(rule="backprop"), energy=dict(activity_decay=1)), "of activities"),
            (dict(inference=dict(method="descent", temperature=1)), "--rule mcpc"),
            (dict(training=dict(strength=1)), "--rule nudged"),
            (dict(training=dict(rule="nudged", sign="positive")), "give --beta"),
            (dict(training=dict(rule="nudged", beta=0.1, nudge_own=2)), "leave out --beta"),
            (dict(training=dict(fixed_steps=3)), "of --rule fixed"),
            (dict(training=dict(rule="fixed", fixed_dt=0.5)), "give --fixed-steps"),
            (dict(training=dict(rule="fixed", fixed_steps=3, fixed_dt=2)), "below 2"),
            (dict(training=dict(rule="graph")), "in Python only, jpc.GraphEnergy"),
            (dict(inference=dict(method="descent", reduction="mean")), "is for --inference heun"),
            (dict(network=dict(kind="resnet18", pool="max")), "is for --network vgg5"),
            (dict(training=dict(patience=2)), "--validation 0.1"),
            (dict(data=dict(task="generative"), energy=dict(loss="ce")), "bernoulli or poisson"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, tables, message):
        with pytest.raises(ConfigError, match=message):
            make_config(tables)

    def test_learning_rates_are_those_of_the_rule(self):
        rate = lambda **tables: make_config(tables).optimiser.learning_rate
        assert rate() == 5e-3
        assert rate(training=dict(rule="ipc")) == 5e-4
        assert rate(network=dict(param_type="mupc")) == 0.05
        assert rate(training=dict(rule="ipc"), optimiser=dict(learning_rate=1)) == 1.0


class TestSteps:
    """Each rule takes the step of the library."""

    @pytest.mark.parametrize("task", [slowly("discriminative"), slowly("generative"), "hybrid"])
    def test_a_step_takes_the_method_that_is_carried_along(self, digits, task):
        """As `fit` gives it to all steps but the first, if inference is that by default."""
        task = make(digits, task=task)
        given = task.state() | batch_of(task, digits) | dict(key=jr.key(0))
        first = eqx.filter_eval_shape(task.step, **given)["inference"]
        assert isinstance(first, jpc.Equilibrium)
        then = eqx.filter_eval_shape(task.step, **given, inference=first)["inference"]
        assert jax.tree.structure(then) == jax.tree.structure(first)

    def test_backpropagation_is_that_of_the_loss(self, digits):
        """Against `jax.grad` of the cross-entropy, by a step of plain descent."""
        plain = dict(kind="sgd", learning_rate=0.5, schedule="constant")
        task = make(digits, "backprop", optimiser=plain)
        state, batch = task.state(), batch_of(task, digits)

        def loss(model):
            predictions = jpc.feedforward_batch(model, batch["input"])[-1]
            return jnp.mean(optax.softmax_cross_entropy(predictions, batch["output"]))

        grads = eqx.filter_jit(eqx.filter_grad(loss))(state["model"])
        expected = eqx.apply_updates(state["model"], jax.tree.map(lambda g: -0.5 * g, grads))
        new = eqx.filter_jit(task.step)(**batch, key=None, **state)
        check_same(new["model"], expected)
        np.testing.assert_allclose(new["loss"], loss(state["model"]), rtol=1e-5)

    def test_others_are_those_of_the_library(self):
        """What is called, with what."""
        config = lambda rule, **inference: make_config(
            dict(training=dict(rule=rule), inference=dict(steps=4, dt=0.05, **inference))
        )
        method = jpc.Descent(0.05, 4)
        learn = variants.make_learner(config("ipc"), method)
        assert learn.func is variants._learn_at_once and learn.keywords["steps"] == 4
        assert isinstance(variants.wrap_inference(config("epc"), method), jpc.InErrors)
        assert isinstance(
            variants.make_rule(make_config(dict(training=dict(rule="zil"))), method), jpc.ZIL
        )
        nudge = dict(rule="nudged", beta=0.5, sign="negative", strength=3)
        nudged = variants.make_rule(make_config(dict(training=nudge)), method)
        assert (nudged.beta, nudged.sign, nudged.kind) == (0.5, "negative", "target")
        assert (nudged.strength, nudged.inference) == (3.0, method)
        limit = dict(rule="nudged", nudge_chords=3, nudge_shared=0, nudge_own=2)
        nudged = variants.make_rule(make_config(dict(training=limit)), method)
        assert (nudged.chords, nudged.shared, nudged.own) == (3, None, 2)
        steps = dict(rule="fixed", fixed_steps=20, fixed_dt=0.5)
        fixed = variants.make_rule(make_config(dict(training=steps)), method)
        assert (fixed.steps, fixed.dt) == (20, 0.5)
        flow = dict(method="euler", reduction="mean")
        assert (
            build.make_inference(make_config(dict(inference=flow)).inference).reduction == "mean"
        )
        samples = variants.make_learner(config("mcpc", temperature=2), method).keywords[
            "inference"
        ]
        assert (samples.warm, samples.samples) == (method, 2)
        assert (samples.sampler.t1, samples.sampler.temperature) == (0.2, 2.0)

    def test_energies_that_are_no_options(self):
        """Causes that are sampled have a prior; a precision is learned."""
        tables = dict(data=dict(task="unsupervised"), energy=dict(weight_decay=0.1))
        (energy,) = _energies(tables | dict(training=dict(rule="mcpc")))
        leaves = jax.tree.leaves(energy, is_leaf=lambda x: isinstance(x, jpc.GaussianPrior))
        assert any(isinstance(leaf, jpc.GaussianPrior) for leaf in leaves)
        (energy,) = _energies(tables | dict(training=dict(rule="precision")))
        model = variants.wrap_output(
            make_config(dict(training=dict(rule="precision"))), [abs, abs]
        )
        assert model[0] is abs and isinstance(model[1], jpc.Precise)

    def test_bidirectional_networks_are_diagnosed(self, digits):
        task = make(digits, "bpc", "generative", inference=dict(steps=3))
        state = task.state()
        found = Diagnosis(task)(state)["diagnosis"]
        assert found["course"]["energies"].shape == (4, 2)
        np.testing.assert_allclose(found["course"]["energies"][-1], found["energies"])
        assert len(task.pictures(state)) == 10

    def test_regime_is_that_of_the_library(self, digits):
        """On the same few examples."""
        task = make(digits, "nudged")
        setting, state, batch = task.setting, task.state(), batch_of(task, digits)
        found = find_place(task.problem(state, *batch.values()), setting, {}, jnp.zeros(()))
        named = dict(setting.options, inference=jpc.Nudged(strength=1.0))
        expected = jpc.regime((state["model"], None), **batch, **named)
        for name in found:
            np.testing.assert_allclose(found[name], np.mean(expected[name]), rtol=1e-4)
        assert {"mean_eigenvalue", "angle", "relaxed"} <= found.keys()
        assert "no input" in why_no_regime(make_config(dict(data=dict(task="unsupervised"))))

    def test_energies_of_errors_start_at_the_loss(self, digits):
        """Without errors all of the energy is at the output; then it falls."""
        task = make(digits, "epc", inference=dict(steps=3))
        problem = task.problem(task.state(), *batch_of(task, digits).values())
        setting = task.setting
        course = follow(problem, setting.config, setting.inference, setting.options)["energies"]
        assert np.all(course[0][:-1] == 0) and np.all(course[-1][:-1] > 0)
        assert np.sum(course[-1]) < np.sum(course[0])


class TestDefaults:
    def test_descent_of_images_finds_its_steps(self):
        """With weights at which steps of 0.1 diverge."""
        given = dict(method="descent"), dict(method="descent", dt=0.1)
        tables = [dict(data=dict(task="generative"), inference=i) for i in given]
        search, fixed = (build.make_inference(make_config(t).inference) for t in tables)
        layers = [lambda z: 20 * z] * 2
        clamps = [jnp.ones((2, 4)), None, jnp.ones((2, 4))]
        start, energy = [None, jnp.zeros((2, 4)), None], jpc.PCEnergy()
        reached = search(energy, layers, start, clamps).nodes
        assert energy(layers, reached, clamps) < energy(layers, start, clamps)
        with pytest.raises(RuntimeError, match=r"diverged|not finite"):
            fixed(energy, layers, start, clamps)

    def test_pixels_stay_in_range_for_losses_of_probabilities(self):
        config = make_config(dict(data=dict(task="generative"), energy=dict(loss="bernoulli")))
        data = build.load_data(config, progress=False)
        assert data.train[0].min() == 0 and data.train[0].max() == 1
        made = make_task(config, data).setting.images(jnp.array([-100.0, 100.0]))
        np.testing.assert_allclose(made, [0.0, 1.0], atol=1e-6)
        assert build.load_data(make_config({}), progress=False).train[0].min() < 0


class TestTraining:
    def test_validation_set_stops(self):
        """A state that is best in the second epoch by the one, and in the last by the other."""

        def step(w, output, input, key):
            return dict(w=w + 0.5)

        def evaluate(w, output, input, key):
            return dict(loss=jnp.mean((w - output) ** 2))

        x, far, near = jnp.zeros((4, 1)), jnp.full((4, 1), 9.0), jnp.full((4, 1), 1.0)
        fitted = jpc.fit(
            step,
            dict(w=jnp.zeros(())),
            (x, far),
            epochs=9,
            batch_size=4,
            key=jr.key(0),
            metrics=(),
            test=(x, far),
            validation=(x, near),
            evaluate=evaluate,
            stop=jpc.EarlyStopping("val_loss", patience=2),
            progress=False,
        )
        assert float(fitted.state["w"]) == 1.0
        assert [r["val_loss"] for r in fitted.history] == [0.25, 0.0, 0.25, 1.0]
        assert [r["test_loss"] for r in fitted.history[:2]] == [72.25, 64.0]

    def test_patience_goes_by_the_headline(self, digits):
        patient = dict(batch_size=8, patience=4)
        for task, minimise in (("discriminative", False), ("unsupervised", True)):
            data = dict(task=task, validation=0.1)
            config = make_config(dict(data=data, training=patient, network=TINY))
            stop = steps.make_stop(make_task(config, digits))
            assert (stop.metric[:4], stop.minimise, stop.patience) == ("val_", minimise, 4)
        assert steps.make_stop(make(digits)) is None

    def test_validation_set_that_is_too_large(self):
        with pytest.raises(ConfigError, match="--validation: validation=2000"):
            build.load_data(make_config(dict(data=dict(validation=2000))), progress=False)

    def test_shifted_images_have_black_edges(self, digits):
        images = jnp.asarray(digits.train[0])
        moved = steps.augment(jr.key(0), images, digits, flip=False)
        assert moved.shape == images.shape and not np.allclose(moved, images)
        pictures, before = digits.restore(moved), digits.restore(images)
        assert np.all(np.isin(np.round(16 * pictures), np.round(16 * before)))
        assert np.sum(pictures) <= np.sum(before) + 1e-3
        seen = []
        task = make(digits, data=dict(augment="shift"))
        task.step = lambda **given: seen.append(given) or {}
        steps.make_step(task)(input=images, output=0, key=jr.key(1))
        assert seen[0]["output"] == 0 and not np.allclose(seen[0]["input"], images)


class TestAdvice:
    def test_long_runs_are_announced(self, capsys):
        config = make_config(dict(network=dict(width=512), training=dict(batch_size=8)))
        advice.tell_pace(config, 32, 600.0)
        said = capsys.readouterr().err
        assert "an epoch takes about 40 min here, all 20 about 13 h" in said
        assert "--width 128" in said and "--epochs 2" in said
        advice.tell_pace(config, 32, 1e-3)
        assert capsys.readouterr().err == ""

    def test_pace_is_told_once(self):
        pace = Pace((told := []).append)
        for steps_taken, seconds in ((1, 60.0), (2, 4.0), (2, 4.0), (5, 5.0)):
            pace.learn(steps_taken, seconds)
        assert told == [2.0]  # Without the first, which was compiled.

    def test_few_converged_examples_are_said(self):
        config = make_config({})
        found = dict(converged=0.06, certificate=dict(gradient_error=0.8))
        (line,) = advice.advise(config, dict(diagnosis=found))
        assert line.startswith("only 6 % of the examples reached equilibrium (the learning")
        assert "--steps 100" in line and "--output-precision 0.01" in line
        assert advice.advise(config, dict(diagnosis=dict(found, converged=0.9))) == []
        close = dict(found, certificate=dict(gradient_error=0.02))
        assert advice.advise(config, dict(diagnosis=close)) == []

    @pytest.mark.parametrize("rule, tried", [("pc", " or --inference equilibrium."), ("epc", ".")])
    def test_descent_that_ends_early(self, rule, tried):
        """It has no tolerance that an example could meet: the gradient counts, if it is known."""
        given = dict(inference=dict(method="descent", steps=2), training=dict(rule=rule))
        config = make_config(given)
        known = dict(gradient_error=0.68, found=1.0)
        said = lambda **other: advice.advise(
            config, dict(diagnosis=dict(converged=0.0, certificate=known | other))
        )
        (line,) = said()
        assert line == (
            "descent ended short of equilibrium (the learning gradient is off by 68 %). "
            f"Try --steps 10{tried}"
        )
        assert said(found=0.1) == said(gradient_error=0.06) == said(gradient_error=None) == []
        (line,) = said(found=0.1, excess=12.0, energy=16.0)  # A state with less energy is known.
        assert "(75 % of its energy or more is left). Try --steps 10 or --learning-rate" in line
        assert said(found=0.1, excess=1.0, energy=16.0) == []

    def test_durations(self):
        said = [advice.duration(s) for s in (3.0, 80.0, 100.0, 7200.0, 36e3, 2e5)]
        assert said == ["3 s", "80 s", "2 min", "2.0 h", "10 h", "2.3 days"]


def test_pages_name_every_rule():
    text = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()
    assert all(f"`{rule}`" in text for rule in config_module.RULES)
