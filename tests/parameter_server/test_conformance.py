"""Tests of every parameter server, run on the local one and on a served one."""

import threading
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch

from compss_train.parameter_server import (
    LocalParameterServer,
    ParameterServerClosedError,
    connect,
    serve,
)
from compss_train.parameter_server.call_queue import CallQueue
from tests.helpers.waiting import LIMIT

SGD = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}


@contextmanager
def served(optimizer=None):
    with serve(optimizer=optimizer) as serving, connect(serving.address, serving.token) as client:
        yield client


KINDS = {"local": LocalParameterServer, "served": served}


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


@pytest.fixture
def server(make):
    with make() as server:
        yield server


class Gate:
    """An optimizer that waits at its first step, so that what is pushed meanwhile is a backlog."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.steps = []
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.first = True

    def __call__(self, parameters):
        return GatedStep(list(parameters), self)


class GatedStep(torch.optim.Optimizer):
    def __init__(self, parameters, gate):
        super().__init__(parameters, {})
        self.parameters = parameters
        self.gate = gate

    def step(self, closure=None):
        if self.gate.first:
            self.gate.first = False
            self.gate.reached.set()
            assert self.gate.opened.wait(LIMIT)
        self.gate.steps.append(float(self.parameters[0].grad.flatten()[0]))


@pytest.fixture
def gated():
    """A served server that waits in its first update; a local one has no backlog."""
    gate = Gate([])
    with served(gate) as server:
        for key in "abc":
            server.init(key, [torch.zeros(1)])
        server.push("a", [torch.zeros(1)])
        assert gate.reached.wait(LIMIT)
        try:
            yield server, gate
        finally:
            gate.opened.set()


@pytest.mark.parametrize("form", [torch.tensor, np.array])
def test_a_pull_sees_all_pushes_before_it(server, form):
    server.init("w", [form([3.0, 4.0])])
    for number in range(20):
        server.push("w", [form([1.0 * number, 0.0])], priority=-number)
        [value] = server.pull("w", priority=number)
        assert value.tolist() == [3.0 + sum(range(number + 1)), 4.0]


def test_arrays_are_added_to_keys_without_the_optimizer(make):
    with make(SGD) as server:
        server.init("counts", [np.array([1, 2])], optimized=False)
        server.init("weight", [np.array([1.0, 2.0])])
        server.push("counts", [np.array([3, 4])])
        server.push("weight", [np.array([1.0, 1.0])])
        assert [value.tolist() for value in server.pull("counts")] == [[4, 6]]
        np.testing.assert_allclose(server.pull("weight")[0], [0.9, 1.9])


def test_no_push_of_any_thread_is_lost(server):
    keys = "abc"
    pushes = 200
    for key in keys:
        server.init(key, [np.zeros(7)])
    random = np.random.default_rng(0)
    # Multiples of a power of two: sums in float64 are exact in any order.
    deltas = random.integers(-(2**20), 2**20, (8, pushes, 7)) / 1024

    def push(thread_deltas):
        for number, delta in enumerate(thread_deltas):
            server.push(keys[number % 3], [delta], priority=int(random.integers(5)))
            if number % 50 == 0:
                server.pull(keys[number % 3])

    threads = [threading.Thread(target=push, args=[thread_deltas]) for thread_deltas in deltas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    for number, key in enumerate(keys):
        np.testing.assert_array_equal(server.pull(key)[0], deltas[:, number::3].sum(axis=(0, 1)))


def test_a_higher_priority_overtakes_a_backlog_and_calls_of_a_key_keep_their_order():
    queue = CallQueue()
    taken = []
    for number, (key, priority) in enumerate([("b", 0), ("c", 1), ("b", 2), ("b", 1), ("d", 3)]):
        queue.add(key, partial(taken.append, number), priority=priority, size=1)
    while run := queue.take():
        run()
    assert taken == [4, 0, 2, 1, 3]
    assert queue.size == 0


def test_sgd_on_the_server_is_plain_sgd(make):
    torch.manual_seed(0)
    net = torch.nn.Linear(5, 3)
    twin = torch.nn.Linear(5, 3)
    twin.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    with make(SGD) as server:
        for name, parameter in net.named_parameters():
            server.init(name, [parameter])
        for _ in range(20):
            x = torch.randn(8, 5)
            y = torch.randn(8, 3)
            for model in (net, twin):
                model.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            for name, parameter in net.named_parameters():
                server.push(name, [parameter.grad])
                server.pull(name, [parameter])
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_use_of_the_java_interface(make):
    """A parameter on two devices: gradients of both are summed, and both replicas are updated
    alike.
    """
    with make({"optimizer": "sgd", "lr": 0.1}) as server:
        replicas = [torch.ones(3), torch.ones(3)]
        server.init("weight", replicas[:1])
        for _ in range(2):
            server.push("weight", [torch.full((3,), 1.0), torch.full((3,), 2.0)], 0)
            server.pull("weight", replicas, 0)
        expected = torch.ones(3)
        for _ in range(2):
            expected -= 0.1 * torch.full((3,), 3.0)
        assert all(torch.equal(replica, expected) for replica in replicas)
        [pulled] = server.pull("weight")
        assert torch.equal(pulled, expected)


def test_pushed_and_pulled_arrays_are_copies(server):
    value = np.zeros(2)
    grad = np.ones(2)
    server.init("w", [value])
    server.push("w", [grad])
    value += 5
    grad += 5
    pulled = server.pull("w")[0]
    assert pulled.tolist() == [1.0, 1.0]
    pulled += 7
    assert server.pull("w")[0].tolist() == [1.0, 1.0]


def test_wrong_calls_are_errors_that_change_nothing(server, raises):
    server.init("w", [np.zeros(3)])
    wrong = [
        (ValueError, "'w'", lambda: server.init("w", [np.ones(3)])),
        (ValueError, "'v'", lambda: server.push("v", [np.ones(3)])),
        (ValueError, "'v'", lambda: server.pull("v")),
        (ValueError, "grads[0] is of float64 (2,)", lambda: server.push("w", [np.ones(2)])),
        (
            ValueError,
            "grads[0] is of float32 (3,)",
            lambda: server.push("w", [np.ones(3, np.float32)]),
        ),
        (
            ValueError,
            "weights[1] is of float64 (4,)",
            lambda: server.pull("w", [np.ones(3), np.ones(4)]),
        ),
        (ValueError, "grads=[]", lambda: server.push("w", [])),
        (ValueError, "priority=1.5", lambda: server.push("w", [np.ones(3)], 1.5)),
        (TypeError, "grads", lambda: server.push("w", np.ones(3))),
        (TypeError, "value", lambda: server.init("v", [[1.0]])),
    ]
    for kind, name, call in wrong:
        with raises(kind, name):
            call()
    assert server.pull("w")[0].tolist() == [0.0] * 3


def test_close_executes_waiting_calls_and_later_calls_are_errors(gated):
    server, gate = gated
    server.push("b", [torch.ones(1)])
    gate.opened.set()
    server.close()
    server.close()
    assert gate.steps == [0.0, 1.0]
    for call in (
        lambda: server.pull("b"),
        lambda: server.push("b", [torch.ones(1)]),
        lambda: server.init("d", [torch.ones(1)]),
    ):
        with pytest.raises(ParameterServerClosedError, match="make another one"):
            call()


def test_what_the_optimizer_cannot_step_is_an_error_of_that_call_alone(make):
    with make(optimizer=SGD) as server:
        with pytest.raises(RuntimeError, match="Only Tensors of floating point and complex dtype"):
            server.init("n", [torch.zeros(2, dtype=torch.int64)])
        server.init("n", [torch.zeros(2, dtype=torch.int64)], optimized=False)
        server.init("w", [torch.zeros(2)])
        server.push("w", [torch.ones(2)])
        assert server.pull("w")[0].tolist() == [np.float32(-0.1)] * 2


def fails_for_vectors(parameters):
    """Return an optimizer that takes matrices only."""
    if any(parameter.dim() < 2 for parameter in parameters):
        raise AssertionError("matrices only")
    return torch.optim.SGD(parameters, 0.1)


def test_an_optimizer_that_cannot_be_made_for_a_key_leaves_the_server_serving(make):
    with make(optimizer=fails_for_vectors) as server:
        with pytest.raises((AssertionError, RuntimeError), match="matrices only"):
            server.init("w", [torch.zeros(2)])
        server.init("w", [torch.zeros(2, 1)])
        assert server.pull("w")[0].tolist() == [[0.0], [0.0]]


class BrokenStep(torch.optim.SGD):
    def step(self, closure=None):
        raise ArithmeticError("no step")


def test_an_error_of_an_optimizer_is_raised_and_other_keys_are_served(make):
    with make({"optimizer": BrokenStep, "lr": 0.1}) as server:
        server.init("w", [torch.zeros(2)])
        with pytest.raises((ArithmeticError, RuntimeError), match="no step"):
            # Which of them raises it depends on the server.
            [server.push("w", [torch.zeros(2)]), server.pull("w")]
        server.init("v", [torch.zeros(2)])
        assert server.pull("v")[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "optimizer", [None, SGD, {"optimizer": "adam", "lr": 0.1}], ids=["sum", "momentum", "adam"]
)
def test_a_key_that_is_loaded_continues_as_the_one_that_was_saved(make, optimizer):
    steps = [torch.tensor([1.0, -3.0]), torch.tensor([0.5, 1.0]), torch.tensor([2.0, 0.25])]
    with make(optimizer) as server:
        for key, optimized in (("w", True), ("n", False)):
            server.init(key, [torch.tensor([1.0, 2.0], dtype=torch.float64)], optimized=optimized)
            server.push(key, [steps[0].double()])
        saved = {key: server.save(key) for key in "wn"}
        with make(optimizer) as other:
            for key, optimized in (("w", True), ("n", False)):
                other.load(key, saved[key], optimized=optimized)
            for pushed in (server, other):
                for step in steps[1:]:
                    pushed.push("w", [step.double()])
                    pushed.push("n", [step.double()])
            for key in "wn":
                assert torch.equal(
                    torch.as_tensor(other.pull(key)[0]), torch.as_tensor(server.pull(key)[0])
                )
        assert torch.equal(saved["n"]["values"][0], torch.tensor([2.0, -1.0], dtype=torch.float64))
        with pytest.raises(ValueError, match="exists already"):
            server.load("w", saved["w"])


def test_a_key_whose_optimizer_state_does_not_fit_is_not_made(make):
    with make(SGD) as server:
        server.init("two", [torch.zeros(2), torch.zeros(3)])
        saved = server.save("two") | {"values": [torch.ones(2)]}
        with pytest.raises((ValueError, RuntimeError), match="param"):
            server.load("one", saved)
        server.init("one", [torch.ones(2)])
        assert server.pull("one")[0].tolist() == [1.0, 1.0]


def test_keys_are_texts_and_integers(server):
    for key in ("0", 0, -3, 2**70, np.int64(5)):
        server.init(key, [np.full(1, float(key))])
    for key in ("0", 0, -3, 2**70, 5):
        assert server.pull(key)[0].tolist() == [float(key)]
    for key in (None, 1.0, True, b"0", "\ud800", ("w",)):
        with pytest.raises(TypeError, match=r"parameter_id=.*: give a text or an integer"):
            server.init(key, [np.zeros(1)])
    assert server.pull("0")[0].tolist() == [0.0]  # the client goes on
