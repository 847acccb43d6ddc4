"""Right calls and wrong ones, for a type checker: `tests/test_types.py`. Nothing here is run."""

import diffrax
import jax
import numpy as np
import optax

import jpc
import jpc.data

key = jax.random.key(0)
x, y = np.ones((4, 8)), jax.numpy.ones((4, 2))
optim = optax.adam(1e-3)
model = jpc.make_mlp(key, 8, 16, 3, 2, "tanh")
widths = jpc.make_mlp(key, 8, [16, 8], 3, 2, jax.nn.relu, param_type="mupc")
residual, skips = jpc.make_residual_mlp(key, 8, 16, 3, 2, "relu")
cnn = jpc.make_cnn(key, (3, 32, 32), 10, "relu", size="vgg5")
opt_state = optim.init(jax.numpy.ones(3))
activities = jpc.init_activities_with_ffwd(model, x)
energy = jpc.PCEnergy() + 0.1 * jpc.WeightDecay(1e-3)
digits = jpc.data.load("digits", validation=0.1)

jpc.make_pc_step(model, optim, opt_state, y, x)
jpc.make_pc_step(model, optim, opt_state, y, x, skip_model=skips, loss="ce", max_t1=5)
jpc.make_pc_step(model, optim, opt_state, y, x, ode_solver=diffrax.Heun(), dt=0.1)
jpc.make_pc_step(model, optim, opt_state, y, inference=jpc.Equilibrium(), layer_sizes=[8, 16, 2])
jpc.make_pc_step(model, optim, opt_state, y, x, loss=lambda y, z: jax.numpy.sum((y - z) ** 2))
jpc.pc_energy_fn((model, None), activities, y, x=x)
jpc.solve_inference((model, skips), activities, y, x, energy=energy)
jpc.fit(jpc.make_pc_step, dict(model=model), digits.train, epochs=3, batch_size=4, key=key)
jpc.Descent(0.1, 20)
jpc.Descent(optax.adam(0.1), 20)

jpc.make_mlp(key, "8", 16, 3, 2, "tanh")  # wrong
jpc.make_mlp(key, 8, 16, 3, 2, 3)  # wrong
jpc.make_mlp(key, 8, 16, 3, 2, "tanh", param_type="mup")  # wrong
jpc.make_cnn(key, 32, 10, "relu")  # wrong
jpc.make_pc_step(3, optim, opt_state, y, x)  # wrong
jpc.make_pc_step(model, 1e-3, opt_state, y, x)  # wrong
jpc.make_pc_step(model, optim, opt_state, y, x, los="ce")  # wrong
jpc.make_pc_step(model, optim, opt_state, y, x, loss="cross-entropy")  # wrong
jpc.make_pc_step(model, optim, opt_state, y, x, key=0)  # wrong
jpc.make_pc_step(model, optim, opt_state, y, x, inference="heun")  # wrong
jpc.pc_energy_fn(model, activities, y, x=x)  # wrong
jpc.init_activities_with_ffwd(model, "x")  # wrong
jpc.solve_inference((model, skips), None, y, x)  # wrong
jpc.fit(jpc.make_pc_step, [model], digits.train, epochs=3, batch_size=4, key=key)  # wrong
jpc.fit(jpc.make_pc_step, {}, digits.train, epochs="3", batch_size=4, key=key)  # wrong
jpc.Descent("fast", 20)  # wrong
jpc.Equilibrium(rtol="small")  # wrong
jpc.data.load(3)  # wrong
jpc.no_such_name  # wrong  # noqa: B018
