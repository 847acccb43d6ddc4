from .amortised import AmortisedEnergy as AmortisedEnergy
from .base import (
    AbstractEnergy as AbstractEnergy,
    AddEnergy as AddEnergy,
    ScaledEnergy as ScaledEnergy,
    total as total,
)
from .bpc import BPCEnergy as BPCEnergy
from .epc import (
    EPCEnergy as EPCEnergy,
    LocalEnergy as LocalEnergy,
    check_of_states as check_of_states,
)
from .graph import GraphEnergy as GraphEnergy
from .loss import (
    LOSSES as LOSSES,
    bernoulli as bernoulli,
    cross_entropy as cross_entropy,
    huber as huber,
    not_a_distribution as not_a_distribution,
    poisson as poisson,
    squared_error as squared_error,
    unfit as unfit,
)
from .network import (
    AbstractNetworkEnergy as AbstractNetworkEnergy,
    AbstractPenalty as AbstractPenalty,
    Network as Network,
    Node as Node,
    Parts as Parts,
    check_known as check_known,
    predictions as predictions,
    take_apart as take_apart,
)
from .pc import PCEnergy as PCEnergy
from .penalty import (
    ActivityDecay as ActivityDecay,
    GaussianPrior as GaussianPrior,
    SpectralPenalty as SpectralPenalty,
    WeightDecay as WeightDecay,
)
from .precise import Precise as Precise, PrecisionEnergy as PrecisionEnergy
from .unfold import Unfolded as Unfolded, ravel as ravel
