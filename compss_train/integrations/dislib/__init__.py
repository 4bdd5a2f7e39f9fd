"""The interface of dislib's distributed training: programs for dislib change one import line.

The classes have the names, arguments, attributes and kinds of results of ``dislib.pytorch`` and ``dislib.eddl``
(dislib 1.0), and train with ``DistributedTrainer``. The numbers differ from dislib's, which loses samples, weights
and optimizer states: docs/from-dislib.md lists the differences.
"""

from compss_train.integrations.dislib.eddl import EddlDistributedConmutativo, EncapsulatedFunctionsDistributedEddl
from compss_train.integrations.dislib.pytorch import EncapsulatedFunctionsDistributedPytorch, PytorchDistributed

__all__ = [
    "EddlDistributedConmutativo",
    "EncapsulatedFunctionsDistributedEddl",
    "EncapsulatedFunctionsDistributedPytorch",
    "PytorchDistributed",
]
