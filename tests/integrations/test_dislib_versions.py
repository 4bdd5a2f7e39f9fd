"""Programs for dislib's next release and for the forks of the paper on dislib's training: forms of
their calls.
"""

import gc
import itertools
import math
import warnings
import weakref
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from compss_train import DistributedTrainer
from compss_train.integrations.dislib import (
    EncapsulatedFunctionsDistributedPytorch,
    PytorchDistributed,
    tensor_from_ds_array,
)
from tests.helpers.models import FITS, assert_same_bits, mlp, state_arrays
from tests.integrations.dislib_tensors import Tensor, tensors, whole

X, Y = tensors()
CLASSES = whole(Y).argmax(1)
QUIET = {"progress": False}
IN_ORDER = {"shuffle_blocks": False, "shuffle_block_data": False, "progress": False}
COSINE = {"scheduler": CosineAnnealingLR, "T_max": 4, "eta_min": 0.01}
ADAPTIVE = 0.01


def clip(model):
    """Clip as the paper's programs do: each gradient to a part of the norm of its parameter."""
    for parameter in model.parameters():
        limit = ADAPTIVE * parameter.detach().norm()
        if parameter.grad.norm() > limit:
            parameter.grad.mul_(limit / (parameter.grad.norm() + 1e-6))


def halving(optimizer, T_max, eta_min):
    """Halve the rate every epoch, from the function of a program."""
    return StepLR(optimizer, 1, gamma=0.5)


def made(*args, num_workers=1, net=None, loss=nn.CrossEntropyLoss, engine="serial", **options):
    encapsulated = EncapsulatedFunctionsDistributedPytorch(
        num_workers, engine=engine, seed=3, threads=1
    )
    encapsulated.build(net or mlp(), optim.SGD, loss, {"lr": 0.1}, *args, **options)
    return encapsulated


def plain_loop(epochs, before_step=lambda net: None, schedule=None, labels=CLASSES):
    """Train on each block in three batches, with a scheduler that is stepped once an epoch."""
    net = mlp()
    loss = nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    scheduler = schedule and schedule(optimizer)
    batches = whole(X).float().split(5), labels.split(5)  # of four blocks of 15 rows
    for _ in range(epochs):
        for x, y in zip(*batches, strict=True):
            optimizer.zero_grad()
            loss(net(x), y).backward()
            before_step(net)
            optimizer.step()
        if scheduler:
            scheduler.step()
    return net


class DsArray:
    """Looks like an array of dislib, whose blocks have no samples."""

    _blocks = ((np.ones((2, 6)),),)
    _reg_shape = (2, 6)


# build


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((2, 1), {"num_gpu": 2, "num_nodes": 1}),
        ((np.int64(2),), {"num_gpu": 2}),
        ((CosineAnnealingLR, 4, 0.01, 2, 1), {**COSINE, "num_gpu": 2, "num_nodes": 1}),
        ((CosineAnnealingLR, 4), {"scheduler": CosineAnnealingLR, "T_max": 4}),
        ((None, 4, 0.01, 2, 1), {"num_gpu": 2, "num_nodes": 1}),
        (
            (halving, 4, 0.01, 2, 1),
            {"scheduler": halving, "T_max": 4, "eta_min": 0.01, "num_gpu": 2},
        ),
        (
            (clip, CosineAnnealingLR, 4, 0.01, 2, 1),
            {"gradient_clipping": clip, **COSINE, "num_gpu": 2},
        ),
        ((clip,), {"gradient_clipping": clip}),
        ((None, CosineAnnealingLR, 4, 0.01), COSINE),
        ((None, None, 1, 0.0, 2, 1), {"num_gpu": 2}),
        ((None,), {}),
        ((), {}),
    ],
)
def test_the_fifth_argument_of_build_tells_the_order(args, named, monkeypatch):
    monkeypatch.setenv("ComputingUnitsGPUs", "0")
    by_position = made(*args)
    by_name = made(**named)
    for each in (by_position, by_name):
        each.fit_synchronous_with_GPU(X, Y, 3, 3, **IN_ORDER)
    assert by_position.num_gpu == by_name.num_gpu == (2 if 2 in args else 0)
    assert by_position.trainer.configuration["build"] == by_name.trainer.configuration["build"]
    assert_same_bits(by_position.trainer.get_parameters(), by_name.trainer.get_parameters())
    rates = [record.get("lr") for record in by_position.trainer.history]
    assert (len(set(rates)) > 1) == (CosineAnnealingLR in args or halving in args)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("the fifth argument of build is 'cuda'", ["cuda"]),
        ("the fifth argument of build is {}", [{}]),
        (
            "build() was called with 7 arguments; after the fourth it takes num_gpu, num_nodes",
            [2, 1, 3],
        ),
        (
            "gradient_clipping, scheduler, T_max, eta_min, num_gpu, num_nodes here",
            [clip, None, 1, 0.0, 2, 1, 3],
        ),
    ],
)
def test_other_arguments_of_build_are_refused_by_name(name, call, raises):
    with raises(TypeError, name):
        made(*call)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("build() got several values for num_gpu", partial(made, 2, num_gpu=2)),
        ("build() got several values for T_max", partial(made, CosineAnnealingLR, 2, T_max=2)),
        (
            "got scheduler= and schedule=",
            partial(made, scheduler=StepLR, schedule=lambda epoch: 1.0),
        ),
        ("gradient_clipping=0.01", partial(made, gradient_clipping=0.01)),
        ("scheduler='cosine': give a class", partial(made, scheduler="cosine")),
        ("unexpected keyword argument 'T_mx'", partial(made, T_mx=2)),
    ],
)
def test_build_refuses_what_contradicts_itself(name, call, raises):
    with raises(TypeError, name):
        call()


@pytest.mark.parametrize(
    "scheduler", [StepLR, partial(StepLR, step_size=2), lambda optimizer: None]
)
def test_a_scheduler_that_takes_no_t_max_is_refused(scheduler):
    with pytest.raises(
        TypeError,
        match=r"^scheduler=.* T_max.*give schedule=.*functools.partial\(StepLR, step_size=10",
    ):
        made(scheduler=scheduler)
    made(schedule=partial(StepLR, step_size=10))


@pytest.mark.parametrize("change", [dict.clear, lambda own: own.update(lr=0.01)])
def test_parameters_of_the_optimizer_that_change_after_build_are_not_ignored_in_silence(change):
    own = {"lr": 0.1}
    encapsulated = EncapsulatedFunctionsDistributedPytorch(2, engine="serial", seed=3, threads=1)
    encapsulated.build(mlp(), optim.SGD, nn.CrossEntropyLoss, own)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encapsulated.fit_synchronous_with_GPU(X, Y, 3, 1, **QUIET)
    change(own)
    with pytest.warns(
        UserWarning,
        match=r"ignore that optimizer_parameters, \{'lr': 0.1\} in build, are .* schedule=",
    ):
        encapsulated.fit_synchronous_with_GPU(X, Y, 3, 1, **QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encapsulated.build(encapsulated.get_parameters(), optim.Adam, nn.CrossEntropyLoss, own)
        encapsulated.fit_synchronous_with_GPU(X, Y, 3, 1, **QUIET)
    encapsulated.compss_object[1].optimizer_parameters = {"lr": 0.2}
    with pytest.warns(UserWarning, match=r"are \{'lr': 0.2\} now"):
        encapsulated.fit_synchronous_with_GPU(X, Y, 3, 1, **QUIET)


def test_the_scheduler_is_stepped_once_an_epoch():
    encapsulated = made(**COSINE)
    trained = encapsulated.fit_synchronous_with_GPU(X, Y, 3, 2, **IN_ORDER)
    encapsulated.model_parameters = trained
    trained = encapsulated.fit_synchronous_with_GPU(X, Y, 3, 3, **IN_ORDER)  # a second fit goes on
    expected = plain_loop(
        5, schedule=partial(CosineAnnealingLR, T_max=4, eta_min=0.01), labels=whole(Y).float()
    )
    assert_same_bits(state_arrays(trained), state_arrays(expected))
    assert not torch.equal(
        trained[0].weight, made().fit_synchronous_with_GPU(X, Y, 3, 5, **IN_ORDER)[0].weight
    )


def test_gradient_clipping_is_called_before_each_step():
    y = Tensor(CLASSES, (2, 2))
    trained = made(gradient_clipping=clip).fit_synchronous_with_GPU(X, y, 3, 2, **IN_ORDER)
    assert_same_bits(state_arrays(trained), state_arrays(plain_loop(2, clip)))
    assert not torch.equal(trained[0].weight, plain_loop(2)[0].weight)


def test_gradient_clipping_travels_to_processes(engine):
    here, there = (
        made(num_workers=2, gradient_clipping=clip, engine=each) for each in ("serial", engine)
    )
    for each in (here, there):
        each.fit_synchronous_with_GPU(X, Y, 3, 2, **QUIET)
    assert_same_bits(here.trainer.get_parameters(), there.trainer.get_parameters())


def test_gradient_clipping_is_called_in_the_steps_of_an_entry():
    own = made(gradient_clipping=clip).compss_object[0]
    assert isinstance(own, PytorchDistributed)
    x = whole(X)[:15]
    y = CLASSES[:15]
    trained = own.train_cnn_batch_GPU(mlp(), x, y, 3, False)
    expected = made(gradient_clipping=clip).fit_synchronous_with_GPU(
        Tensor(x, (1, 1)), Tensor(y, (1, 1)), 3, 1, **IN_ORDER
    )
    assert_same_bits(state_arrays(trained), state_arrays(expected))


# Labels

NUMBERS = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)


def trained_with(y, loss=nn.CrossEntropyLoss):
    encapsulated = made(num_workers=2, loss=loss)
    encapsulated.fit_synchronous_with_GPU(X, Tensor(y, (2, 2)), 3, 2, **QUIET)
    return encapsulated.trainer.get_parameters(), encapsulated.trainer.evaluate(
        X, Tensor(y, (2, 2))
    )


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss, partial(nn.CrossEntropyLoss, label_smoothing=0.1)]
)
def test_a_class_has_many_forms(loss):
    expected, evaluated = trained_with(CLASSES, loss)
    for dtype in NUMBERS:
        for shape in ((-1,), (-1, 1)):
            parameters, measured = trained_with(CLASSES.to(dtype).reshape(shape), loss)
            assert_same_bits(parameters, expected)
            assert measured == evaluated


def test_one_hot_rows_are_targets_in_any_dtype():
    one_hot = whole(Y)
    expected, evaluated = trained_with(one_hot.float())
    for dtype in NUMBERS:
        parameters, measured = trained_with(one_hot.to(dtype))
        assert_same_bits(parameters, expected)
        assert measured == evaluated
    assert evaluated["loss"] == pytest.approx(trained_with(CLASSES)[1]["loss"], rel=1e-5)


def test_numbers_that_are_no_classes_are_refused():
    with pytest.raises(ValueError, match=r"torch.float32 \(5,\) hold other numbers than classes"):
        trained_with(CLASSES.float() + 0.5)


def test_the_loss_that_was_given_is_not_changed():
    given = nn.CrossEntropyLoss()
    trained_with(CLASSES.float(), loss=lambda: given)
    with pytest.raises(RuntimeError):
        given(torch.zeros(2, 3), torch.zeros(2))


# Training curves

SYNCHRONOUS = "fit_synchronous_with_GPU"
EVERY = "fit_synchronous_every_n_epochs_with_GPU"
ASYNCHRONOUS = "fit_asynchronous_with_GPU"
WITH_LOSSES = (SYNCHRONOUS, EVERY, ASYNCHRONOUS)
CURVES = ("fit_synchronous_with_GPU_train_curves", "fit_asynchronous_with_GPU_train_curves")
X_TEST, Y_TEST = tensors(shape=(3, 1))


def curves_of(fit, *args, num_workers=2, **options):
    encapsulated = made(num_workers=num_workers)
    returned = getattr(encapsulated, fit)(X, Y, 3, 4, *args, **QUIET, **options)
    return encapsulated, returned


@pytest.mark.parametrize("fit", [*WITH_LOSSES, *CURVES])
def test_curves_have_a_number_for_each_merge(fit):
    asked = {"return_loss": True} if fit in WITH_LOSSES else {}
    every = (2,) if fit == EVERY else ()
    encapsulated, returned = curves_of(fit, *every, x_test=X_TEST, y_test=Y_TEST, **asked)
    net, training_loss, training_acc, validation_loss, validation_acc = returned
    assert net is encapsulated.model_parameters
    history = encapsulated.trainer.history
    merges = 2 if fit == EVERY else 4
    assert [len(each) for each in returned[1:]] == [merges] * 4 == [len(history)] * 4
    assert training_loss == [record["loss"] for record in history]
    assert all(0 <= number <= 1 for number in training_acc + validation_acc)
    assert validation_loss[-1] < validation_loss[0]
    outputs = net(whole(X_TEST).float())
    expected = nn.functional.cross_entropy(outputs, CLASSES).item()
    assert validation_loss[-1] == pytest.approx(expected, rel=1e-5)
    assert validation_acc[-1] == pytest.approx((outputs.argmax(1) == CLASSES).float().mean().item())


@pytest.mark.parametrize("fit", WITH_LOSSES)
def test_fits_that_return_no_losses_return_the_module(fit):
    plain, trained = curves_of(fit)
    tested, validated = curves_of(fit, x_test=X_TEST, y_test=Y_TEST)
    assert trained is plain.model_parameters
    assert validated is tested.model_parameters
    assert "val_loss" in tested.trainer.history[-1]
    assert "val_loss" not in plain.trainer.history[-1]
    for other in (validated, curves_of(fit, return_loss=True)[1][0]):
        assert_same_bits(state_arrays(other), state_arrays(trained))


def test_make_validation_false_leaves_the_validation_out():
    _, returned = curves_of(
        SYNCHRONOUS, make_validation=False, return_loss=True, x_test=X_TEST, y_test=Y_TEST
    )
    assert [len(each) for each in returned[1:]] == [4, 4, 0, 0]


def test_accuracy_in_training_is_that_of_the_outputs_it_trained_on():
    right = []

    class Counting(nn.Linear):
        def forward(self, x):
            output = super().forward(x)
            if self.training:
                rows = torch.stack([(whole(X).float() == row).all(1).nonzero()[0, 0] for row in x])
                right.append((output.argmax(1) == CLASSES[rows]).float().tolist())
            return output

    encapsulated = made(net=Counting(6, 3))
    _, _, training_acc, _, _ = encapsulated.fit_synchronous_with_GPU(
        X, Y, 3, 2, return_loss=True, **QUIET
    )
    epochs = [sum(map(sum, right[start : start + 12])) / 60 for start in (0, 12)]
    assert training_acc == pytest.approx(epochs)


@pytest.mark.parametrize(
    "forms",
    [
        (X_TEST, Y_TEST),
        (X_TEST, Tensor(CLASSES, (3, 1))),
        (X_TEST, CLASSES.float()[:, None]),
        (whole(X), whole(Y).long()),
        (X_TEST.collect(), [block for row in Y_TEST.collect() for block in row]),
        (whole(X).numpy(), whole(Y).int().tolist()),
        ([whole(X)], CLASSES.tolist()),
    ],
)
def test_validation_data_has_many_forms(forms):
    _, expected = curves_of(CURVES[0], x_test=X_TEST, y_test=Y_TEST)
    x_test, y_test = forms
    _, returned = curves_of(CURVES[0], x_test=x_test, y_test=y_test)
    for ours, theirs in zip(returned[1:], expected[1:], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("fit", [*WITH_LOSSES, *CURVES])
@pytest.mark.parametrize(
    ("name", "error", "options"),
    [
        (
            "x_test has 60 samples and y_test 59",
            ValueError,
            {"x_test": X_TEST, "y_test": CLASSES[1:]},
        ),
        ("x_test is a ds.array of dislib", TypeError, {"x_test": DsArray(), "y_test": CLASSES}),
        ("y_test is a ds.array of dislib", TypeError, {"x_test": X_TEST, "y_test": DsArray()}),
    ],
)
def test_unsuitable_validation_data_are_named_before_the_first_round(
    name, error, options, fit, raises
):
    encapsulated = made()
    with raises(error, name):
        getattr(encapsulated, fit)(X, Y, 3, 1, **options, **QUIET)
    assert len(encapsulated.trainer.history) == 0


def test_targets_for_the_loss_have_as_many_samples():
    options = {"x_test": X_TEST, "y_test": Y_TEST, "y_test_to_loss": CLASSES[1:]}
    with pytest.raises(ValueError, match="x_test has 60 samples and y_test_to_loss 59"):
        curves_of(CURVES[0], **options)


@pytest.mark.parametrize("one_hot", [True, False])
def test_scores_get_classes_or_one_hot_rows_as_the_targets_have(one_hot):
    seen = []

    def score(true, predicted):
        seen.append((true, predicted))
        return 0.25

    y = whole(Y) if one_hot else CLASSES.float()
    encapsulated = made()
    options = {"x_test": X_TEST, "y_test": y, "y_test_to_loss": CLASSES, "function_score": score}
    result = encapsulated.fit_synchronous_with_GPU_train_curves(
        X, Tensor(y, (2, 2)), 3, 1, **QUIET, **options
    )
    assert result[2] == result[4] == [0.25]
    (in_training, of_training), (true, predicted) = seen
    assert sorted(in_training.tolist()) == sorted(true.tolist()) == sorted(y.tolist())
    for each in (of_training, predicted):
        assert isinstance(each, np.ndarray)
        assert each.shape == tuple(y.shape)
    if one_hot:
        assert (predicted.sum(1) == 1).all()
        assert set(predicted.ravel()) == {0.0, 1.0}
    classes = result[0](whole(X).float()).argmax(1).numpy()
    np.testing.assert_array_equal(predicted.argmax(1) if one_hot else predicted, classes)


def test_curves_of_a_regression_have_scores_of_the_outputs():
    x = whole(X) / whole(X).abs().max()
    y = CLASSES[:, None].double()
    encapsulated = made(net=nn.Linear(6, 1), loss=nn.MSELoss)
    data = {"x_test": x, "y_test": y}

    def mean_error(true, predicted):
        return np.abs(true - predicted).mean()

    fit = encapsulated.fit_synchronous_with_GPU_train_curves
    net, losses, errors, val_losses, val_errors = fit(
        Tensor(x, (2, 2)), Tensor(y, (2, 2)), 3, 5, function_score=mean_error, **data, **QUIET
    )
    outputs = net(x.float())
    assert val_losses[-1] == pytest.approx(((outputs - y) ** 2).mean().item(), rel=1e-5)
    assert val_errors[-1] == pytest.approx((outputs - y).abs().mean().item(), rel=1e-5)
    assert losses[-1] < losses[0]
    assert errors[-1] < errors[0]
    _, _, accuracies, _, validated = fit(
        Tensor(x, (2, 2)), Tensor(y, (2, 2)), 3, 1, **data, **QUIET
    )
    assert all(map(math.isnan, accuracies + validated))


def test_several_outputs_of_a_regression_are_no_classes():
    y = torch.stack([CLASSES * 0.3, CLASSES - 0.5], 1)
    seen = []

    def score(true, predicted):
        seen.append((true, predicted))
        return 0.5

    encapsulated = made(net=nn.Linear(6, 2), loss=nn.MSELoss)
    fit = encapsulated.fit_synchronous_with_GPU_train_curves
    data = {"x_test": X, "y_test": y, **QUIET}
    net, *_ = fit(
        Tensor(whole(X) / 100, (2, 2)), Tensor(y, (2, 2)), 3, 1, function_score=score, **data
    )
    true, predicted = seen[-1]
    np.testing.assert_array_equal(true, y)
    np.testing.assert_allclose(predicted, net(whole(X).float()).detach(), rtol=1e-5, atol=1e-6)
    assert seen[0][1].shape == (60, 2)
    _, _, accuracies, _, validated = fit(
        Tensor(whole(X) / 100, (2, 2)), Tensor(y, (2, 2)), 3, 1, **data
    )
    assert all(map(math.isnan, accuracies + validated))


def test_complete_shuffle_is_the_total_shuffle():
    for fit, named in zip(CURVES, ("synchronous", "asynchronous"), strict=True):
        _, (net, *_) = curves_of(fit, complete_shuffle=True)
        _, expected = curves_of(f"fit_{named}_shuffle_with_GPU")
        assert_same_bits(state_arrays(net), state_arrays(expected))


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (
            (X_TEST, Y_TEST, False, True, True),
            {"x_test": X_TEST, "y_test": Y_TEST, "return_loss": True},
        ),
        ((whole(X), Y_TEST, False), {"x_test": X_TEST, "y_test": Y_TEST}),
        ((None, None, False, True, True), {"return_loss": True}),
        ((False, True), {}),
    ],
)
def test_the_fifth_argument_of_the_asynchronous_fit_tells_the_order(args, named):
    _, by_position = curves_of(ASYNCHRONOUS, *args)
    _, by_name = curves_of(ASYNCHRONOUS, shuffle_blocks=False, **named)
    both = [each if isinstance(each, tuple) else (each,) for each in (by_position, by_name)]
    (net, *curves), (expected, *others) = both
    assert_same_bits(state_arrays(net), state_arrays(expected))
    assert curves == others


@pytest.mark.parametrize(
    ("name", "fit", "args", "options"),
    [
        ("the fifth argument of fit_asynchronous_with_GPU is 3", ASYNCHRONOUS, [3], {}),
        ("the fifth argument of fit_asynchronous_with_GPU is 'all'", ASYNCHRONOUS, ["all"], {}),
        (
            "it takes shuffle_blocks, shuffle_block_data here",
            ASYNCHRONOUS,
            [True, True, X_TEST],
            {},
        ),
        ("got several values for x_test", ASYNCHRONOUS, [X_TEST], {"x_test": X_TEST}),
        *(
            ("y_test= needs x_test=", fit, [], {"y_test": Y_TEST})
            for fit in (*WITH_LOSSES, *CURVES)
        ),
        *(
            ("x_test= needs y_test=", fit, [], {"x_test": X_TEST})
            for fit in (*WITH_LOSSES, *CURVES)
        ),
        *(
            ("unexpected keyword argument 'x_tests'", fit, [], {"x_tests": 1})
            for fit in (*WITH_LOSSES, *CURVES)
        ),
        (
            "x_test= and y_test=, or validation_data=, not both",
            SYNCHRONOUS,
            [],
            {"x_test": X_TEST, "y_test": Y_TEST, "validation_data": (X_TEST, Y_TEST)},
        ),
        (
            "unexpected keyword argument 'return_loss'",
            "fit_synchronous_shuffle_with_GPU",
            [],
            {"return_loss": True},
        ),
    ],
)
def test_other_arguments_of_fits_are_refused_by_name(name, fit, args, options, raises):
    with raises(TypeError, name):
        curves_of(fit, *args, **options)


@pytest.mark.parametrize("fit", FITS)
def test_a_misspelt_argument_is_suggested_among_those_of_the_fit(fit):
    suggested = "n_epocs_sync" if "n_epochs" in fit else "num_epochs"
    for made_ in (made(), DistributedTrainer(1, engine="serial")):
        with pytest.raises(
            TypeError, match=rf"^{fit}\(\) got an .* 'n_epochs_sync'; did you mean {suggested}\?"
        ):
            getattr(made_, fit)(X, Y, 3, 1, n_epochs_sync=2)
        with pytest.raises(
            TypeError, match=rf"^{fit}\(\) got an .* 'calbacks'; did you mean callbacks\?"
        ):
            getattr(made_, fit)(X, Y, 3, 1, calbacks=())


@pytest.mark.parametrize("fit", WITH_LOSSES)
def test_a_misspelt_argument_of_dislib_is_suggested(fit):
    for wrong, right in {
        "shufle_blocks": "shuffle_blocks",
        "retrun_loss": "return_loss",
        "xtest": "x_test",
    }.items():
        with pytest.raises(
            TypeError, match=rf"^{fit}\(\) got an .* '{wrong}'; did you mean {right}\?"
        ):
            getattr(made(), fit)(X, Y, 3, 1, **{wrong: None})


def test_the_trainer_has_none_of_these_arguments():
    trainer = DistributedTrainer(1, engine="serial")
    trainer.build(mlp(), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy")
    for name, fit in itertools.product(("x_test", "return_loss"), WITH_LOSSES):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            getattr(trainer, fit)(X, Y, 3, 1, **{name: True})


# Tensors


def test_a_helper_that_no_release_has_names_the_one_that_there_is():
    with pytest.raises(
        NotImplementedError, match=r"dislib.data.tensor.from_ds_array\(array, shape\)"
    ):
        tensor_from_ds_array(np.ones((2, 1)))


def test_an_array_of_dislib_is_named():
    with pytest.raises(
        TypeError, match=r"x is a ds.array of dislib.*dislib.data.tensor.from_ds_array"
    ):
        made().fit_synchronous_with_GPU(DsArray(), Y, 3, 1, **QUIET)


@pytest.mark.parametrize("fit", FITS)
def test_what_collect_returns_has_the_blocks_of_the_tensor(fit):
    as_tensors, collected, flat = (made(num_workers=2) for _ in range(3))
    getattr(as_tensors, fit)(X, Y, 3, 2, **QUIET)
    getattr(collected, fit)(X.collect(), Y.collect(), 3, 2, **QUIET)
    getattr(flat, fit)(*([*chain(*each.collect())] for each in (X, Y)), 3, 2, **QUIET)
    for each in (collected, flat):
        assert_same_bits(each.trainer.get_parameters(), as_tensors.trainer.get_parameters())


@pytest.mark.parametrize("fit", [*WITH_LOSSES, *CURVES])
def test_no_tensor_is_held_after_a_fit(fit):
    data = [*tensors(), *tensors()]
    x, y, x_test, y_test = data
    encapsulated = made()
    getattr(encapsulated, fit)(x, y, 3, 1, x_test=x_test, y_test=y_test, **QUIET)
    held = [weakref.ref(each) for each in data]
    del x, y, x_test, y_test, data
    gc.collect()
    assert [each() for each in held] == [None] * 4
    assert encapsulated.trainer.history
