"""What is learned from what: the state, the step and the evaluation of each task."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jpc
from jpc.data import Dataset

from .build import Params
from .config import Config
from .setting import Picture, Problem, Setting, State, make_setting, params_of, softmax


class AbstractTask(abc.ABC):
    """One of the tasks, with everything that [`jpc.fit`][] needs.

    `metrics` are the entries of a step's result to keep; `headline` is the metric of the test
    set that says how good a network is.
    """

    metrics: tuple[str, ...] = ("loss", "energies")
    headline: str = "test_acc"

    def __init__(self, setting: Setting):
        self.setting = setting

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """What [`jpc.fit`][] changes, at the beginning."""

    @abc.abstractmethod
    def pair(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """Input and output."""

    @abc.abstractmethod
    def step(self, *, input: Any, output: Any, key: Any, **state: Any) -> dict[str, Any]:
        """One step of training."""

    @abc.abstractmethod
    def evaluate(self, *, input: Any, output: Any, key: Any, **state: Any) -> dict[str, Any]:
        """Metrics of a batch of the test set."""

    @abc.abstractmethod
    def problem(self, state: State, input: Any, output: Any) -> Problem:
        """The problem of inference that is solved in a step."""

    @abc.abstractmethod
    def pictures(self, state: State) -> list[Picture]:
        """Something to look at."""

    @abc.abstractmethod
    def predict(self, state: State, inputs: Any) -> Any:
        """What is said of inputs: the activity of each class, or numbers."""

    @abc.abstractmethod
    def imagine(self, state: State, causes: Any) -> jax.Array | None:
        """The images that such predictions explain, if the network makes any of them."""

    def diagnose(self, state: State, input: Any, output: Any) -> dict[str, Any] | None:
        """A diagnosis of its own, of a network that is no chain."""
        del state, input, output
        return None


class AbstractForward(AbstractTask):
    """From inputs to what is predicted of them."""

    def pair(self, images, labels):
        return images, labels

    def step(self, *, input, output, key, **state):
        return self.setting.step(input=input, output=output, key=key, **state)

    def problem(self, state, input, output):
        return Problem(params_of(state), None, output, input)

    def predict(self, state, inputs):
        return self.setting.states(params_of(state), inputs)[-1]

    def imagine(self, state, causes):
        return None


class Discriminative(AbstractForward):
    """From images to labels."""

    def state(self):
        sizes = (self.setting.dataset.shape, self.setting.classes)
        return self.setting.state(self.setting.network(sizes))

    def evaluate(self, *, input, output, key, **state):
        named = dict(output=output, input=input, key=key, **self.setting.options)
        return jpc.evaluate_discriminative(**state, **named)

    def pictures(self, state):
        dataset = self.setting.dataset
        if not dataset.schema.is_image:
            return []
        images, labels = (array[:20] for array in dataset.test)
        logits = np.asarray(self.predict(state, jnp.asarray(images, float)))
        guesses, chances = np.argmax(logits, axis=1), 100 * np.max(softmax(logits), axis=1)
        sure = self.setting.config.energy.loss == "ce"  # Else they are no probabilities.
        names, is_right = dataset.classes, guesses == labels
        captions = [
            names[guess] + f" ({chance:.0f} %)" * sure + f", is {names[label]}" * (not right)
            for guess, chance, label, right in zip(guesses, chances, labels, is_right, strict=True)
        ]
        shown = zip(dataset.restore(images), captions, map(bool, is_right), strict=True)
        return [Picture(*each, kind="Predictions") for each in shown]


class Regression(AbstractForward):
    """From inputs to numbers."""

    headline: str = "test_r2"

    def state(self):
        sizes = (self.setting.dataset.shape, len(self.setting.dataset.schema.targets))
        return self.setting.state(self.setting.network(sizes))

    def evaluate(self, *, input, output, key, **state):
        """The loss, and the share of the variance that is explained, R^2: its mean over examples
        is that of the whole test set.
        """
        del key
        made = self.predict(state, input)
        variance = np.var(self.setting.dataset.test[1], axis=0, dtype=np.float64)
        share = (output - made) ** 2 / jnp.asarray(np.where(variance > 0, variance, 1.0))[None]
        return dict(r2=1 - jnp.mean(share), loss=jpc.mse_loss(made, output))

    def pictures(self, state):
        dataset = self.setting.dataset
        if not dataset.schema.is_image:
            return []
        images, targets = (array[:20] for array in dataset.test)
        made = self.predict(state, jnp.asarray(images, float))
        rows = zip(*map(dataset.schema.decode, (made, targets)), strict=True)
        captions = [f"{a[0]:.4g}, is {b[0]:.4g}" for a, b in rows]
        return list(map(Picture, dataset.restore(images), captions))


class Generative(AbstractTask):
    """From labels to images; the label of an image is inferred."""

    def state(self):
        sizes = ((self.setting.classes,), self.setting.pixels)
        return self.setting.state(self.setting.network(sizes))

    def pair(self, images, labels):
        return labels, images

    def step(self, *, input, output, key, **state):
        return self.setting.step(input=input, output=output, key=key, **state)

    def evaluate(self, *, input, output, key, **state):
        del key
        params, inferred = params_of(state), self.predict(state, output)
        made = self.setting.images(self.setting.states(params, input)[-1])
        loss = jpc.mse_loss(made, output)
        return dict(acc=jpc.compute_accuracy(input, inferred), loss=loss)

    def problem(self, state, input, output):
        return Problem(params_of(state), None, output, input)

    def predict(self, state, inputs):
        params = params_of(state)
        start = self.setting.from_rest(params, self.setting.classes, len(inputs))
        return self.setting.explain(params, start, inputs)

    def pictures(self, state):
        return self.setting.samples(params_of(state))

    def imagine(self, state, causes):
        return self.setting.images(self.setting.states(params_of(state), causes)[-1])


class Unsupervised(AbstractTask):
    """From causes, which are inferred, to images."""

    metrics: tuple[str, ...] = ("energies",)
    headline: str = "test_loss"

    def state(self):
        sizes = ((self.setting.config.network.latent,), self.setting.pixels)
        return self.setting.state(self.setting.network(sizes))

    def pair(self, images, labels):
        return None, images

    def step(self, *, input, output, key, **state):
        start = self._start(params_of(state), output)
        return self.setting.step(activities=start, input=input, output=output, key=key, **state)

    def evaluate(self, *, input, output, key, **state):
        del input, key
        return dict(loss=jpc.mse_loss(self._reconstruct(params_of(state), output), output))

    def problem(self, state, input, output):
        params = params_of(state)
        return Problem(params, self._start(params, output), output, input)

    def predict(self, state, inputs):
        """The causes that are inferred."""
        params = params_of(state)
        return self.setting.explain(params, self._start(params, inputs), inputs)

    def imagine(self, state, causes):
        return None

    def pictures(self, state):
        """Reconstructions, and samples: causes that are drawn as if the inferred ones were
        normal.
        """
        if not self.setting.dataset.schema.is_image:
            return []
        params = params_of(state)
        images = jnp.asarray(self.setting.dataset.test[0][:100], float)
        causes = self.setting.explain(params, self._start(params, images), images)
        made = self.setting.images(self.setting.states(params, causes)[-1])
        known = np.nan_to_num(np.asarray(causes, float))  # Inference may have diverged.
        spread = np.cov(known, rowvar=False).reshape(2 * causes.shape[1:])
        draw = np.random.default_rng(0).multivariate_normal
        drawn = draw(np.mean(known, axis=0), spread, 10, check_valid="ignore")
        samples = self.setting.images(
            self.setting.states(params, jnp.asarray(drawn, causes.dtype))[-1]
        )
        return [
            *(Picture(image, "drawn") for image in self.setting.dataset.restore(samples)),
            *self.setting.reconstructions(images[:10], made[:10]),
        ]

    def _start(self, params: Params, output: Any) -> list[Any]:
        latent: Any = self.setting.config.network.latent
        return self.setting.from_rest(params, latent, len(output))

    def _reconstruct(self, params: Params, output: Any) -> jax.Array:
        inferred = self.setting.explain(params, self._start(params, output), output)
        return self.setting.images(self.setting.states(params, inferred)[-1])


class Hybrid(AbstractTask):
    """From labels to images and back: the label of an image is guessed by an amortiser, and
    inferred from that guess.
    """

    metrics: tuple[str, ...] = ("losses",)

    def state(self):
        classes, pixels = self.setting.classes, self.setting.pixels
        generator = self.setting.network(((classes,), pixels))
        amortiser = self.setting.network(((pixels,), classes), which=1)
        states = [self.setting.state(params) for params in (generator, amortiser)]
        optims, opt_states = ([s[name] for s in states] for name in ("optim", "opt_state"))
        nets = dict(generator=generator.model, amortiser=amortiser.model)
        return dict(nets, optims=tuple(optims), opt_states=tuple(opt_states))

    def pair(self, images, labels):
        return labels, images

    def step(self, *, input, output, key, **state):
        # A method that is carried along comes with the state.
        given: Any = dict(inference=self.setting.inference, **self.setting.options) | state
        return jpc.make_hpc_step(**given, output=output, input=input, key=key)

    def evaluate(self, *, input, output, key, **state):
        del key
        params, guess = Params(state["generator"], None), self._guess(state, output)
        inferred = self.setting.explain(params, guess, output)
        made = self.setting.images(self.setting.states(params, input)[-1])
        return dict(
            acc=jpc.compute_accuracy(input, inferred),
            guess_acc=jpc.compute_accuracy(input, guess[0]),
            loss=jpc.mse_loss(made, output),
        )

    def problem(self, state, input, output):
        start = self._guess(state, output)[1:]
        return Problem(Params(state["generator"], None), start, output, input)

    def predict(self, state, inputs):
        params = Params(state["generator"], None)
        return self.setting.explain(params, self._guess(state, inputs), inputs)

    def pictures(self, state):
        return self.setting.samples(Params(state["generator"], None))

    def imagine(self, state, causes):
        params = Params(state["generator"], None)
        return self.setting.images(self.setting.states(params, causes)[-1])

    def _guess(self, state: State, output: Any) -> list[Any]:
        networks = state["amortiser"], state["generator"]
        return jpc.init_activities_with_amort(*networks, output)


_TASKS = dict(
    discriminative=Discriminative,
    generative=Generative,
    unsupervised=Unsupervised,
    hybrid=Hybrid,
    regression=Regression,
)


def make_task(config: Config, dataset: Dataset) -> AbstractTask:
    """The task that a configuration names."""
    if config.training.rule == "bpc":
        from .bidirectional import Bidirectional  # noqa: PLC0415

        return Bidirectional(make_setting(config, dataset))
    return _TASKS[config.data.task](make_setting(config, dataset))
