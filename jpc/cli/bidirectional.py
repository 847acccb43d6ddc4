"""Bidirectional predictive coding: two networks, from labels to images and back, share states."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax

import jpc

from .._metrics import tree_norm
from .diagnose import choose_course
from .setting import Setting
from .tasks import AbstractTask
from .variants import add_penalties

_NO_STEP = optax.sgd(0.0)


class Bidirectional(AbstractTask):
    """From labels to images, top down, and from images to labels, bottom up."""

    metrics: tuple[str, ...] = ("losses",)

    def __init__(self, setting: Setting):
        self.setting = setting
        energy, source = setting.config.energy, setting.config.training.source_gradient
        named = {} if source is None else dict(source_gradient=source)
        self._chains = jpc.BPCEnergy(energy.output_precision or 1.0, **named)
        energy = add_penalties(self._chains, setting.options)
        self._options: Any = dict(energy=energy, param_type=setting.config.network.param_type)

    def state(self):
        classes, pixels = self.setting.classes, self.setting.pixels
        down = self.setting.network(((classes,), pixels)).model
        up = self.setting.network(((pixels,), classes), which=1).model[::-1]
        optim = self.setting.optim
        opt_states = tuple(optim.init(eqx.filter(model, eqx.is_array)) for model in (down, up))
        models = dict(top_down_model=down, bottom_up_model=up)
        return dict(models, optims=(optim, optim), opt_states=opt_states)

    def pair(self, images, labels):
        return labels, images

    def step(self, *, input, output, key, **state):
        named: Any = dict(inference=self.setting.inference, key=key, **self._options)
        return jpc.make_bpc_step(**state, output=output, input=input, **named)

    def evaluate(self, *, input, output, key, **state):
        return jpc.evaluate_bpc(**state, output=output, input=input, key=key, **self._options)

    def problem(self, state, input, output):
        raise NotImplementedError("Two networks have no problem of one.")

    def predict(self, state, inputs):
        return self._sweep(state["bottom_up_model"][::-1], inputs)

    def imagine(self, state, causes):
        return self._sweep(state["top_down_model"], causes)

    def pictures(self, state):
        made = self._sweep(state["top_down_model"], jnp.eye(self.setting.classes))
        return self.setting.label(made)

    def _sweep(self, model, inputs):
        scaled: Any = dict(param_type=self._options["param_type"])
        return jpc.init_activities_with_ffwd(model, inputs, **scaled)[-1]

    def diagnose(self, state, input, output):
        """Of each layer, the sums over both directions."""
        config = self.setting.config
        flow, when = choose_course(config, self.setting.inference)
        record = jpc.Record(self._terms, when.ts, when.length)
        models = {name: state[name] for name in ("top_down_model", "bottom_up_model")}
        opt_states = [_NO_STEP.init(eqx.filter(model, eqx.is_array)) for model in models.values()]
        named: Any = dict(inference=flow, record=record, **self._options)
        result = jpc.make_bpc_step(
            **models, optims=[_NO_STEP] * 2, opt_states=opt_states, output=output, input=input,
            **named,
        )  # fmt: skip
        course = jnp.mean(result["trajectory"].values, axis=1)
        times = jnp.arange(len(course), dtype=float) if when.ts is None else when.ts
        pairs = [zip(*both, strict=True) for both in (models.values(), result["grads"])]
        weights, gradients = (jnp.stack([tree_norm(pair) for pair in both]) for both in pairs)
        return dict(
            energies=course[-1],
            weight_norms=weights,
            gradient_norms=gradients,
            activity_gradient=jnp.mean(result["stats"]["gradient_norm"]),
            converged=jnp.mean(result["result"] == jpc.RESULTS.successful),
            certificate={},
            course=dict(times=times, energies=course),
        )

    def _terms(self, params, nodes, clamps):
        return sum(jnp.stack(terms) for terms in self._chains.terms(params, nodes, clamps))
