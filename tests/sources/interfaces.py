"""What the documents list that this project started from: names, parameters, their order and
defaults, attributes.

Facts copied from Melissa's page on buffers, the pages of ``dislib.eddl`` and of DJL's
``ParameterServer``, a page on queues, and the description of PartiallyShuffle; those of
``dislib.pytorch`` are from its release. Programs for these systems call each name, so a row goes
only if it was copied wrongly.
"""

MELISSA = "compss_train.integrations.melissa"
DISLIB = "compss_train.integrations.dislib"
DJL = "compss_train.integrations.djl"
PARTIALLY_SHUFFLE = "compss_train.samplers"

EDDL = f"{DISLIB}.EncapsulatedFunctionsDistributedEddl"
PYTORCH = f"{DISLIB}.EncapsulatedFunctionsDistributedPytorch"
SAMPLERS = tuple(
    f"{PARTIALLY_SHUFFLE}.DistributedSamplerViaLocallyShuffle{version}" for version in ("", "V2")
)

BUFFER_TYPES = {"FIFO": 0, "FIRO": 1, "Reservoir": 2, "BatchReservoir": 3, "SimPairedReservoir": 4}

BASES = {
    "FIFO": ("CounterMixin", "ReceptionDependant", "BaseQueue"),
    "FIRO": ("CounterMixin", "ReceptionDependant", "BaseQueue"),
    "Reservoir": ("CounterMixin", "ThresholdMixin", "RandomEvictOnWriteQueue"),
    "BatchReservoir": ("BatchGetMixin", "Reservoir"),
    "SimPairedReservoir": ("ThresholdMixin", "SimPairedQueue"),
}
"""Melissa's classes, and their bases."""

NEEDED = {
    "FIFO": {},
    "FIRO": {"per_server_watermark": 2},
    "Reservoir": {"per_server_watermark": 2},
    "BatchReservoir": {"per_server_watermark": 2, "batch_size": 3},
    "SimPairedReservoir": {"per_server_watermark": 2, "sweep_size": 4, "nb_time_steps": 5},
}
"""What ``make_buffer`` raises ``ValueError`` without; as the attributes say, the watermark is the
threshold.
"""

QUEUE_ATTRIBUTES = {
    "FIFO": ("maxsize",),
    "FIRO": ("maxsize", "threshold"),
    "Reservoir": ("maxsize", "threshold"),
    "BatchReservoir": ("maxsize", "threshold", "batch_size"),
    "SimPairedReservoir": ("maxsize", "threshold", "sweep_size", "nb_time_steps"),
}

QUEUE_METHODS = (
    "put(item, block=True, timeout=None)",
    "get(block=True, timeout=None)",
    "put_nowait(item)",
    "get_nowait()",
    "qsize()",
    "empty()",
    "full()",
    "task_done()",
    "join()",
)
"""The methods of ``queue.Queue``."""

MELISSA_METHODS = {
    "CounterMixin": ("seen_counts", "repetitions"),  # how often each item was seen
    "ReceptionDependant": ("signal_reception_over", "reception_over"),
    "BaseQueue": ("unfinished_tasks",),
}
"""Our names for what the page says of its classes without a name."""

_SIZE = "x_train, y_train, num_batches_per_worker, num_epochs"
_ORDER = "shuffle_blocks=True, shuffle_block_data=True"
FITS = (
    f"fit_asynchronous_n_epochs_with_GPU({_SIZE}, n_epocs_sync=0, {_ORDER})",
    f"fit_asynchronous_shuffle_n_epochs_with_GPU({_SIZE}, n_epocs_sync=0)",
    f"fit_asynchronous_shuffle_with_GPU({_SIZE})",
    f"fit_asynchronous_with_GPU({_SIZE}, {_ORDER})",
    f"fit_synchronous_every_n_epochs_with_GPU({_SIZE}, n_epocs_sync=1, {_ORDER})",
    f"fit_synchronous_shuffle_every_n_epochs_with_GPU({_SIZE}, n_epocs_sync=1)",
    f"fit_synchronous_shuffle_with_GPU({_SIZE})",
    f"fit_synchronous_with_GPU({_SIZE}, {_ORDER})",
)
_SHUFFLES = "num_replicas=None, rank=None, shuffle=True, shuffle_buffer=None, total_size=None"

CALLS = (
    (
        MELISSA,
        "make_buffer(buffer_size, buffer_t=BufferType.FIFO, per_server_watermark=None, "
        "pseudo_epochs=None, batch_size=None, sweep_size=None, nb_time_steps=None, comm_size=1)",
    ),
    (DISLIB, "EncapsulatedFunctionsDistributedEddl(num_workers=10)"),
    (EDDL, "build(net, optimizer, loss, metric, num_gpu=0, num_nodes=0)"),
    (DISLIB, "EncapsulatedFunctionsDistributedPytorch(num_workers=10)"),
    (PYTORCH, "build(net, optimizer, loss, optimizer_parameters, num_gpu=0, num_nodes=0)"),
    *((owner, signature) for owner in (EDDL, PYTORCH) for signature in (*FITS, "get_parameters()")),
    (f"{DJL}.ParameterServer", "init(parameterId, value)"),
    (f"{DJL}.ParameterServer", "push(parameterId, grads, priority)"),
    (f"{DJL}.ParameterServer", "pull(parameterId, weights, priority)"),
    (f"{DJL}.ParameterServer", "close()"),
    *(
        (
            PARTIALLY_SHUFFLE,
            f"{owner.rpartition('.')[2]}(dataset, reader, {_SHUFFLES}, batch_size=1, "
            "file_buffer=10, debug=False, files_len=None)",
        )
        for owner in SAMPLERS
    ),
    *(
        (owner, signature)
        for owner in SAMPLERS
        for signature in ("set_epoch(epoch)", "find_ckpt_position(step)")
    ),
    *((f"{MELISSA}.{kind}", signature) for kind in BASES for signature in QUEUE_METHODS),
)
"""A module or class, and the signature of what it has."""

DISLIB_ATTRIBUTES = ("model_parameters", "compss_object", "num_workers")
WORKER_OBJECTS = {EDDL: "EddlDistributedConmutativo", PYTORCH: "PytorchDistributed"}
"""The classes of the entries of ``compss_object``."""

OPTIMIZERS = {
    "adam": ("lr", "beta_1", "beta_2", "epsilon", "weight_decay", "amsgrad"),
    "sgd": ("lr", "momentum", "weight_decay", "nesterov"),
    "rmsprop": ("lr", "rho", "epsilon", "weight_decay"),
    "adagrad": ("lr", "epsilon", "weight_decay"),
    "adamax": ("lr", "beta_1", "beta_2", "epsilon", "weight_decay"),
    "adadelta": ("lr", "rho", "epsilon", "weight_decay"),
    "nadam": ("lr", "beta_1", "beta_2", "epsilon", "schedule_decay"),
}
"""EDDL's optimizers, and the parameters of each, for the dict that ``build`` takes."""
LOSSES = {
    "mean_squared_error": "mse",
    "soft_cross_entropy": "sce",
    "binary_cross_entropy": "bce",
    "categorical_cross_entropy": "cce",
    "cross_entropy": "ce",
    "softmax_cross_entropy": None,
    "dice": None,
}
METRICS = {
    "mean_squared_error": "mse",
    "categorical_accuracy": "accuracy",
    "mean_absolute_error": "mae",
    "mean_relative_error": "mre",
}
"""EDDL's names, with another name of each."""

SAMPLER_ATTRIBUTES = (
    *(
        "dataset",
        "num_replicas",
        "rank",
        "shuffle",
        "seed",
        "drop_last",
        "epoch",
        "num_samples",
        "total_size",
    ),
)
"""The attributes of torch's ``DistributedSampler``, which the samplers replace."""
