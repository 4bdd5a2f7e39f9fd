import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train.cli.run_files import toml
from compss_train.cli.run_files.problems import RunFileError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
plain = st.one_of(texts, st.booleans(), st.integers(), st.floats(allow_nan=False), st.datetimes())
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=4)


@settings(max_examples=25)
@given(st.dictionaries(texts, st.dictionaries(texts, values) | values))
def test_what_is_written_is_read_again(table):
    assert tomllib.loads(toml.dumps(table)) == table


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("fit.num_epochs=3", 3),
        ("fit.merge=commutative", "commutative"),
        ('fit.merge="commutative"', "commutative"),
        ("fit.a = true", True),
        ("fit.lr=1e-3", 0.001),
        ("fit.sizes=[1, 2]", [1, 2]),
        ("fit.buffer={type='FIRO', size=3}", {"type": "FIRO", "size": 3}),
        ("fit.import=import:a.b:c", "import:a.b:c"),
        ("fit.text=a=b", "a=b"),
        ("fit.two=1\nthree=2", "1\nthree=2"),
    ],
)
def test_settings_are_toml_or_else_texts(setting, value):
    key = setting.partition("=")[0].strip().partition(".")[2]
    assert toml.with_settings({"fit": {"x": 1}}, [setting]) == {"fit": {"x": 1, key: value}}


def test_settings_make_tables_and_leave_what_was_given_as_it_was():
    given = {"build": {"optimizer": {"lr": 1}}}
    changed = toml.with_settings(given, ["build.optimizer.lr=2", "fit.buffer.size=3"])
    assert changed == {"build": {"optimizer": {"lr": 2}}, "fit": {"buffer": {"size": 3}}}
    assert given == {"build": {"optimizer": {"lr": 1}}}


@pytest.mark.parametrize("setting", ["fit.a", "a=1", "=1", ".a=1", "fit.=1", "fit..a=1"])
def test_settings_of_another_form_are_refused(setting):
    with pytest.raises(RunFileError, match=r"give SECTION.KEY=VALUE"):
        toml.with_settings({}, [setting])


def test_nothing_can_be_set_inside_a_number():
    with pytest.raises(RunFileError, match="seed is 3 in the file, no table"):
        toml.with_settings({"trainer": {"seed": 3}}, ["trainer.seed.a=1"])


def test_files_that_cannot_be_read_are_told(tmp_path):
    with pytest.raises(RunFileError, match=r"cannot read .*none.toml: No such file"):
        toml.read(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    for content, reason in ((b"a = ", "Invalid value"), (b"\xff", "decode")):
        Path(bad).write_bytes(content)
        with pytest.raises(RunFileError, match=rf"bad.toml is no TOML: .*{reason}"):
            toml.read(bad)
