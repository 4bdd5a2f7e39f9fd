"""Programs find every name that the documents of the sources list, with its parameters, defaults
and attributes.
"""

import ast
import importlib
import inspect
import queue
from enum import Enum

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler, Sampler

from compss_train.integrations import dislib, melissa
from compss_train.parameter_server import LocalParameterServer
from tests.integrations.dislib_tensors import tensors
from tests.samplers.numbered_files import write_files
from tests.sources import interfaces

KINDS = list(interfaces.BASES)


def found(name):
    """Return a module, or a class in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


def differences(owner, signature):
    """Return how our function or class differs from a signature.

    Calls of the signature are calls of ours: ours may have more defaults, and more parameters with
    defaults.
    """
    listed = ast.parse(f"def {signature}: ...").body[0]
    ours = list(inspect.signature(getattr(owner, listed.name)).parameters.values())
    if inspect.isclass(owner):
        ours = ours[1:]  # self
    names = vars(inspect.getmodule(owner))
    none = [inspect.Parameter.empty] * (len(listed.args.args) - len(listed.args.defaults))
    defaults = [*none, *(eval(ast.unparse(default), names) for default in listed.args.defaults)]
    for argument, default, own in zip(listed.args.args, defaults, ours, strict=False):
        if (own.name, own.kind) != (argument.arg, own.POSITIONAL_OR_KEYWORD):
            yield f"{own.kind.description} {own.name} in place of {argument.arg}"
        elif default is not own.empty and (type(own.default), own.default) != (
            type(default),
            default,
        ):
            yield f"{argument.arg}={own.default} in place of {default}"
    yield from (f"no {argument.arg}" for argument in listed.args.args[len(ours) :])
    for own in ours[len(defaults) :]:
        if own.default is own.empty and own.kind not in (own.VAR_POSITIONAL, own.VAR_KEYWORD):
            yield f"{own.name} is required"


@pytest.mark.parametrize(("owner", "signature"), interfaces.CALLS)
def test_calls_have_the_parameters_of_the_sources(owner, signature):
    assert list(differences(found(owner), signature)) == []


class Ours:
    def call(self, x, y=1, *, z=None, **options): ...


@pytest.mark.parametrize("signature", ["call(x, y=1)", "call(x)", "call(x, y)"])
def test_calls_of_a_signature_with_fewer_defaults_are_calls_of_ours(signature):
    assert list(differences(Ours, signature)) == []


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("call(y, x=1)", "positional or keyword x in place of y"),
        ("call(x, y=True)", "y=1 in place of True"),
        ("call(x=None, y=1)", "x=<class 'inspect._empty'> in place of None"),
        ("call(x, y=1, z=None)", "keyword-only z in place of z"),
        ("call(x, y=1, z=None, options=None, a=2)", "no a"),
        ("call()", "x is required"),
    ],
)
def test_a_difference_is_found(signature, expected):
    assert expected in differences(Ours, signature)


@pytest.mark.parametrize("method", interfaces.QUEUE_METHODS)
def test_the_methods_of_a_queue_are_those_of_the_standard_library(method):
    assert list(differences(queue.Queue, method)) == []


# Melissa


def test_types_of_buffers_have_their_numbers():
    assert issubclass(melissa.BufferType, Enum)
    assert {kind.name: kind.value for kind in melissa.BufferType} == interfaces.BUFFER_TYPES


@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_has_its_class_and_attributes(kind):
    needed = interfaces.NEEDED[kind]
    made = melissa.make_buffer(9, melissa.BufferType[kind], **needed)
    assert isinstance(made, melissa.BaseQueue)
    assert type(made) is getattr(melissa, kind)
    for base in interfaces.BASES[kind]:
        assert isinstance(made, getattr(melissa, base)), base
    for base, names in interfaces.MELISSA_METHODS.items():
        if isinstance(made, getattr(melissa, base)):
            assert [name for name in names if not hasattr(made, name)] == []
    values = {"maxsize": 9, "threshold": needed.get("per_server_watermark"), **needed}
    for name in interfaces.QUEUE_ATTRIBUTES[kind]:
        assert getattr(made, name) == values[name]
    for name in needed:
        with pytest.raises(ValueError, match=f"requires {name}; give a value"):
            melissa.make_buffer(9, melissa.BufferType[kind], **{**needed, name: None})


# dislib


def network():
    return nn.Sequential(nn.Linear(6, 3), nn.Softmax(dim=1))


def built(owner, num_workers=2):
    made = found(owner)(num_workers, engine="serial", threads=1)
    if owner == interfaces.EDDL:
        optimizer = {"optimizer": "sgd", "lr": 0.1}
        assert (
            made.build(network(), optimizer, "softmax_cross_entropy", "categorical_accuracy")
            is None
        )
    else:
        assert (
            made.build(nn.Linear(6, 3), torch.optim.SGD, nn.CrossEntropyLoss, {"lr": 0.1}) is None
        )
    return made


@pytest.mark.parametrize("owner", interfaces.WORKER_OBJECTS)
def test_an_object_of_dislib_has_its_attributes(owner):
    entry = getattr(dislib, interfaces.WORKER_OBJECTS[owner])
    for made in (found(owner)(engine="serial"), found(owner)(3, engine="serial"), built(owner, 3)):
        assert [name for name in interfaces.DISLIB_ATTRIBUTES if not hasattr(made, name)] == []
        assert type(made.compss_object) is list
        assert [type(each) for each in made.compss_object] == [entry] * made.num_workers
        assert made.get_parameters() is made.model_parameters


@pytest.mark.parametrize("fit", [signature.partition("(")[0] for signature in interfaces.FITS])
@pytest.mark.parametrize("owner", interfaces.WORKER_OBJECTS)
def test_fits_return_the_parameters(owner, fit):
    made = built(owner)
    result = getattr(made, fit)(*tensors(), 3, 1, progress=False)
    assert isinstance(result, np.ndarray if owner == interfaces.EDDL else nn.Module)
    assert made.model_parameters is made.get_parameters() is result


@pytest.mark.parametrize(("name", "parameters"), interfaces.OPTIMIZERS.items())
def test_optimizers_have_the_names_of_eddl(name, parameters):
    flags = {"amsgrad": True, "nesterov": False}
    spec = {"optimizer": name, **{each: flags.get(each, 0.5) for each in parameters}}
    made = found(interfaces.EDDL)(1, engine="serial")
    made.build(network(), spec, "mse", "mse", schedule=lambda epoch: 1.0)
    made.fit_synchronous_with_GPU(*tensors(), 3, 1, progress=False)


NAMES = [
    *((loss, "mse") for names in interfaces.LOSSES.items() for loss in names if loss),
    *(("mse", metric) for names in interfaces.METRICS.items() for metric in names),
]


@pytest.mark.parametrize(("loss", "metric"), NAMES)
def test_losses_and_metrics_have_the_names_of_eddl(loss, metric):
    made = found(interfaces.EDDL)(1, engine="serial")
    made.build(network(), {"optimizer": "sgd", "lr": 0.1}, loss, metric)
    made.fit_synchronous_with_GPU(*tensors(), 3, 1, progress=False)
    assert metric in made.trainer.history[0]


# DJL and PartiallyShuffle


def test_a_parameter_server_is_closed_at_the_end_of_a_block():
    with found(f"{interfaces.DJL}.ParameterServer")(LocalParameterServer()) as server:
        assert server.init("w", [np.zeros(2)]) is None


@pytest.mark.parametrize("owner", interfaces.SAMPLERS)
def test_a_sampler_has_what_a_distributed_sampler_has(owner, tmp_path):
    class Listing:
        files = write_files(tmp_path, [5, 4])

    made = found(owner)(Listing(), None, 2, 1)
    assert isinstance(made, Sampler)
    plain = DistributedSampler(range(9), 2, 1)
    assert {name for name in vars(plain) if not name.startswith("_")} == set(
        interfaces.SAMPLER_ATTRIBUTES
    )
    assert [name for name in interfaces.SAMPLER_ATTRIBUTES if not hasattr(made, name)] == []
    assert (len(made), made.num_samples, made.num_replicas, made.rank) == (len(plain), 5, 2, 1)
    made.set_epoch(3)
    assert made.epoch == 3
