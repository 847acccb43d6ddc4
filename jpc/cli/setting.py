import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import jpc
from jpc.data import Dataset

from .build import (
    MEANS,
    Params,
    init_optimiser,
    make_inference,
    make_keys,
    make_network,
    make_optimiser,
    make_options,
)
from .config import Config
from .variants import make_learner, wrap_inference, wrap_output

State = Mapping[str, Any]


class Problem(NamedTuple):
    """A problem of inference: what the paper's calls take."""

    params: Params
    activities: list[Array] | None
    output: Array
    input: Array | None


class Picture(NamedTuple):
    """An image in [0, 1], what to write below it, whether the network got it right, if it was
    asked, and what kind of picture it is.
    """

    image: Float[np.ndarray, "channels height width"]
    caption: str
    right: bool = True
    kind: str = "Samples"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What all tasks share: the data, the method of inference, the step that learns with it, the
    optimiser, and the options that make the energy.
    """

    config: Config
    dataset: Dataset
    options: dict[str, Any]
    inference: jpc.AbstractInference
    learn: Callable[..., dict[str, Any]]
    optim: optax.GradientTransformation

    @property
    def pixels(self) -> int:
        return math.prod(self.dataset.shape)

    @property
    def classes(self) -> int:
        return len(self.dataset.classes)

    def network(self, sizes: tuple[Any, int], which: int = 0) -> Params:
        """A network with an input and an output of these sizes; another one if `which` is 1."""
        key = make_keys(self.config.training.seed)[which]
        model, skip_model = make_network(key, self.config.network, sizes)
        return Params(wrap_output(self.config, model), skip_model)

    def state(self, params: Params) -> dict[str, Any]:
        """The state of [`jpc.make_pc_step`][]."""
        opt_state = init_optimiser(self.optim, params)
        return dict(**params._asdict(), optim=self.optim, opt_state=opt_state)

    def step(self, **given: Any) -> dict[str, Any]:
        """One step of training."""
        return self.learn(**given, **self.options)

    def states(self, params: Params, input: Any) -> list[Array]:
        """The activities of a feedforward pass. The last ones are the prediction."""
        return jpc.init_activities_with_ffwd(
            params.model, input, skip_model=params.skip_model, **self.options
        )

    def images(self, predictions: Array) -> Array:
        """What a network predicts of images, in the numbers of their pixels."""
        return MEANS.get(str(self.config.energy.loss), lambda x: x)(predictions)

    def from_rest(self, params: Params, size: int, examples: int) -> list[Array]:
        """Activities to infer an input from: zeros, and what they predict."""
        zeros = jnp.zeros((examples, size))
        return [zeros, *self.states(params, zeros)]

    def explain(self, params: Params, start: list[Array], output: Any) -> Array:
        """The input that is inferred from an output."""
        named: Any = dict(inference=self.inference, **self.options)
        return jpc.solve_inference(params, start, output, **named)[0]

    def samples(self, params: Params) -> list[Picture]:
        """What a generative network makes of each label."""
        return self.label(self.images(self.states(params, jnp.eye(self.classes))[-1]))

    def label(self, images: Array) -> list[Picture]:
        """One image of each class."""
        if not self.dataset.schema.is_image:
            return []
        return list(map(Picture, self.dataset.restore(images), self.dataset.classes))

    def reconstructions(self, images: Any, made: Any) -> list[Picture]:
        """Images, each beside what was made of it."""
        restored = zip(self.dataset.restore(images), self.dataset.restore(made), strict=True)
        pair = lambda a, b: ((a, "image"), (b, "explained"))
        both = [each for image, other in restored for each in pair(image, other)]
        return [Picture(*each, kind="Reconstructions") for each in both]


def softmax(logits: Any) -> np.ndarray:
    """With JAX it would be half a dozen small programs to compile."""
    logits = np.asarray(logits)
    raised = np.exp(logits - np.max(logits, axis=1, keepdims=True))
    return raised / np.sum(raised, axis=1, keepdims=True)


def make_setting(config: Config, dataset: Dataset) -> Setting:
    steps = len(dataset.train[1]) // config.training.batch_size
    inference = wrap_inference(config, make_inference(config.inference))
    if config.training.rule == "ipc":
        steps *= config.inference.steps or 1  # Of the optimiser, one at each step of inference.
    return Setting(
        config=config,
        dataset=dataset,
        options=make_options(config),
        inference=inference,
        learn=make_learner(config, inference),
        optim=make_optimiser(config.optimiser, config.training.epochs, steps),
    )


def params_of(state: State) -> Params:
    return Params(state["model"], state["skip_model"])
