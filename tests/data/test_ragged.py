"""Sequences of different lengths: padded or collated, in batches of similar lengths, as in a plain
loop.
"""

import pickle
import re
from itertools import chain

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compss_train import (
    BlockedTensor,
    BufferSpec,
    FileDataset,
    Merge,
    PartialShuffle,
    Ragged,
    Samples,
    write_files,
)
from compss_train.callbacks import Callback, Checkpoint
from compss_train.data.block_bytes import gather
from compss_train.data.ragged import join
from compss_train.engines.calls import intra_op_threads
from compss_train.training.data_source import as_data_source
from tests.helpers import small_fits
from tests.helpers.models import SGD, assert_same_bits, state_arrays
from tests.helpers.notes import Notes
from tests.helpers.plain_loop import OPTIMIZERS, plain_steps
from tests.helpers.tolerances import sum_error
from tests.same_bits.material import Characters

RANDOM = np.random.default_rng(1)
LENGTHS = RANDOM.integers(2, 12, 41)
TOKENS = [RANDOM.integers(1, 9, length) for length in LENGTHS]
NEXT = [np.roll(tokens, -1) for tokens in TOKENS]
BY_X = {"bucket_by_length": "x"}
STILL = {"shuffle": None, "shuffle_block_data": False, "progress": False}


def trainer_of(engine="serial", workers=1, **options):
    return small_fits.trainer_of(engine, workers, 3, Characters, SGD, metric=None, **options)


def padded(sequences, value):
    tensors = [torch.as_tensor(sequence) for sequence in sequences]
    return nn.utils.rnn.pad_sequence(tensors, True, value)


def plain_loop():
    batches = [
        numbers for rows in np.array_split(np.arange(41), 3) for numbers in np.array_split(rows, 4)
    ]
    steps = [
        (padded([TOKENS[row] for row in rows], 0), padded([NEXT[row] for row in rows], -100))
        for rows in batches
    ]
    return plain_steps(Characters(), OPTIMIZERS[0][1], 2 * steps, seed=3)


def own_collate(samples):
    xs, ys = zip(*samples, strict=True)
    return padded(xs, 0), padded(ys, -100)


@pytest.fixture
def every_warning():
    """Lets torch warn each time, not only the first of a process."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("every_warning")
def test_read_only_sequences_warn_of_nothing_and_stay_as_they_are():
    tokens = [sequence.copy() for sequence in TOKENS]
    for sequence in tokens:
        sequence.flags.writeable = False
    for x in (tokens, Ragged(tokens)):
        trainer = trainer_of()
        trainer.fit(x, NEXT, num_epochs=1, batch_size=10, **STILL)
        trainer.predict(x)
    assert all(map(np.array_equal, tokens, TOKENS))


@pytest.mark.parametrize("collate", [None, own_collate])
def test_lists_of_sequences_are_padded_as_in_the_plain_loop(engine, collate):
    x = BlockedTensor.from_array(Ragged(TOKENS), 3)
    y = BlockedTensor.from_array(Ragged(NEXT), 3)
    ours = trainer_of(engine, collate=collate).fit(
        x, y, num_epochs=2, num_batches_per_worker=4, **STILL
    )
    assert_same_bits(ours, plain_loop())


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": "total"}, {"bucket_by_length": "x"}],
    ids=["plain", "total", "bucket"],
)
def test_engines_agree_and_fits_are_resumed(engine, options, tmp_path):
    merge = Merge(every=2, unit="batches")
    options = {
        **options,
        "num_epochs": 2,
        "batch_size": 5,
        "progress": False,
        "merge": merge,
    }
    trainer = trainer_of(engine, workers=2)
    trainer.fit(TOKENS, NEXT, validation_data=(TOKENS, NEXT), **options)
    serial = trainer_of("serial", workers=2)
    serial.fit(TOKENS, NEXT, callbacks=[Checkpoint(tmp_path, keep=99)], **options)
    assert_same_bits(trainer.get_parameters(), serial.get_parameters())
    resumed = trainer_of(workers=2)
    resumed.fit(TOKENS, NEXT, resume=sorted(tmp_path.glob("round-*"))[2], **options)
    assert_same_bits(trainer.get_parameters(), resumed.get_parameters())


class OfPacked(nn.Module):
    """Takes packed sequences of vectors, as recurrent layers of torch do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.recurrent = nn.GRU(3, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, packed):
        return self.last(self.recurrent(packed)[1][0])


def packed(sequences):
    return nn.utils.rnn.pack_sequence(
        [torch.as_tensor(sequence) for sequence in sequences], enforce_sorted=False
    )


def packed_pairs(samples):
    xs, ys = zip(*samples, strict=True)
    return packed(xs), torch.stack([*map(torch.as_tensor, ys)])


VECTORS = [RANDOM.normal(size=(length, 3)) for length in LENGTHS]
PARITY = LENGTHS % 2


@pytest.mark.filterwarnings("ignore:float64 becomes float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_packed_sequences_are_one_input(engine, dtype):
    """And they become the network's dtype."""
    vectors = [sequence.astype(dtype) for sequence in VECTORS]
    trainer = small_fits.trainer_of(engine, 1, 3, OfPacked, SGD, metric=None, collate=packed_pairs)
    ours = trainer.fit(
        vectors, PARITY, num_epochs=2, batch_size=10, **STILL, validation_data=(vectors, PARITY)
    )
    net = OfPacked()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    with intra_op_threads(1):
        for rows in 2 * np.array_split(np.arange(41), 5):
            optimizer.zero_grad()
            x = packed([VECTORS[row].astype("float32") for row in rows])
            y = torch.from_numpy(PARITY[rows])
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    assert_same_bits(ours, state_arrays(net))
    assert trainer.predict(vectors, batch_size=10).shape == (41, 2)


def test_the_groups_of_a_frame_are_sequences():
    frame = pd.DataFrame(np.concatenate(VECTORS), columns=["a", "b", "c"][: VECTORS[0].shape[1]])
    frame["group"] = np.repeat(np.arange(len(VECTORS)), [*map(len, VECTORS)])
    groups = [group.drop(columns="group") for _, group in frame.groupby("group")]
    sequences = as_data_source(groups, None, 1).columns["x"].collect()
    expected = as_data_source(VECTORS, None, 1).columns["x"].collect()
    assert torch.equal(sequences.values, expected.values)
    assert torch.equal(sequences.offsets, expected.offsets)
    alone = [group["a"] for group in groups]
    assert (
        as_data_source(alone, None, 1).columns["x"].collect().values.tolist() == frame["a"].tolist()
    )


def test_a_step_gets_packed_sequences_as_they_were_made():
    """In (x, y), and alone without y; a data set's own ``collate_fn`` makes them, too."""

    def step(model, batch, context):
        x, y = batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)
        assert isinstance(x, nn.utils.rnn.PackedSequence)
        return (
            model(x).logsumexp(1).mean() if y is None else nn.functional.cross_entropy(model(x), y)
        )

    vectors = [sequence.astype("float32") for sequence in VECTORS]
    pairs = [*zip(vectors, PARITY, strict=True)]
    alone = torch.utils.data.DataLoader(vectors, 10, collate_fn=packed)
    loader = torch.utils.data.DataLoader(pairs, 10, collate_fn=packed_pairs)
    cases = (
        ((vectors,), packed),
        ((vectors, PARITY), packed_pairs),
        ((alone,), None),
        ((loader,), None),
    )
    for data, collate in cases:
        trainer = trainer_of()
        trainer.build(OfPacked(), SGD, training_step=step, collate=collate)
        trainer.fit(*data, num_epochs=1, batch_size=10, **STILL)


class Mean(nn.Module):
    """Takes sequences of any length, and stays finite whatever their items are."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 1)

    def forward(self, x):
        return self.last((x > 0).float().mean(dim=1, keepdim=True))


def batches_of(x, y, workers, **options):
    """Return the samples of each batch of a fit: the first item, and the lengths in x and y."""
    batches = Notes()

    def collate(samples):
        batches.append([(int(x[0]), len(x), y.numel()) for x, y in samples])
        return padded([x for x, _ in samples], 0), torch.zeros(len(samples), 1)

    trainer = small_fits.trainer_of(
        "serial", workers, 3, Mean, SGD, loss="mse", metric=None, collate=collate
    )
    trainer.fit(x, y, num_epochs=2, batch_size=5, progress=False, **options)
    assert batches
    return batches


def padded_items(batches, column):
    return sum(len(batch) * max(sample[column] for sample in batch) for batch in batches)


lengths = st.lists(st.integers(1, 30), min_size=40, max_size=40)


@given(of_x=lengths, of_y=lengths, column=st.sampled_from(["x", "y"]), workers=st.integers(1, 2))
def test_batches_by_length_have_the_same_samples_and_fewer_padded_items(
    of_x, of_y, column, workers
):
    """By the lengths of the named column, whatever those of the other."""
    x = Ragged([np.full(length, number) for number, length in enumerate(of_x)])
    y = Ragged([np.zeros(length) for length in of_y])
    plain = batches_of(x, y, workers)
    bucketed = batches_of(x, y, workers, bucket_by_length=column)
    assert sorted(chain(*bucketed)) == sorted(chain(*plain))
    number = {"x": 1, "y": 2}[column]
    assert padded_items(bucketed, number) <= padded_items(plain, number)


@pytest.mark.parametrize(("column", "number"), [("x", 1), ("y", 2)])
def test_the_lengths_are_those_of_the_only_column_that_has_some(column, number):
    x = TOKENS if column == "x" else np.arange(41)[:, None]
    y = TOKENS if column == "y" else LENGTHS
    plain = batches_of(x, y, 1)
    bucketed = batches_of(x, y, 1, bucket_by_length=True)
    assert bucketed == batches_of(x, y, 1, bucket_by_length=column)
    assert padded_items(bucketed, number) < 0.9 * padded_items(plain, number)


def test_the_order_by_lengths_is_that_of_the_data_wherever_they_are_moved():
    x = Ragged(TOKENS).to(torch.int32)
    moved = batches_of(x, LENGTHS, 2, bucket_by_length=True)
    plain = batches_of(TOKENS, LENGTHS, 2, bucket_by_length=True)
    assert moved == plain


def test_predictions_of_batches_of_different_lengths_are_a_list():
    trainer = trainer_of()
    net = trainer.model().eval()
    outputs = trainer.predict(TOKENS, batch_size=4)
    assert len(outputs) == len(TOKENS)
    assert all(
        np.array_equal(*pair)
        for pair in zip(outputs, trainer.predict(Ragged(TOKENS), batch_size=4), strict=True)
    )
    # Each step sums 6 and 8 products, which add up to at most 10, the last layer 8; gates forget
    # earlier errors.
    rounding = LENGTHS.max() * sum_error(np.float32, 6 + 8 + 8, 10.0)
    for tokens, output in zip(TOKENS, outputs, strict=True):
        with torch.no_grad():
            expected = net(torch.from_numpy(tokens)[None])[0].numpy()
        np.testing.assert_allclose(output[:, : len(tokens)], expected, rtol=0, atol=rounding)
    assert trainer.predict(TOKENS[:1]).shape == (1, 9, len(TOKENS[0]))


def labelled_collate(samples):
    xs, ys = zip(*samples, strict=True)
    return padded(xs, 0), torch.stack([target.get("label") for target in ys])


@pytest.mark.parametrize("data", ["lists", "samples"])
@pytest.mark.parametrize(
    "collate", [own_collate, lambda samples: padded(samples, 0)], ids=["takes (x, y)", "takes x"]
)
def test_predictions_are_collated_without_targets(data, collate):
    """``collate`` gets zeros in place of y as in training, or x alone; predictions are those of
    padded batches.
    """
    x = TOKENS if data == "lists" else Samples(TOKENS)
    expected = trainer_of().predict(TOKENS, batch_size=4)
    outputs = trainer_of(collate=collate).predict(x, batch_size=4)
    assert all(map(np.array_equal, outputs, expected))


def test_check_fit_tells_whether_predictions_can_be_collated(tmp_path):
    """``check_fit`` makes the first batch of a prediction, too, and warns of the error of
    ``predict``.
    """
    failing = re.escape("collate was called with a list of (x, y), with zeros in place of y")
    options = {"num_epochs": 1, "batch_size": 5, **STILL}
    trainer_of(collate=own_collate).check_fit(TOKENS, NEXT, **options)
    labels = {"label": LENGTHS % 9}
    trainer = trainer_of(collate=labelled_collate, loss=lambda output, y: output.mean())
    with pytest.warns(UserWarning, match=failing):
        trainer.check_fit(TOKENS, labels, **options)
    with pytest.raises(AttributeError, match="get") as caught:
        trainer.predict(TOKENS)
    assert any(re.search(failing, note) for note in caught.value.__notes__)
    write_files(tmp_path, {"x": np.ones((9, 3), np.int64), "y": np.ones((9, 3), np.int64)}, rows=5)
    files = FileDataset(f"{tmp_path}/*.npz")
    trainer = trainer_of(collate=own_collate)
    trainer.check_fit(files, **options)
    assert trainer.predict(files).shape == (9, 9, 3)


@pytest.mark.parametrize(
    "key",
    [
        *(
            slice(None, None, 2),
            slice(None, None, -1),
            slice(5, 30, 7),
            slice(30, 5),
            slice(-3, None),
        ),
        *(
            [3, -1, 3],
            np.array([3, -1], np.int32),
            torch.tensor([-41, 0]),
            LENGTHS > 6,
            torch.from_numpy(LENGTHS > 6),
        ),
    ],
)
def test_sequences_are_selected_as_rows_of_an_array_are(key):
    selected = Ragged(TOKENS)[key]
    expected = np.arange(41)[key]
    assert [tokens.tolist() for tokens in selected] == [
        TOKENS[number].tolist() for number in expected
    ]


def test_sequences_are_cut_selected_and_pickled_without_the_others():
    ragged = Ragged(TOKENS)
    rows = np.array([5, 3, 40, 3])
    for sequences in (
        ragged.index_select(0, torch.from_numpy(rows)),
        gather(rows, [0, 17], [ragged[:17], ragged[17:]]),
    ):
        expected = [TOKENS[row].tolist() for row in rows]
        assert [tokens.tolist() for tokens in sequences] == expected
    part = pickle.loads(pickle.dumps(ragged[3:5]))
    assert len(part.values) == LENGTHS[3] + LENGTHS[4]
    assert [tokens.tolist() for tokens in join([part, ragged[:1]])] == [
        TOKENS[n].tolist() for n in (3, 4, 0)
    ]
    assert torch.equal(ragged[7:9].padded(0), padded(TOKENS[7:9], 0))
    assert (len(ragged), ragged.shape, ragged[-1].tolist()) == (41, (41, -1), TOKENS[-1].tolist())


@pytest.mark.parametrize(
    ("tokens", "options", "name"),
    [
        (TOKENS, {"shuffle": PartialShuffle()}, "does not suit sequences that differ"),
        (TOKENS, {"buffer": BufferSpec("FIFO", 20)}, "buffer= does not suit sequences that differ"),
    ],
)
def test_options_that_need_samples_of_one_size_are_errors(tokens, options, name, raises):
    with raises(ValueError, name):
        trainer_of().fit(tokens, NEXT, num_epochs=1, batch_size=5, **options)


NO_LENGTHS = np.zeros((41, 2))
WHOLE = Samples([(number, number) for number in range(41)])


@pytest.mark.parametrize(
    ("data", "options", "kind", "name"),
    [
        ((TOKENS, NEXT), {"shuffle": "total"}, ValueError, "orders the samples within each"),
        ((TOKENS, NEXT), {"shuffle": PartialShuffle()}, ValueError, "use shuffle='blocks' or"),
        ((TOKENS, NEXT), {"shuffle_block_data": False}, ValueError, "shuffle_block_data= out"),
        ((TOKENS, NEXT), {"buffer": BufferSpec("FIFO", 20)}, ValueError, "leave buffer= and"),
        ((TOKENS, NEXT), {"bucket_by_length": 3}, TypeError, "bucket_by_length=3: give True,"),
        ((TOKENS, NEXT), {"bucket_by_length": "z"}, ValueError, "='z': choose one of 'x', 'y'"),
        ((TOKENS, NEXT), {"bucket_by_length": True}, ValueError, "x and y have sequences; name"),
        ((NO_LENGTHS, NEXT), {}, ValueError, "bucket_by_length='x': choose one of 'y'"),
        ((NO_LENGTHS, LENGTHS), {}, ValueError, "there are none in x and y: leave it"),
        ((WHOLE,), {}, ValueError, "needs sequences in memory that differ in length"),
    ],
)
def test_batches_by_length_need_lengths_and_the_order_of_blocks(data, options, kind, name, raises):
    with raises(kind, name):
        trainer_of().fit(*data, num_epochs=1, batch_size=5, **BY_X | options)


FLOATS = [tokens.astype(np.float32) for tokens in NEXT]
WRONG = {
    "items of 2 dtypes and shapes": lambda: Ragged([np.ones(1), np.ones((2, 2))]),
    "collate=3": lambda: trainer_of(collate=3),
    "collate returned a Tensor": lambda: checked(NEXT, collate=lambda _: torch.zeros(1)),
    "collate returned a numpy array": lambda: checked(
        NEXT, collate=lambda pairs: (np.ones((len(pairs), 3)), 0)
    ),
    "float32 need collate=": lambda: checked(FLOATS, loss="mse"),
}


def test_float_targets_that_differ_in_length_are_an_error_before_any_task():
    begun = []

    class Begin(Callback):
        def on_fit_start(self, trainer, total_samples):
            begun.append(trainer)

    with pytest.raises(TypeError, match="float32 need collate="):
        trainer_of(loss="mse").fit(
            TOKENS, FLOATS, num_epochs=1, batch_size=5, callbacks=[Begin()], progress=False
        )
    assert not begun


def checked(targets, **options):
    trainer_of(**options).check_fit(TOKENS, targets, num_epochs=1, batch_size=5)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_errors(name, raises):
    with raises((ValueError, TypeError), name):
        WRONG[name]()
