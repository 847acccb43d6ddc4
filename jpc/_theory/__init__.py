from .linear import (
    compute_linear_activity_hessian as compute_linear_activity_hessian,
    compute_linear_activity_solution as compute_linear_activity_solution,
    compute_linear_equilib_energy_grads as compute_linear_equilib_energy_grads,
    compute_linear_equilib_rescaling as compute_linear_equilib_rescaling,
    linear_equilib_energy as linear_equilib_energy,
    update_linear_equilib_energy_params as update_linear_equilib_energy_params,
)
