from .amortised import AmortisedEnergy as AmortisedEnergy
from .base import AbstractEnergy as AbstractEnergy, AddEnergy as AddEnergy, total as total
from .epc import EPCEnergy as EPCEnergy, LocalEnergy as LocalEnergy, as_chain as as_chain
from .loss import cross_entropy as cross_entropy, squared_error as squared_error
from .pc import PCEnergy as PCEnergy
from .penalty import (
    ActivityDecay as ActivityDecay,
    GaussianPrior as GaussianPrior,
    SpectralPenalty as SpectralPenalty,
    WeightDecay as WeightDecay,
)
