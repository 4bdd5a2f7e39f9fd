"""The phases in which an online fit ends: which follow one another, and when."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.online.ending import GRACE, Ending, Phase
from compss_train.training.stopping import LONGEST_SAVING

NEXT = {
    Phase.TRAINING: {Phase.SAVING, Phase.STOPPING},
    Phase.SAVING: {Phase.STOPPING},
    Phase.STOPPING: {Phase.ABANDONED},
    Phase.ABANDONED: set(),
}


def ending_of(reason=None, *, urgent=False, keeps_saves=True):
    """Return an ending, and what it asks whether to stop."""
    stopping = SimpleNamespace(reason=reason, urgent=urgent)
    return Ending(stopping, keeps_saves=keeps_saves), stopping


def test_a_fit_that_need_not_stop_trains_on(clock):
    ending, _ = ending_of()
    for _ in range(3):
        ending.advance()
        clock.now += 10 * LONGEST_SAVING
    assert ending.phase is Phase.TRAINING
    assert ending.reason is None


@pytest.mark.parametrize("save", [None, "a save"])
def test_a_fit_makes_its_last_save_before_it_stops(clock, save):
    """However long that takes, unless it is urgent; also if it could not be stored."""
    ending, _ = ending_of("enough")
    for _ in range(3):
        ending.advance()
        assert (ending.phase, ending.reason) == (Phase.SAVING, "enough")
        clock.now += 10 * LONGEST_SAVING
    ending.end_saving(save)
    for _ in range(3):
        ending.advance()
        assert (ending.phase, ending.last_save) == (Phase.STOPPING, save)
        clock.now += 10 * GRACE


def test_a_fit_without_saves_stops_at_once(clock):
    ending, _ = ending_of("enough", keeps_saves=False)
    ending.advance()
    assert ending.phase is Phase.STOPPING


def test_times_are_limited_from_when_it_is_urgent(clock):
    ending, stopping = ending_of("enough")
    ending.advance()
    clock.now += 10 * LONGEST_SAVING
    stopping.urgent = True
    stopping.reason = "SIGTERM"
    ending.advance()
    clock.now += LONGEST_SAVING - 0.1
    ending.advance()
    assert (ending.phase, ending.reason) == (Phase.SAVING, "SIGTERM")
    clock.now += 0.1
    ending.advance()
    assert (ending.phase, ending.last_save) == (Phase.STOPPING, None)
    clock.now += GRACE
    ending.advance()
    assert ending.phase is Phase.STOPPING
    clock.now += 0.1
    ending.advance()
    assert ending.phase is Phase.ABANDONED


@given(st.booleans(), st.lists(st.sampled_from(["wait", "stop", "SIGTERM", "save", "advance"])))
def test_phases_only_follow_one_another_as_documented(keeps_saves, events):
    ending, stopping = ending_of(keeps_saves=keeps_saves)
    for event in events:
        before = ending.phase
        if event == "stop":
            stopping.reason = stopping.reason or "enough"
        elif event == "SIGTERM":
            stopping.reason = "SIGTERM"
            stopping.urgent = True
        elif event == "save" and ending.phase is Phase.SAVING:
            ending.end_saving("a save")
        else:
            ending.advance()
        assert ending.phase is before or ending.phase in NEXT[before]
        assert (ending.phase is Phase.TRAINING) == (ending.reason is None)
