"""DJL's parameter server: a key is one parameter, and its arrays are one for each device."""

import numpy as np
import pytest
import torch

from compss_train.integrations.djl import ParameterServer
from compss_train.parameter_server import (
    LocalParameterServer,
    ParameterServerClosedError,
    connect,
    serve,
)

SGD = {"optimizer": "sgd", "lr": 0.5}


@pytest.fixture(params=["local", "served"])
def make(request):
    """Return a function that makes a server with an optimizer."""
    servings = []

    def made(optimizer=None):
        if request.param == "local":
            return ParameterServer(LocalParameterServer(optimizer))
        servings.append(serve(optimizer=optimizer))
        return ParameterServer(connect(servings[-1].address, servings[-1].token))

    yield made
    for serving in servings:
        serving.close()


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("optimizer", [None, SGD])
def test_gradients_of_all_devices_are_summed_and_every_device_gets_the_value(
    make, replicas, optimizer
):
    value = np.arange(6.0).reshape(2, 3)
    grads = [np.full((2, 3), 2.0**number) for number in range(replicas)]
    with make(optimizer) as server:
        assert server.init("weight", [value.copy() for _ in range(replicas)]) is None
        assert server.push("weight", grads, 0) is None
        assert server.push("weight", [torch.from_numpy(grad) for grad in grads], -3) is None
        weights = [
            np.empty((2, 3)),
            *(torch.empty(2, 3, dtype=torch.float64) for _ in range(replicas - 1)),
        ]
        assert server.pull("weight", weights, 5) is None
    expected = value + 2 * sum(grads) * (1 if optimizer is None else -0.5)
    for weight in weights:
        np.testing.assert_array_equal(weight, expected)


def test_arrays_of_other_shapes_are_refused(make):
    with make() as server:
        for value in ([np.zeros(2), np.zeros(3)], [np.zeros(2), np.zeros(2, np.float32)]):
            with pytest.raises(
                ValueError, match=r"'w' holds an array of torch.float64 \(2,\), but value\[1\]"
            ):
                server.init("w", value)
        with pytest.raises(ValueError, match="give at least one array"):
            server.init("w", [])
        with pytest.raises(TypeError, match=r"value must be a list .* give \[array\]"):
            server.init("w", np.zeros(2))
        server.init("w", [np.zeros(2)])
        with pytest.raises(ValueError, match="'w' exists already"):
            server.init("w", [np.zeros(2)])
        for call in (server.push, server.pull):
            with pytest.raises(ValueError, match="dtypes and shapes must agree"):
                call("w", [np.zeros(2), np.zeros(3)], 0)
            with pytest.raises(ValueError, match="'v' does not exist"):
                call("v", [np.zeros(2)], 0)


def test_a_closed_server_takes_no_calls(make):
    server = make()
    server.close()
    server.close()
    with pytest.raises(ParameterServerClosedError):
        server.init("w", [np.zeros(2)])
