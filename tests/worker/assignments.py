"""How samples may be cut into blocks, dealt to workers and ordered, as hypothesis strategies; work on one block."""

from hypothesis import strategies as st

from compss_train.data.block_passes import BlockPass
from compss_train.data.order import Batching
from compss_train.worker import Reading, Work

DEALT = {
    "samples": st.integers(1, 60),
    "blocks": st.integers(1, 6),
    "workers": st.integers(1, 4),
    "shuffle": st.sampled_from(["blocks", "total", None]),
    "shuffle_seed": st.sampled_from([None, 4]),
}


def whole(x, size):
    """Return the work on all samples of a block in their order."""
    return Work((BlockPass(0, 0, len(x)),), Reading(batching=Batching(size=size), blocks=(0,)))
