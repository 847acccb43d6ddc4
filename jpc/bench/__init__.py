"""Which rule of learning trains which network, at what cost, how far from backpropagation:
`jpc bench deep`.
"""

from ._run import bench as bench
from ._table import NETWORKS as NETWORKS, RULES as RULES, SIZES as SIZES, SUITES as SUITES
