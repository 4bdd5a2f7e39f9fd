"""Every kind of fit has the CPU's bits on two emulated devices, which run the CPU's kernels.

With one thread: a device's backward pass runs in a thread of its own, which keeps its first number
of threads.
"""

import numpy as np
import pytest
import torch

from compss_train import DistributedTrainer
from tests.gpu.conftest import REAL
from tests.same_bits import other_kinds  # noqa: F401 - it adds kinds
from tests.same_bits.fitting import Place
from tests.same_bits.kinds import KINDS

pytestmark = pytest.mark.skipif(REAL, reason="real GPUs sum in other orders")

CHOSEN = (
    (
        "total shuffle",
        "commutative, outer optimizer",
        "parameter server",
        ("merged in int8, outer optimizer"),
    ),
    ("optimizers averaged", "files", "several inputs", "FIRO", "gradients accumulated"),
    ("batches without finite loss skipped", "fp16", "two optimizers"),
    (
        "interrupted with samples in buffers and resumed",
        "online, one worker",
        ("dislib's class for torch"),
    ),
    ("collated",),
)
"""One kind for each path of a batch: all others had the same bits too when they were tried."""
SLOW = (
    *("torchmetrics", "estimators of scikit-learn"),
    *("sequences", "sequences by length", "sequences, total shuffle"),
)


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        *(name for row in CHOSEN for name in row),
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
    ],
)
def test_two_devices_have_the_bits_of_a_cpu(name, tmp_path, monkeypatch):
    build = DistributedTrainer.build
    found = []
    for gpus in (0, 2):

        def built(trainer, *arguments, gpus=gpus, **options):
            build(trainer, *arguments, **{"num_gpu": gpus} | options)

        monkeypatch.setattr(DistributedTrainer, "build", built)
        folder = tmp_path / str(gpus)
        folder.mkdir()
        found.append(KINDS[name](Place("serial", folder)))
    assert found[0].keys() == found[1].keys()
    different = [
        key
        for key, bits in found[0].items()
        if not np.array_equal(bits, found[1][key], equal_nan=True)
    ]
    assert not {key: (found[0][key], found[1][key]) for key in different[:1]}


def test_autocast_is_that_of_a_plain_loop_on_the_device():
    """Its lists of operations differ between CPU and CUDA."""
    torch.manual_seed(0)
    x = torch.randn(20, 6)
    y = torch.randint(3, (20,))
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    with DistributedTrainer(1, engine="serial", seed=0, threads=1) as trainer:
        trainer.build(
            net, {"optimizer": "sgd", "lr": 0.1}, "cross_entropy", num_gpu=1, precision="bf16"
        )
        options = {"num_epochs": 2, "batch_size": 5, "shuffle": None, "shuffle_block_data": False}
        trained = trainer.fit(x.numpy(), y.numpy(), progress=False, **options)
    net.to("cuda:0")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        for start in range(0, 20, 5):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                output = net(x[start : start + 5].to("cuda:0"))
                loss = torch.nn.functional.cross_entropy(
                    output.float(), y[start : start + 5].to("cuda:0")
                )
            loss.backward()
            optimizer.step()
    for name, tensor in net.state_dict().items():
        assert np.array_equal(trained[name], tensor.cpu().numpy()), name
