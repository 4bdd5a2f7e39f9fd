import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train.cli.run_files import RunFile, RunFileError, apply_settings, read_toml

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
plain = st.one_of(texts, st.booleans(), st.integers(), st.floats(allow_nan=False), st.datetimes())
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=4)


@settings(max_examples=25)
@given(st.dictionaries(texts, st.dictionaries(texts, values) | values))
def test_a_dumped_file_has_all_values_seed_and_home(table):
    run_file = RunFile(Path("run.toml"), Path("/home/me"), {**table, "output": {"folder": "runs", "csv": True}})
    seeded = {**run_file.section("trainer"), "seed": 3}
    expected = {**table, "trainer": seeded, "output": {"csv": True}, "home": "/home/me"}
    assert tomllib.loads(run_file.dumps(3)) == expected


SETTINGS = {
    "fit.num_epochs=3": 3,
    "fit.merge=commutative": "commutative",
    'fit.merge="commutative"': "commutative",
    "fit.a = true": True,
    "fit.lr=1e-3": 0.001,
    "fit.sizes=[1, 2]": [1, 2],
    "fit.buffer={type='FIRO', size=3}": {"type": "FIRO", "size": 3},
    "fit.import=import:a.b:c": "import:a.b:c",
    "fit.text=a=b": "a=b",
    "fit.two=1\nthree=2": "1\nthree=2",
}


def test_settings_are_toml_or_strings_and_leave_the_original_unchanged():
    for setting, value in SETTINGS.items():
        key = setting.partition("=")[0].strip().partition(".")[2]
        assert apply_settings({"fit": {"x": 1}}, [setting]) == {"fit": {"x": 1, key: value}}
    table = {"build": {"optimizer": {"lr": 1}}}
    changed = apply_settings(table, ["build.optimizer.lr=2", "fit.buffer.capacity=3"])
    assert changed == {"build": {"optimizer": {"lr": 2}}, "fit": {"buffer": {"capacity": 3}}}
    assert table == {"build": {"optimizer": {"lr": 1}}}


def test_wrong_settings_and_unreadable_files_are_errors(tmp_path):
    for setting in ("fit.a", "a=1", "=1", ".a=1", "fit.=1", "fit..a=1"):
        with pytest.raises(RunFileError, match=r"give SECTION.KEY=VALUE"):
            apply_settings({}, [setting])
    with pytest.raises(RunFileError, match="seed is 3 in the file, not a table"):
        apply_settings({"trainer": {"seed": 3}}, ["trainer.seed.a=1"])
    with pytest.raises(RunFileError, match=r"cannot read .*none.toml: No such file"):
        read_toml(tmp_path / "none.toml")
    for content, reason in ((b"a = ", "Invalid value"), (b"\xff", "decode")):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(RunFileError, match=rf"bad.toml is not valid TOML: .*{reason}"):
            read_toml(tmp_path / "bad.toml")
