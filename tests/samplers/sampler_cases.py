"""Strategies for samplers of many sizes and options, and the batches before an error."""

from hypothesis import settings
from hypothesis import strategies as st

from compss_train.exceptions import BadFileError
from tests.samplers.numbered_files import OPTIONS, SIZES

BUFFERS = st.sampled_from([1, 1, 2, 4])

cases = {"sizes": SIZES, "options": OPTIONS, "file_buffer": BUFFERS}

some = settings(max_examples=25, deadline=None)


def until_error(sampler, kind=BadFileError):
    """Return the samples of the batches before an error, and the error."""
    got = []
    try:
        for batch in sampler:
            got.append(batch["x"].tolist())
    except kind as error:
        return got, error
    raise AssertionError("there was no error")
