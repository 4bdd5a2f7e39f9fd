"""Partial shuffles of invalid files, and interrupted iterations."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.files import FileDataset
from compss_train.exceptions import BadFileError
from compss_train.samplers import PartialShuffleSampler
from tests.samplers.numbered_files import (
    OPTIONS,
    CountingReader,
    assert_threads_end,
    epoch_of,
    names_of,
    reading_threads,
    sampler_of,
    samples,
    samples_of_rank,
    write_files,
)
from tests.samplers.sampler_cases import BUFFERS, cases, some, until_error


@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=7), options=OPTIONS, file_buffer=BUFFERS, data=st.data()
)
@some
def test_a_file_that_breaks_is_an_error_once_its_rows_go_into_the_pools_and_no_earlier(
    sizes, options, file_buffer, data
):
    bad = data.draw(st.integers(0, len(sizes) - 1))
    name = names_of(sizes)[bad]
    whole = epoch_of(sampler_of(sizes, **options))
    sampler = sampler_of(sizes, reader=CountingReader([name]), file_buffer=file_buffer, **options)
    _, samples_in_order = samples_of_rank(sampler, sizes, 0)
    first = samples_in_order.index(sum(sizes[:bad]))
    size, number = (sampler.pools.size, sampler.pools.number) if sampler.shuffle else (sampler.batch_size, 1)
    drawn = max(0, first // size - number + 1) * size  # before the pools have room for it
    given_batches, error = until_error(sampler)
    assert (error.file, error.reason) == (name, "cannot be read: OSError: the disk is gone")
    assert given_batches == whole[: drawn // sampler.batch_size]
    assert sampler.state_dict()["step"] == len(given_batches)
    assert_threads_end()


def test_a_file_that_is_cut_short_after_the_sampler_was_made_is_named(tmp_path):
    names = write_files(tmp_path, [50, 50, 50])
    sampler = PartialShuffleSampler(FileDataset(names), batch_size=10)
    content = (tmp_path / "part-001.npz").read_bytes()
    (tmp_path / "part-001.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(BadFileError, match=r"part-001\.npz"):
        list(sampler)
    assert_threads_end()


@given(**cases, bad=st.sets(st.integers(0, 6)), num_replicas=st.integers(1, 3))
@some
def test_invalid_files_are_skipped_on_request_without_other_changes(sizes, options, file_buffer, bad, num_replicas):
    names = {names_of(sizes)[file] for file in bad if file < len(sizes)}
    place = {"num_replicas": num_replicas, "rank": num_replicas - 1}
    whole = epoch_of(sampler_of(sizes, **options, **place))

    def made():
        reader = CountingReader(names)
        return sampler_of(sizes, reader=reader, on_bad_file="skip", file_buffer=file_buffer, **options, **place)

    missing = {sample for name in names for sample in range(*map(int, name[len("numbers://") :].split("-")))}
    wanted = [[sample for sample in batch if sample not in missing] for batch in whole]
    sampler = made()
    if num_replicas > 1 and not all(wanted):  # the ranks would not be in step any longer
        for _ in range(2):
            got, error = until_error(sampler, ValueError)
            assert got == wanted[: wanted.index([])]
            assert f"rank {sampler.rank} could read no sample of batch {len(got)}, unlike the other" in str(error)
            assert any(name in str(error) for name in names)  # more of them may be met meanwhile
            assert set(sampler.skipped) <= names
        assert_threads_end()
        return
    for _ in range(2):
        assert samples(sampler) == [batch for batch in wanted if batch]
    files = {names_of(sizes)[part.file] for part in samples_of_rank(sampler, sizes, 0)[0]}
    assert set(sampler.skipped) == names & files
    assert len(sampler) == len(whole)
    assert sampler.state_dict()["step"] == len(whole)
    for step in range(len(whole) + 1):
        resumed = made()
        resumed.find_ckpt_position(step)
        assert samples(resumed) == [batch for batch in wanted[step:] if batch]
    iteration, resumed = iter(sampler), made()
    for _ in iteration:
        resumed.load_state_dict(sampler.state_dict())
        assert samples(resumed) == [batch for batch in wanted[sampler.state_dict()["step"] :] if batch]


def left_by_break(sampler):
    for _ in sampler:
        break


def left_with_the_sampler(sampler):
    held = [iter(sampler), sampler]
    next(held[0])
    held.append(held)  # only the garbage collector finds it


@pytest.mark.parametrize("leave", [left_by_break, left_with_the_sampler])
def test_an_iteration_that_is_left_leaves_no_thread(leave):
    reader = CountingReader()
    leave(sampler_of([2] * 200, reader=reader, file_buffer=3))
    gc.collect()
    assert_threads_end()
    assert len(reader.opened) <= 4


def test_a_whole_epoch_leaves_no_thread_and_none_begins_before_the_first_batch_is_asked_for():
    sampler = sampler_of([2] * 20, file_buffer=3)
    iteration = iter(sampler)
    assert not reading_threads()
    assert len(list(iteration)) == 40
    assert_threads_end()
