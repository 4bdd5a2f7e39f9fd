"""The interface of dislib's distributed training: programs for dislib change one import.

The classes have the names, arguments, attributes and kinds of results of ``dislib.pytorch`` and
``dislib.eddl`` (dislib 1.0), and train with ``DistributedTrainer``. The class of ``dislib.pytorch``
also has those of dislib's next release and of the two forks that the paper on dislib's training
measured. Results differ from dislib's, which loses samples, weights and optimizer states:
docs/from-dislib.md lists the differences.
"""

from compss_train.integrations.dislib.eddl import (
    EddlDistributedConmutativo,
    EncapsulatedFunctionsDistributedEddl,
)
from compss_train.integrations.dislib.pytorch import (
    EncapsulatedFunctionsDistributedPytorch,
    PytorchDistributed,
    tensor_from_ds_array,
)

__all__ = [
    "EddlDistributedConmutativo",
    "EncapsulatedFunctionsDistributedEddl",
    "EncapsulatedFunctionsDistributedPytorch",
    "PytorchDistributed",
    "tensor_from_ds_array",
]
