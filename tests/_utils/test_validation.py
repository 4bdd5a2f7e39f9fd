"""Warnings point to the line of the user's code, whatever calls lie between."""

import warnings

PROGRAM = """
from contextlib import contextmanager
from compss_train._utils.validation import warn_user

@contextmanager
def inside():
    warn_user("look here")
    yield

def call():
    with inside():
        pass
"""


def test_frames_of_the_package_and_its_context_managers_are_skipped():
    namespace = {"__name__": "compss_train.fake"}
    exec(PROGRAM, namespace)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        namespace["call"]()
    assert [(str(each.message), each.filename) for each in caught] == [("look here", __file__)]
