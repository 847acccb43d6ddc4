"""The public names of JPC."""

from ._bpc import (
    bpc_energy_fn as bpc_energy_fn,
    compute_bpc_activity_grad as compute_bpc_activity_grad,
    compute_bpc_param_grads as compute_bpc_param_grads,
    evaluate_bpc as evaluate_bpc,
    make_bpc_step as make_bpc_step,
    update_bpc_activities as update_bpc_activities,
    update_bpc_params as update_bpc_params,
)
from ._bpc_options import BPCOptions as BPCOptions
from ._clamp import Masked as Masked, clamp as clamp, states as states
from ._conv import Conv2d as Conv2d
from ._energy import (
    AbstractEnergy as AbstractEnergy,
    AbstractNetworkEnergy as AbstractNetworkEnergy,
    AbstractPenalty as AbstractPenalty,
    ActivityDecay as ActivityDecay,
    AddEnergy as AddEnergy,
    AmortisedEnergy as AmortisedEnergy,
    BPCEnergy as BPCEnergy,
    EPCEnergy as EPCEnergy,
    GaussianPrior as GaussianPrior,
    GraphEnergy as GraphEnergy,
    LocalEnergy as LocalEnergy,
    Node as Node,
    PCEnergy as PCEnergy,
    Precise as Precise,
    PrecisionEnergy as PrecisionEnergy,
    ScaledEnergy as ScaledEnergy,
    SpectralPenalty as SpectralPenalty,
    WeightDecay as WeightDecay,
    bernoulli as bernoulli,
    cross_entropy as cross_entropy,
    huber as huber,
    poisson as poisson,
    squared_error as squared_error,
)
from ._epc import (
    compute_epc_error_grad as compute_epc_error_grad,
    compute_epc_param_grads as compute_epc_param_grads,
    epc_energy_fn as epc_energy_fn,
    init_epc_errors as init_epc_errors,
    update_epc_errors as update_epc_errors,
    update_epc_params as update_epc_params,
)
from ._evaluate import (
    test_discriminative_pc as test_discriminative_pc,
    test_generative_pc as test_generative_pc,
    test_hpc as test_hpc,
)
from ._fit import (
    Checkpoints as Checkpoints,
    EarlyStopping as EarlyStopping,
    Fitted as Fitted,
    evaluate_discriminative as evaluate_discriminative,
    fit as fit,
)
from ._functional import (
    compute_hpc_param_grads as compute_hpc_param_grads,
    compute_infer_energies as compute_infer_energies,
    compute_pc_activity_grad as compute_pc_activity_grad,
    compute_pc_param_grads as compute_pc_param_grads,
    get_t_max as get_t_max,
    hpc_energy_fn as hpc_energy_fn,
    neg_pc_activity_grad as neg_pc_activity_grad,
    pc_energy_fn as pc_energy_fn,
    solve_inference as solve_inference,
    update_activities as update_activities,
    update_params as update_params,
)
from ._gap import equilibrium_gap as equilibrium_gap
from ._generic import make_step as make_step
from ._inference import (
    RESULTS as RESULTS,
    ZIL as ZIL,
    AbstractInference as AbstractInference,
    Backprop as Backprop,
    Descent as Descent,
    Equilibrium as Equilibrium,
    FixedPrediction as FixedPrediction,
    GradientFlow as GradientFlow,
    InErrors as InErrors,
    Inferred as Inferred,
    Langevin as Langevin,
    Minimise as Minimise,
    Nudged as Nudged,
    Record as Record,
    Trajectory as Trajectory,
    finish as finish,
)
from ._init import (
    init_activities_from_normal as init_activities_from_normal,
    init_activities_with_amort as init_activities_with_amort,
    init_activities_with_ffwd as init_activities_with_ffwd,
)
from ._ipc import make_ipc_step as make_ipc_step
from ._layer import (
    Layer as Layer,
    feedforward as feedforward,
    feedforward_batch as feedforward_batch,
    parameterise as parameterise,
)
from ._learn import Learned as Learned, learn as learn
from ._mcpc import (
    MonteCarlo as MonteCarlo,
    SampledEnergy as SampledEnergy,
    make_mcpc_step as make_mcpc_step,
    sample as sample,
)
from ._metrics import (
    compute_accuracy as compute_accuracy,
    compute_activity_norms as compute_activity_norms,
    compute_param_norms as compute_param_norms,
    cross_entropy_loss as cross_entropy_loss,
    mse_loss as mse_loss,
)
from ._networks import (
    get_act_fn as get_act_fn,
    make_cnn as make_cnn,
    make_mlp as make_mlp,
    make_residual_mlp as make_residual_mlp,
    make_skip_model as make_skip_model,
)
from ._options import FlowOptions as FlowOptions, Options as Options
from ._pdm import (
    compute_pdm_activity_grad as compute_pdm_activity_grad,
    compute_pdm_param_grads as compute_pdm_param_grads,
    update_pdm_activities as update_pdm_activities,
    update_pdm_params as update_pdm_params,
)
from ._pose import pose as pose
from ._regime import measure_regime as measure_regime, regime as regime
from ._run import load_run as load_run
from ._step import make_hpc_step as make_hpc_step, make_pc_step as make_pc_step
from ._temporal import (
    SequenceEnergy as SequenceEnergy,
    filter_sequence as filter_sequence,
    make_tpc_step as make_tpc_step,
    smooth_sequence as smooth_sequence,
)
from ._theory import (
    compute_linear_activity_hessian as compute_linear_activity_hessian,
    compute_linear_activity_solution as compute_linear_activity_solution,
    compute_linear_equilib_energy_grads as compute_linear_equilib_energy_grads,
    compute_linear_equilib_rescaling as compute_linear_equilib_rescaling,
    linear_equilib_energy as linear_equilib_energy,
    update_linear_equilib_energy_params as update_linear_equilib_energy_params,
)
from ._types import (
    Clamps as Clamps,
    Layers as Layers,
    Loss as Loss,
    Nodes as Nodes,
    Scalar as Scalar,
)

update_pc_activities = update_activities
"""[`jpc.update_activities`][] by another name, that of the original implementation."""
update_pc_params = update_params
"""[`jpc.update_params`][] by another name, that of the original implementation."""
