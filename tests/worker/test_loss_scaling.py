"""fp16: each worker has a scaler of losses, whose state it keeps, from round to round and in checkpoints."""

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, DivergedError
from compss_train.callbacks import Checkpoint
from tests.helpers.models import ADAM, SGD, assert_same_bits, blocked, classification, mlp
from tests.helpers.small_fits import assert_alike, fit, trainer_of

X, Y = classification(samples=57)
X = 30 * X
"""So large that the first gradients overflow."""
FP16 = {"precision": "fp16", "optimizer": SGD, "net": mlp}


def scales(trainer):
    return [state.scaler["scale"] for state in trainer.snapshot().workers]


def test_each_worker_keeps_its_scaler_and_resumes_with_it(tmp_path):
    """Steps that overflow halve the scale, which starts at 65,536."""
    whole, resumed = trainer_of(**FP16), trainer_of(**FP16)
    fit(whole, Checkpoint(tmp_path, keep=9), data=blocked(X, Y, 7))
    assert all(0 < scale < 65536 for scale in scales(whole))
    fit(resumed, data=blocked(X, Y, 7), resume=tmp_path / "round-000001")
    assert_alike(resumed, whole)


@pytest.mark.parametrize("optimizer", [{**ADAM, "fused": True}, {**SGD, "fused": True}])
def test_fused_optimizers_leave_out_steps_that_overflow(optimizer):
    trainer = trainer_of(**FP16 | {"optimizer": optimizer})
    assert all(np.isfinite(array).all() for array in fit(trainer, data=blocked(X, Y, 7)).values())
    assert all(0 < scale < 65536 for scale in scales(trainer))


def update_both(model, batch, context):
    x, y = batch
    hidden = model["first"](x).relu()
    context.update("second", context.loss(model["second"](hidden.detach()), y))
    loss = context.loss(model["second"](hidden), y)
    context.update("first", loss)
    return loss


def test_several_optimizers_share_a_scaler():
    """As the loop that any of them would be in: with the scale as it is at that time."""
    modules = nn.ModuleDict({"first": nn.Linear(6, 16), "second": nn.Linear(16, 3)})
    trainer = DistributedTrainer(1, engine="serial", seed=0, threads=1)
    optimizers = {"first": SGD, "second": SGD}
    trainer.build(modules, optimizers, "cross_entropy", training_step=update_both, precision="fp16")
    options = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    ours = trainer.fit(X, Y, num_epochs=2, batch_size=19, **options)
    own = {name: torch.optim.SGD(modules[name].parameters(), lr=0.05, momentum=0.9) for name in modules}
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        for x, y in zip(torch.from_numpy(X).split(19), torch.from_numpy(Y).split(19), strict=True):
            with torch.autocast("cpu", torch.float16):
                hidden = modules["first"](x).relu()
                losses = {"second": nn.functional.cross_entropy(modules["second"](hidden.detach()), y)}
            step(own["second"], losses["second"], scaler)
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(modules["second"](hidden), y)
            step(own["first"], loss, scaler)
    assert_same_bits(ours, {name: tensor.numpy() for name, tensor in modules.state_dict().items()})
    assert scales(trainer) == [scaler.get_scale()]


def step(optimizer, loss, scaler):
    optimizer.zero_grad()
    inputs = optimizer.param_groups[0]["params"]
    torch.autograd.backward(scaler.scale(loss), inputs=inputs)
    scaler.step(optimizer)
    scaler.update()


def test_outputs_are_predicted_in_float32():
    trainer = trainer_of(**FP16)
    assert trainer.predict(X).dtype == np.float32


class NoGradient(nn.Module):
    """Its gradient is NaN, its value is not."""

    def forward(self, output, target):
        return nn.functional.cross_entropy(output, target) + (0 * output).sqrt().sum()


def test_gradients_that_are_never_finite_end_the_fit():
    """Without an error the scaler would leave out every step."""
    trainer = trainer_of(workers=1, net=mlp, optimizer=SGD, loss=NoGradient(), metric=None, precision="fp16")
    with pytest.raises(DivergedError, match=r"loss scale of fp16 fell to .* in round 0 on worker 0.*bf16"):
        trainer.fit(X, Y, num_epochs=1, batch_size=1, progress=False)


def test_what_fp16_does_not_go_with_is_refused():
    trainer = DistributedTrainer(1, engine="serial")
    with pytest.raises(ValueError, match="parameters in float32, and the network has float16"):
        trainer.build(mlp().half(), SGD, "mse", precision="fp16")
    with pytest.raises(ValueError, match="fp16"):
        trainer.build(mlp(), SGD, "mse", precision="half")
