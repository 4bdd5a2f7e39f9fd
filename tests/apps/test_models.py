"""The apps with models of their own kind learn what they should, in a few epochs."""

import re

import pytest

from tests.helpers.documents import ROOT

NAMES = ("gan", "two_towers", "language_model", "unet")


@pytest.fixture
def printed_by(modules, one_thread, monkeypatch, capsys, tmp_path):
    """Run an app in this process, in an empty folder; return what it printed."""
    import importlib
    import sys

    monkeypatch.chdir(tmp_path)

    def run(app, epochs):
        monkeypatch.setattr(sys, "argv", [f"{app}.py", "--engine", "serial", "--epochs", str(epochs)])
        importlib.import_module(app).main()
        return capsys.readouterr().out

    return run


def numbers(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_a_gan_makes_digits_that_differ(printed_by):
    discriminator, generator, spread = numbers(printed_by("gan", 3).splitlines()[-1])
    assert 0 < discriminator < 1.5
    assert generator > 0.5
    assert spread > 0.02


def test_two_towers_learn_the_tastes_of_users(printed_by):
    _, right, correlation = numbers(printed_by("two_towers", 5))
    assert right > 65
    assert correlation > 0.5


def test_a_language_model_learns_to_write_words(printed_by):
    first, last = numbers(text := printed_by("language_model", 2))
    assert last < first < 3.3
    assert text.splitlines()[1].startswith("the s")


def test_a_unet_marks_discs(printed_by):
    loss, overlap = numbers(printed_by("unet", 5))
    assert loss < 0.5
    assert overlap > 0.4


@pytest.mark.parametrize("app", NAMES)
def test_each_of_them_is_short(app):
    assert len((ROOT / "apps" / f"{app}.py").read_text().splitlines()) < 100
