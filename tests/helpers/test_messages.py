"""``pytest --write-messages`` takes the words of what passed, and loses none where a test fails."""

import json
from types import SimpleNamespace

import pytest

from tests.helpers import messages
from tests.helpers.messages import Messages

FILE = "tests/helpers/test_messages.py"
TEST = f"{FILE}::test_words_are_compared_unless_they_are_written"
OTHER = f"{FILE}::test_words_of_tests_that_are_gone_are_left_out"


@pytest.fixture
def words(monkeypatch, tmp_path):
    """The file, with the words ``seed=1`` and ``seed=2`` of a test."""
    file = tmp_path / "messages.json"
    file.write_text(json.dumps({TEST: ["seed=1", "seed=2"]}))
    monkeypatch.setattr(messages, "FILE", file)
    return lambda: json.loads(file.read_text())


def raise_in(writer, test, folder, text, name="seed"):
    with writer.raises(test, folder, ValueError, name):
        raise ValueError(text)


def fail(writer, test):
    writer.pytest_runtest_logreport(SimpleNamespace(failed=True, nodeid=f"{test}[1]"))


def test_words_are_compared_unless_they_are_written(words, monkeypatch, tmp_path):
    reader = Messages(writes=False)
    monkeypatch.setattr(reader, "_compares", True)
    raise_in(reader, TEST, tmp_path, "seed=1")
    with pytest.raises(AssertionError, match="pytest --write-messages"):
        raise_in(reader, TEST, tmp_path, "seed=3")
    reader.end()
    assert words() == {TEST: ["seed=1", "seed=2"]}


def test_words_of_a_test_that_passes_replace_those_known(words, tmp_path):
    writer = Messages(writes=True)
    raise_in(writer, TEST, tmp_path, f"seed=3 in {tmp_path}, at 0x7f01")
    writer.end()
    assert words() == {TEST: ["seed=3 in FOLDER, at 0x..."]}


def test_words_of_what_passes_are_written_although_another_test_fails(words, tmp_path):
    writer = Messages(writes=True)
    raise_in(writer, OTHER, tmp_path, "seed=4")
    fail(writer, TEST)
    writer.end()
    assert words() == {TEST: ["seed=1", "seed=2"], OTHER: ["seed=4"]}


def test_a_test_that_fails_adds_words_and_loses_none(words, tmp_path):
    writer = Messages(writes=True)
    raise_in(writer, TEST, tmp_path, "seed=3")
    with pytest.raises(AssertionError):
        raise_in(writer, TEST, tmp_path, "wrong", name="batch_size")
    fail(writer, TEST)
    writer.end()
    assert words() == {TEST: ["seed=1", "seed=2", "seed=3"]}


def test_words_of_tests_that_are_gone_are_left_out(words, tmp_path):
    writer = Messages(writes=True)
    raise_in(writer, f"{FILE}::test_that_is_gone", tmp_path, "seed=3")
    raise_in(writer, "tests/gone.py::test_it", tmp_path, "seed=3")
    writer.end()
    assert words() == {TEST: ["seed=1", "seed=2"]}
