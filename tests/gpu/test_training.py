"""Training on GPUs, real or emulated ones."""

import numpy as np
import pytest
import torch

from compss_train import BufferSpec, DistributedTrainer, Gradients, Merge, Simulations
from compss_train.callbacks import Checkpoint, Profile
from compss_train.data.order import transform_seed
from compss_train.model.devices import random_state
from compss_train.model.replica import ModelReplica
from compss_train.model.training_spec import TrainingSpec
from compss_train.worker import gpu_rows
from compss_train.worker.batches import cut_batches
from compss_train.worker.preparing import prepared_batches
from compss_train.worker.source import source_of
from compss_train.worker.work import Residency
from tests.helpers.models import (
    ADAM,
    SGD,
    assert_close,
    awkward_net,
    blocked,
    classification,
    mlp,
    noisy,
    noisy_by_numpy,
    state_arrays,
)
from tests.helpers.small_fits import fit, trainer_of
from tests.helpers.tolerances import adam_error
from tests.worker.assignments import job_of, whole

# At most 24 steps of at most 15 samples.
ROUNDING = adam_error(np.float64, 24, ADAM["lr"], samples=15)


def double_data():
    """CPUs and GPUs sum in other orders, which Adam makes the more of the less exact the sums
    are.
    """
    x, y = classification(samples=60)
    return x.astype(np.float64), y


def without_dropout():
    """The generators of CPU and GPU differ."""
    net = awkward_net().double()
    net[3].p = 0.0
    return net


def fitted(gpus, *callbacks, engine="serial", data=None, build=None, look=None, **options):
    """Return the parameters after a fit, whose trainer is looked at before it is closed."""
    build = {"net": awkward_net().double(), "num_gpu": gpus, **(build or {})}
    with trainer_of(engine, 2, **build) as trainer:
        given = {"num_epochs": 2, "batch_size": 5, **options}
        parameters = fit(trainer, *callbacks, data=blocked(*(data or double_data()), 4), **given)
        if look is not None:
            look(trainer)
        return parameters


@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_gpus_train_what_cpus_train(engine, merge):
    x, y = double_data()

    def look(trainer):
        assert next(trainer.model().parameters()).device.type == "cpu"
        assert trainer.predict(x).shape == (60, 3)
        assert set(trainer.evaluate(x, y)) == {"loss", "accuracy"}

    given = {
        "build": {"net": without_dropout},
        "engine": engine,
        "look": look,
        "merge": Merge(merge, every=0),
    }
    results = [fitted(gpus, **given) for gpus in (0, 1)]
    assert all(isinstance(array, np.ndarray) for array in results[-1].values())
    assert_close(*results, ROUNDING)


def numbered(simulation):
    for step in range(6):
        yield step, np.float32([simulation, step]), np.float32(0)


def on_host(model, batch, context):
    x, _ = batch
    assert x.is_cuda
    for numbers, own in zip((context.simulations, context.steps), x.T.cpu().numpy(), strict=True):
        assert isinstance(numbers, np.ndarray)
        np.testing.assert_array_equal(numbers, own)
    return model(x).mean()


def test_the_numbers_of_samples_stay_on_the_host():
    with DistributedTrainer(1, engine="local", seed=0, threads=1) as trainer:
        trainer.build(torch.nn.Linear(2, 1), ADAM, training_step=on_host, num_gpu=1)
        options = {
            "buffer": BufferSpec("Reservoir", 8, threshold=4),
            "batch_size": 3,
            "progress": False,
        }
        trainer.fit_online(Simulations(numbered, range(3)), **options)
        assert trainer.history[-1]["received"] == 18


def test_steps_on_a_gpu_are_those_on_a_cpu():
    x, y = double_data()
    x[17] = np.nan
    gradients = Gradients(clip_norm=0.5, accumulate=2, on_nan="skip")

    def look(trainer):
        assert [record["skipped_batches"] for record in trainer.history] == [1, 1, 1]

    build = {"net": without_dropout, "schedule": lambda epoch: 0.5**epoch, "gradients": gradients}
    given = {"data": (x, y), "build": build, "look": look, "num_epochs": 3}
    assert_close(*(fitted(gpus, **given) for gpus in (0, 1)), ROUNDING)


@pytest.mark.filterwarnings("ignore:.*num_gpu was 1, and is 0")
def test_a_fit_is_resumed_on_a_gpu_and_a_cpu(tmp_path):
    """Generators, too: the network has Dropout. On a CPU it goes on without the GPU's generator."""
    blocks = Merge(unit="blocks")
    saved = tmp_path / "round-000001"
    results = [fitted(1, Checkpoint(tmp_path, keep=9), merge=blocks)]
    results += [fitted(gpus, merge=blocks, resume=saved) for gpus in (1, 0)]
    assert_close(*results[:2], ROUNDING)
    assert all(np.isfinite(array).all() for array in results[2].values())


@pytest.mark.slow  # each process imports torchmetrics
def test_states_of_metrics_come_from_gpus(engine):
    from torchmetrics.classification import MulticlassAUROC, MulticlassConfusionMatrix

    x, y = double_data()
    metrics = ["accuracy", MulticlassConfusionMatrix(num_classes=3), MulticlassAUROC(num_classes=3)]
    with trainer_of(engine, 2, net=awkward_net().double(), metric=metrics, num_gpu=1) as trainer:
        fit(trainer, data=blocked(x, y, 4), num_epochs=1, batch_size=15)
        assert np.sum(trainer.history[0]["multiclass_confusion_matrix"]) == 60
        table = np.array(trainer.evaluate(x, y)["multiclass_confusion_matrix"])
        right = trainer.predict(x).argmax(axis=1) == y
        assert np.trace(table) == right.sum()


def test_weights_go_to_gpus():
    given = {"build": {"net": without_dropout, "class_weight": [1, 2, 3]}, "batch_size": 15}
    assert_close(
        *(fitted(gpus, sample_weight=np.linspace(0, 2, 60), **given) for gpus in (0, 1)), ROUNDING
    )


def prepared(x, transform, size, device, use=lambda batch: batch.cpu()):
    """Return what is made of each batch, transformed on the device, with its place."""
    spec = TrainingSpec(
        net=mlp(), optimizer=torch.optim.SGD, loss=torch.nn.MSELoss(), transform=transform
    )
    replica = ModelReplica(spec, state_arrays(spec.net), device, training=True)
    resident = Residency(fit="tested", last_epoch=0, share=1.0, idle_seconds=60.0)
    job = job_of(size, spec=spec, seed=3, resident=resident)
    batches = prepared_batches(cut_batches(source_of(job, whole(x), [x]), device), replica, job)
    return [(batch[:3], use(batch.x)) for batch in batches]


@pytest.fixture
def no_room(monkeypatch):
    """A GPU on which no block has room, so that each batch is copied there."""
    monkeypatch.setattr(gpu_rows, "_has_room", lambda rows, device, share: False)


@pytest.mark.usefixtures("no_room")
def test_a_batch_stays_while_a_step_uses_it():
    """Steps that are slower than the copies must not see their batch overwritten by a later one."""
    x = torch.arange(200.0)[:, None].expand(200, 2**14).contiguous()

    def use(batch):
        for _ in range(20):
            batch = batch.clone()
        return batch.double().mean()

    means = [mean.item() for _, mean in prepared(x, lambda batch: batch + 1, 10, "cuda:0", use)]
    assert means == [10 * n + 5.5 for n in range(20)]


@pytest.mark.usefixtures("no_room")
def test_a_block_without_room_is_never_on_a_gpu_as_a_whole():
    x = torch.zeros(512, 2**16)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    prepared(x, None, 4, "cuda:0", len)
    assert torch.cuda.max_memory_allocated() - before < x.numel() * x.element_size() / 4


@pytest.mark.parametrize("transform", [noisy, noisy_by_numpy])
def test_transforms_on_a_gpu_are_seeded_by_place(transform):
    x = torch.rand(40, 6)
    for (epoch, block, position), ours in prepared(x, transform, 8, "cuda:0"):
        with random_state(transform_seed(3, epoch, block, position), "cuda:0"):
            own = x[position : position + 8].to("cuda:0")
            assert torch.equal(ours, transform(own).cpu())


def test_random_transforms_and_buffers_are_reproducible_on_a_gpu(shared_local):
    given = {
        "engine": shared_local,
        "build": {"transform": noisy},
        "buffer": BufferSpec("FIRO", 24, threshold=9),
    }
    assert_close(*(fitted(1, **given) for _ in range(2)), ROUNDING)


def test_fp16_on_a_gpu_resumes_with_its_scale(tmp_path):
    x, y = classification(samples=60)

    def look(trainer):
        assert all(0 < state.scaler["scale"] < 65536 for state in trainer.snapshot().workers)
        assert trainer.predict(x).dtype == np.float32

    given = {
        "build": {"net": mlp, "optimizer": {**SGD, "fused": True}, "precision": "fp16"},
        "look": look,
    }
    # So large that the first gradients overflow.
    given |= {"merge": Merge(unit="blocks"), "data": (30 * x, y)}
    whole = fitted(1, Checkpoint(tmp_path, keep=9), **given)
    assert_close(whole, fitted(1, resume=tmp_path / "round-000001", **given), 0.0)


@pytest.mark.hardware
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_network_trains_on_a_gpu():
    pytest.importorskip("triton")
    results = (
        fitted(1, build={"net": mlp().double(), "compile": value}) for value in (False, True)
    )
    assert_close(*results, ROUNDING)


@pytest.mark.hardware
def test_a_trace_of_a_gpu_has_its_kernels(tmp_path):
    fitted(1, Profile(tmp_path / "trace.json"), build={"net": mlp}, data=classification(samples=60))
    assert '"cat": "kernel"' in (tmp_path / "trace.json").read_text()
