"""What the coordinator does for the workers of a round."""

from typing import ClassVar

import numpy as np
import pytest
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer, SerialEngine


class Counting(SerialEngine):
    """Counts how often somebody asks for a worker's device."""

    asked: ClassVar[list[int]] = []

    @classmethod
    def device(cls, worker: int, num_gpu: int) -> str:
        cls.asked.append(worker)
        return super().device(worker, num_gpu)


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_round_asks_for_the_device_of_each_worker_once(rounds: int) -> None:
    """With thousands of workers, anything that each of them does for all others would take
    seconds.
    """
    Counting.asked.clear()
    workers = 12
    x = BlockedTensor.from_array(np.zeros((2 * workers, 3), np.float32), (workers, 1))
    y = BlockedTensor.from_array(np.zeros(2 * workers, np.int64), (workers, 1))
    with DistributedTrainer(workers, engine=Counting(), seed=0) as trainer:
        trainer.build(nn.Linear(3, 2), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy")
        trainer.fit(x, y, num_epochs=rounds, batch_size=2, progress=False)
    assert sorted(Counting.asked) == sorted([*range(workers)] * rounds)
