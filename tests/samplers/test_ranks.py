"""Ranks of a process group: one of them reads the first file, and all of them know what is in it."""

import pytest
import torch.distributed as dist

from compss_train.data.files import FileDataset
from compss_train.exceptions import BadFileError
from compss_train.samplers import PartialShuffleSampler
from tests.samplers.numbered_files import CountingReader, names_of, write_files

NAMES = names_of([4, 5, 3])


class Group:
    """A process group whose ranks call one after another, rank 0 first."""

    def __init__(self, monkeypatch):
        self.rank, self.sent, self.calls = 0, None, 0
        for name, answer in {
            "is_initialized": lambda: True,
            "get_world_size": lambda: 3,
            "get_rank": lambda: self.rank,
            "broadcast_object_list": self.broadcast,
        }.items():
            monkeypatch.setattr(dist, name, answer)

    def broadcast(self, values, src):
        assert src == 0
        self.calls += 1
        if self.rank == 0:
            self.sent = values[0]
        values[0] = self.sent


@pytest.fixture
def group(monkeypatch):
    return Group(monkeypatch)


def test_the_first_file_of_a_users_reader_is_read_by_one_rank(group):
    for group.rank in range(3):
        reader = CountingReader()
        sampler = PartialShuffleSampler(FileDataset(NAMES, reader), batch_size=2)
        assert reader.opened == (NAMES[:1] if group.rank == 0 else [])
        assert list(sampler._files.layout) == ["x", "y"]
        assert sampler._files.reference == NAMES[0]
        assert len(list(sampler)) == len(sampler)
    assert group.calls == 3


def test_its_error_is_that_of_all_ranks(group):
    for group.rank in range(3):
        with pytest.raises(BadFileError, match=f"{NAMES[0]} cannot be read: OSError: the disk is gone"):
            PartialShuffleSampler(FileDataset(NAMES, CountingReader(NAMES[:1])))
    assert group.calls == 3


def test_every_rank_takes_part_whatever_it_knows_already(group):
    for group.rank in range(3):
        dataset = FileDataset(NAMES, CountingReader())
        if group.rank != 1:
            dataset.ensure_layout()
        PartialShuffleSampler(dataset)
    assert group.calls == 3


@pytest.mark.parametrize("options", [{"num_replicas": 3, "rank": 1}, {"num_replicas": 1, "rank": 0}])
def test_ranks_of_another_numbering_are_not_waited_for(group, options):
    reader = CountingReader()
    PartialShuffleSampler(FileDataset(NAMES, reader), **options)
    assert (reader.opened, group.calls) == (NAMES[:1], 0)


def test_ranks_that_are_given_as_the_group_has_them_share_the_first_file_too(group):
    readers = [CountingReader() for _ in range(3)]
    for group.rank, reader in enumerate(readers):
        PartialShuffleSampler(FileDataset(NAMES, reader), num_replicas=3, rank=group.rank)
    assert [reader.opened for reader in readers] == [NAMES[:1], [], []]


def test_nor_is_anything_sent_where_headers_say_what_is_in_a_file(group, tmp_path):
    PartialShuffleSampler(FileDataset(write_files(tmp_path, [4, 5, 3])))
    assert group.calls == 0
