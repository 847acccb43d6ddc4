import functools as ft
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from .._given import show
from .._types import Given

Rule = Callable[[str, Any], PartitionSpec]


def replicate(name: str, array: Any) -> PartitionSpec:
    """The rule by which every device has all of every array."""
    del name, array
    return PartitionSpec()


class Devices(eqx.Module):
    """Where the arrays of a run are: where JAX puts them, or on a mesh."""

    mesh: Mesh | None = eqx.field(static=True, default=None)
    rule: Rule = eqx.field(static=True, default=replicate)

    def put(self, tree: PyTree, rule: Rule = replicate) -> PyTree:
        """Copies of all arrays: what is given to a donating function must be ours."""
        if self.mesh is None:
            return copy(tree)
        return jax.tree.map(ft.partial(_place, self.mesh), tree, self._specs(tree, rule))

    def put_data(self, tree: PyTree) -> PyTree:
        """All of the data on every device, without another copy of what is there."""
        there = lambda x: x if isinstance(x, jax.Array) else jnp.array(x)
        return jax.tree.map(there, tree) if self.mesh is None else self.put(tree)

    def put_batch(self, batch: PyTree) -> PyTree:
        """A batch, of which every process has its own share of the examples."""
        if self.mesh is None:
            return jax.tree.map(jnp.asarray, batch)
        sharding = NamedSharding(self.mesh, self._shares())
        shape = lambda x: (self.processes * len(x), *x.shape[1:])
        make = jax.make_array_from_process_local_data
        return jax.tree.map(lambda x: make(sharding, np.asarray(x), shape(x)), batch)

    def constrain(self, tree: PyTree, rule: Rule = replicate) -> PyTree:
        """Says in compiled code what `put` says outside."""
        return jax.tree.map(self._constrain, tree, self._specs(tree, rule))

    def constrain_batch(self, batch: PyTree) -> PyTree:
        """Shares the examples of a batch out over the first axis of the mesh."""
        return jax.tree.map(lambda x: self._constrain(x, self._shares()), batch)

    @property
    def processes(self) -> int:
        """How many processes take part."""
        return 1 if self.mesh is None else jax.process_count()

    def agree(self, number: float | int | bool) -> Any:
        """What the first process says, on all of them: what a clock decides must be the same."""
        if self.processes == 1:
            return number
        return multihost_utils.broadcast_one_to_all(np.asarray(number)).item()

    def check(self, batch_size: int) -> None:
        """Refuses a batch that cannot be shared out evenly."""
        if self.mesh is None:
            return
        axis = self.mesh.axis_names[0]
        if batch_size % self.mesh.shape[axis]:
            raise ValueError(
                f"batch_size={batch_size} cannot be shared out evenly over the "
                f"{self.mesh.shape[axis]} devices of the mesh's axis {axis!r}: give a multiple."
            )

    def _shares(self) -> PartitionSpec:
        return PartitionSpec() if self.mesh is None else PartitionSpec(self.mesh.axis_names[0])

    def _specs(self, tree: PyTree, rule: Rule) -> PyTree:
        named = lambda path, x: _check_spec(rule(jax.tree_util.keystr(path), x))
        return jax.tree_util.tree_map_with_path(named, tree)

    def _constrain(self, array: Array, spec: PartitionSpec) -> Array:
        if self.mesh is None:
            return array
        return jax.lax.with_sharding_constraint(array, NamedSharding(self.mesh, spec))


@jax.jit
def copy(tree: PyTree) -> PyTree:
    """Of all arrays, in one program."""
    return jax.tree.map(jnp.copy, tree)


def _place(mesh: Mesh, array: Any, spec: PartitionSpec) -> Array:
    plain, sharding = np.array(untyped(array)), NamedSharding(mesh, spec)
    return typed(jax.make_array_from_callback(plain.shape, sharding, plain.__getitem__), array)


def _check_spec(spec: Any) -> PartitionSpec:
    if not isinstance(spec, PartitionSpec):
        raise TypeError(f"sharding must return a jax.sharding.PartitionSpec, got {show(spec)}.")
    return spec


def choose_devices(mesh: Given[Mesh | None], sharding: Given[Rule | None]) -> Devices:
    if mesh is None:
        if sharding is not None:
            raise ValueError("sharding says how arrays lie on a mesh: give mesh too.")
        return Devices()
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}.")
    # Whatever the types of its axes were, here the compiler decides.
    mesh = Mesh(mesh.devices, mesh.axis_names)
    return Devices(mesh, replicate if sharding is None else sharding)


def untyped(array: Any) -> Any:
    """The data of a key; any other array as it is."""
    return jax.random.key_data(array) if _is_key(array) else array


def typed(array: Array, like: Any) -> Array:
    """The inverse of `untyped`."""
    if not _is_key(like):
        return array
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like))


def _is_key(array: Any) -> bool:
    return isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
