"""The ranks of ``torch.distributed`` as a sampler sees them: which one this is, and what they read only once."""

from typing import Any

import torch.distributed as dist

from compss_train._utils.validation import check_count
from compss_train.data.files import FileDataset
from compss_train.data.readers import CustomReader


def resolve_rank(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return the number of ranks and this rank, by default those of ``torch.distributed`` if it is initialised.

    Without a process group there is one rank, 0. Raises ``ValueError`` for a number of ranks below 1, and a rank
    that is not below it.
    """
    in_group = dist.is_available() and dist.is_initialized()
    if num_replicas is None:
        num_replicas = dist.get_world_size() if in_group else 1
    if rank is None:
        rank = dist.get_rank() if in_group else 0
    check_count("num_replicas", num_replicas)
    if check_count("rank", rank, least=0) >= num_replicas:
        raise ValueError(f"rank={rank}, num_replicas={num_replicas}: give a rank from 0 to {num_replicas - 1}")
    return int(num_replicas), int(rank)


def is_groups_own(num_replicas: int, rank: int) -> bool:
    """Return whether these are the number of ranks and the rank of this process in its process group."""
    in_group = dist.is_available() and dist.is_initialized()
    return in_group and (num_replicas, rank) == (dist.get_world_size(), dist.get_rank())


def ensure_same_layout(files: FileDataset, num_ranks: int) -> None:
    """Determine what arrays are in the files; of a group's ranks, the first reads a file if headers do not say it.

    All ranks raise its exception. A collective operation where ``num_ranks`` is not 1: every rank must call it,
    also one that knows the layout.
    """
    if num_ranks == 1 or not isinstance(files.reader, CustomReader):
        files.ensure_layout()
        return
    outcome: list[Any] = [_outcome(files) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(outcome, src=0)
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    files.layout, files.reference = outcome[0]


def _outcome(files: FileDataset) -> Any:
    """Return the layout and its file, or the exception: the other ranks wait for either."""
    try:
        files.ensure_layout()
    except Exception as error:
        return error
    return files.layout, files.reference
