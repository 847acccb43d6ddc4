import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray, PyTree

from .._evaluate import test_discriminative_pc
from .._given import (
    check_call,
    check_count,
    check_flags,
    check_sizes,
    check_takes,
    check_type,
    show,
    split_key,
)
from .._options import Options
from .._types import Given, Scalar
from .check import check_evaluation, check_hooks, check_listed, check_step, scalars
from .checkpoint import Checkpoints, Saver
from .data import choose_data
from .devices import Devices, Rule, choose_devices
from .fingerprint import digest_arrays, digest_program, made_with
from .folder import check_folder
from .loop import Carry, Recipe, in_order, shuffled, unlearned, zeros
from .progress import Record, choose_progress
from .report import choose_report
from .run import FIRST, AbstractTest, NoTest, Pace, Run, Test, plain
from .save import AbstractSaver, NoSaver
from .snapshot import Snapshot
from .stop import EarlyStopping
from .validate import Validated


class Fitted(NamedTuple):
    """What [`jpc.fit`][] returns.

    **Attributes:**

    - `state`: the state after the last epoch, or after the best one if there was a `stop`.
    - `history`: a dictionary for each epoch: `epoch` and `step`, both counted from the
        beginning of training, its `seconds` and, not among them, `compile_seconds`, the
        metrics of training, and those of the test set with `test_` before their names. Plain
        numbers and lists of them.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    state = dict(model=model, optim=optim, opt_state=opt_state)
    options = dict(batch_size=5, key=jr.key(0), progress=False)
    fitted = jpc.fit(jpc.make_pc_step, state, (x, y), epochs=1, **options)
    model, loss = fitted.state["model"], fitted.history[-1]["loss"]
    ```
    """

    state: dict[str, Any]
    history: list[Record]

    def __repr__(self) -> str:
        """The last epoch, and what the state holds."""
        last: Record = self.history[-1] if self.history else {}
        told = {name: value for name, value in last.items() if not name.endswith("seconds")}
        numbers = [f"{name} {v:.4g}" for name, v in told.items() if isinstance(v, float)]
        went = ", ".join([f"{len(self.history)} epochs", *numbers])
        return f"Fitted({went}; {', '.join(self.state)})"


def fit(
    step: Given[Callable[..., Mapping[str, Any]]],
    state: Given[Mapping[str, Any]],
    data: Any,
    *,
    epochs: Given[int],
    batch_size: Given[int],
    key: Given[PRNGKeyArray],
    metrics: Given[Sequence[str]] = ("loss",),
    classes: Given[int | None] = None,
    shuffle: Given[bool] = True,
    test: Any = None,
    validation: Any = None,
    evaluate: Given[Callable[..., Mapping[str, Any]] | None] = None,
    inspect: Given[Callable[..., Mapping[str, Any]] | None] = None,
    stop: Given[EarlyStopping | None] = None,
    callbacks: Given[Sequence[Callable[[Record], Any]]] = (),
    progress: Given[bool] = True,
    pace: Given[Callable[[float], Any] | None] = None,
    checkpoints: Given[Checkpoints | None] = None,
    report: Given[str | os.PathLike | None] = None,
    mesh: Given[Mesh | None] = None,
    sharding: Given[Rule | None] = None,
) -> Fitted:
    """Trains for a number of epochs, in compiled code, with the data on the device.

    A step is a function of the state, by name, and of a batch,
    `step(**state, output=..., input=..., key=...)`. It returns a dictionary that has every
    name of the state again, for the next step, and anything else that you want to know. Take
    [`jpc.make_pc_step`][], [`jpc.make_hpc_step`][], or write your own.

    The same key gives the same bits, on the same machine.

    **Arguments:**

    - `step`: the step. Give it its options with `functools.partial`.
    - `state`: what it changes, as a dictionary; `dict(model=model, optim=optim,
        opt_state=opt_state)` for [`jpc.make_pc_step`][]. It is copied, not changed.
    - `data`: a pair `(input, output)`, a tuple, with the examples along the first axes. Each is
        an array or any tree of arrays (a dictionary, `(x, mask)`, a [`jpc.Masked`][]), and the
        input may be `None`. Data that does not fit into memory comes as batches, pairs like
        these of `batch_size` examples: anything that gives them each time that it is iterated
        over (a list, a loader), or a function of the epoch (from 0) that returns such a thing
        (and is called once before training, to look at the first batch). An input or output
        that is an array of integers with one axis is taken as labels, and becomes one-hot
        vectors. Arrays inside a tree, and integers with more axes (tokens), stay as they are.
    - `epochs`: how many times to go through the data.
    - `batch_size`: how many examples there are in a batch. An epoch leaves out examples that do
        not fill a batch, and batches that are smaller.
    - `key`: determines the order of the examples, and a key for each step.
    - `metrics`: names of entries of the step's dictionary, arrays or trees of arrays, whose
        mean over the epoch goes into the history. Those that are `None` do not.
    - `classes`: the number of classes of integer labels, one more than the largest one of the
        data by default. An iterator has no default.
    - `shuffle`: whether each epoch goes through arrays in a new random order. If not, batches
        come in the order of the examples, and the examples at the end are left out, so that a
        state can be carried along a stream. Batches of an iterator always come in its own order.
    - `test`: data like `data`, to evaluate after each epoch.
    - `validation`: more such data, to choose settings by and to `stop` by. The history has its
        metrics, too, with `val_` before their names.
    - `evaluate`: a function like a step, which returns a dictionary of metrics of one example
        (a batch of one), such as [`jpc.evaluate_discriminative`][]. Their means over all
        examples of the test set go into the history.
    - `inspect`: a function of the state, by name, which returns a dictionary of anything made of
        arrays and numbers. It is called after each epoch, outside compiled code, and what it
        returns goes into the history.
    - `stop`: when to stop before the last epoch. With it, the best state is returned.
    - `callbacks`: functions of an epoch's entry of the history, called after the epoch.
    - `progress`: whether to show a progress bar, or a line for each epoch where there is no
        terminal.
    - `pace`: a function of the seconds that a step takes. It is called once, after a few seconds
        of steps.
    - `checkpoints`: where to save the run, and whether to continue an earlier one.
    - `report`: a folder for `metrics.jsonl`, with a line for each epoch, and for `report.html`
        with its figures, as `jpc train` writes them. A folder with the report of an earlier run
        is an error, unless `checkpoints` continue that run. [`jpc.load_run`][] reads it.
    - `mesh`: devices to share out each batch over, along the first axis of the mesh. Each of
        them holds all of the data (of an iterator, its own batches), and all of the state.
    - `sharding`: how the state lies on the mesh instead: a function of the name of an array of
        the state (such as `"['model'][0].weight"`) and of the array that returns a
        `PartitionSpec`.

    **Returns:**

    A [`jpc.Fitted`][], with the new `state` and the `history`.

    **Example:**

    ```python
    import functools

    import equinox as eqx
    import jax.random as jr
    import optax

    import jpc

    model = jpc.make_mlp(jr.key(0), 4, 8, 3, 2, "tanh")
    x, y = jr.normal(jr.key(1), (5, 4)), jr.normal(jr.key(2), (5, 2))
    optim = optax.adam(1e-3)
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    fitted = jpc.fit(
        functools.partial(jpc.make_pc_step, inference=jpc.Descent(0.1, 20)),
        dict(model=model, optim=optim, opt_state=opt_state),
        (x, y),
        epochs=3,
        batch_size=5,
        key=jr.key(3),
        progress=False,
    )
    losses = [record["loss"] for record in fitted.history]
    ```
    """
    check_sizes(epochs=epochs, batch_size=batch_size)
    check_count("classes", classes, none=True)
    check_flags(shuffle=shuffle, progress=progress)
    check_type("stop", stop, EarlyStopping | None, 'jpc.EarlyStopping("test_loss")')
    check_type("checkpoints", checkpoints, Checkpoints | None, 'jpc.Checkpoints("runs/1")')
    check_hooks(step, evaluate=evaluate, inspect=inspect, pace=pace, sharding=sharding)
    check_listed("metrics", metrics, str, '("loss",)')
    check_listed("callbacks", callbacks, Callable, "(print,)")
    for i, callback in enumerate(callbacks):
        check_call("fit", f"callbacks[{i}]", callback, "record")
    _check_outside(state, data if isinstance(data, tuple) else (), key)
    keys = tuple(split_key(key, 3))
    devices = choose_devices(mesh, sharding)
    devices.check(batch_size)
    order = shuffled if shuffle else in_order
    source = choose_data("data", data, batch_size, (classes, classes), devices, order)
    if source.steps == 0:
        raise ValueError(f"batch_size={batch_size}, but data has {source.examples} examples.")
    folder = check_folder("report", report, none=True)
    with contextlib.closing(choose_progress(progress, epochs, source.steps)) as shown:
        shown.compile(FIRST)
        arrays, rest = _split(state)
        recipe = Recipe(step, rest, tuple(metrics), source.classes, batch_size, devices)
        sums, program, (carried, method) = check_step(recipe, arrays, source.shapes, keys[0])
        recipe = dataclasses.replace(recipe, metrics=tuple(sums), method=method)
        tester = _choose_test(test, evaluate, recipe, arrays)
        if validation is not None:
            other = _choose_test(validation, evaluate, recipe, arrays, "validation")
            tester = Validated(tester, other)
        looker = _look_at_nothing if inspect is None else inspect
        check_call("fit", "inspect", looker, named=[*state])
        if stop is not None:
            stop.check([*scalars(sums), *tester.names])
        settings = dict(batch_size=batch_size, examples=source.examples, classes=source.classes)
        settings |= {} if shuffle else dict(shuffle=False)  # As in checkpoints from before it.
        settings |= dict(key=jr.key_data(key).tolist(), metrics=metrics, state=rest)
        identity = lambda: (
            dict(step=digest_program(program), data=source.fingerprint())
            | dict(state=digest_arrays(arrays), stop=None if stop is None else stop.identity())
            | dict(tester.fingerprint(), made=made_with())
        )
        saved = contextlib.closing(_choose_saver(checkpoints, settings, identity, devices))
        with saved as saver, contextlib.ExitStack() as stack:
            snapshot = saver.restore(_begin(arrays, sums, carried, stop, devices))
            shown.begin(snapshot.total)
            resumed = checkpoints is not None and checkpoints.resume
            journal = stack.enter_context(
                choose_report(folder, epochs, snapshot.history if resumed else None)
            )
            callbacks = (*callbacks, journal.note)
            how = (tester, looker, stop, callbacks, saver, shown, Pace(pace))
            run = Run(source, recipe, keys, *how)
            snapshot = run(snapshot, epochs)
    arrays = snapshot.carry.state if stop is None else snapshot.best
    return Fitted(eqx.combine(arrays, rest), list(snapshot.history))


def _check_outside(*given: Any) -> None:
    """That no program is made around it: the numbers of an epoch are read when it has ended."""
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(given)):
        raise TypeError(
            "fit compiles the training step itself, and cannot be called in jax.jit, jax.grad or "
            "jax.vmap."
        )


def _split(state: Any) -> tuple[PyTree, PyTree]:
    """The arrays of a state, and the rest."""
    if not (isinstance(state, Mapping) and state):
        raise TypeError(
            "state must be a dictionary of what the step takes and returns by name, such as "
            f"dict(model=model, optim=optim, opt_state=opt_state), got {show(state)}."
        )
    if taken := sorted({"output", "input", "key"} & state.keys()):
        raise ValueError(f"{', '.join(taken)} cannot be in the state: fit gives it to the step.")
    for name, part in state.items():
        check_takes(f"state[{name!r}]", part)
    to_jax = lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x
    return eqx.partition(jax.tree.map(to_jax, dict(state)), eqx.is_array)


def _choose_test(
    test: Any, evaluate: Any, recipe: Recipe, state: PyTree, name: str = "test"
) -> AbstractTest:
    if (test is None) != (evaluate is None):
        raise ValueError(
            f"{name} is what to evaluate, (input, output), and evaluate how, such as "
            "jpc.evaluate_discriminative: give both of them, or neither."
        )
    if test is None:
        return NoTest()
    source = choose_data(name, test, recipe.batch_size, recipe.classes, recipe.devices)
    recipe = Recipe(evaluate, recipe.rest, (), source.classes, recipe.batch_size, recipe.devices)
    result, program = check_evaluation(recipe, state, source.shapes)
    return Test(source, recipe, program, tuple(f"test_{name}" for name in scalars(result)))


def score_state(
    evaluate: Callable[..., Mapping[str, Any]],
    state: Mapping[str, Any],
    test: Any,
    *,
    batch_size: int,
    key: PRNGKeyArray,
    classes: int,
) -> Record:
    """What the history of [`jpc.fit`][] would say of a test set after an epoch with this state."""
    arrays, rest = _split(state)
    recipe = Recipe(evaluate, rest, (), (classes, classes), batch_size, Devices())
    return plain(_choose_test(test, evaluate, recipe, arrays)(arrays, key))


def _look_at_nothing(**state: Any) -> dict[str, Any]:
    del state
    return {}


def _choose_saver(
    checkpoints: Any,
    settings: dict[str, Any],
    identity: Callable[[], dict[str, Any]],
    devices: Devices,
) -> AbstractSaver:
    return NoSaver() if checkpoints is None else Saver(checkpoints, settings, identity, devices)


def _begin(arrays: PyTree, sums: PyTree, method: PyTree, stop: Any, devices: Devices) -> Snapshot:
    place = lambda: devices.put(arrays, devices.rule)
    carry = Carry(place(), devices.put(zeros(sums)), devices.put(unlearned(method)))
    return Snapshot(carry, None if stop is None else place())


def evaluate_discriminative(
    model: PyTree,
    output: PyTree,
    input: PyTree,
    *,
    skip_model: PyTree = None,
    optim: Any = None,
    opt_state: PyTree = None,
    key: PRNGKeyArray | None = None,
    **options: Unpack[Options],
) -> dict[str, Scalar]:
    """The `loss` and the accuracy, `acc`, in percent, of a feedforward pass, for the state of
    [`jpc.make_pc_step`][]. Give it to [`jpc.fit`][] as `evaluate`.

    **Arguments:** those of [`jpc.test_discriminative_pc`][]. The rest of the state and the key
    do not matter.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    labels = jnp.eye(2)[jnp.arange(5) % 2]
    accuracy = jpc.evaluate_discriminative(model, labels, x)["acc"]  # In percent.
    ```
    """
    del optim, opt_state, key
    loss, acc = test_discriminative_pc(model, output, input, skip_model=skip_model, **options)
    return dict(loss=loss, acc=acc)
