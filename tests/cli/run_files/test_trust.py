import os
import subprocess
import sys
from pathlib import Path

import pytest

from compss_train.cli.run_files import RunFileError, read_run_file
from compss_train.cli.run_files.objects import load_object
from compss_train.cli.run_files.trust import check_trust, modules_beside, working_directory
from tests.helpers.processes import ROOT, leftovers, session
from tests.helpers.waiting import LIMIT, wait_until

NETWORK = (
    "import torch\nfrom helping import width\n\ndef net():\n    return torch.nn.Linear(5, "
    "width())\n"
)
HELPING = "def width():\n    import deeper.part\n    return deeper.part.WIDTH\n"
SPY = "open({marker!r}, 'a').write(__name__ + ' ')\n"
RUN = """
trainer = { num_workers = 1 }
network = { import = "my_net:Net", in_features = 2, out_features = 3 }
data = { import = "compss_train.cli.fit:spirals", samples = 40 }
validation = { fraction = 0.5 }
build = { optimizer = { optimizer = "sgd", lr = 0.1 }, loss = "cross_entropy" }
fit = { num_epochs = 1, batch_size = 10 }
output = { report = false }
"""


@pytest.fixture
def folder(tmp_path):
    """A folder of modules, of which ``nets`` needs two others, and one that is called as one of
    Python's.
    """
    (tmp_path / "deeper").mkdir()
    texts = {
        "nets": NETWORK,
        "helping": HELPING,
        "deeper/part": "WIDTH = 3\n",
        "profile": ("1 / 0\n"),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def test_modules_of_the_folder_are_found_by_reading(folder):
    assert modules_beside(folder, ["nets:net", "torch.nn:Linear", "nowhere:net"]) == [
        "deeper",
        "helping",
        "nets",
    ]
    assert modules_beside(folder, ["deeper.part:WIDTH"]) == ["deeper"]
    assert modules_beside(folder, ["torch:load"]) == []


@pytest.mark.parametrize("name", ["profile", "torch", "sys", "numpy"])
def test_modules_with_the_name_of_another_are_an_error(folder, name):
    (folder / f"{name}.py").touch()
    for names in ([f"{name}:run"], ["nets:net"]):
        (folder / "nets.py").write_text(f"def net():\n    import {name}.part as part\n")
        with pytest.raises(RunFileError, match=f"{name} has the name of a module in .*; rename it"):
            modules_beside(folder, names)


def test_folders_of_data_with_the_name_of_a_module_are_none(folder):
    (folder / "nets.py").write_text("import numpy, profile\nfrom data import x\n")
    (folder / "profile.py").unlink()
    for name in ("numpy", "profile", "data"):
        (folder / name).mkdir()
    assert modules_beside(folder, ["nets:net"]) == ["data", "nets"]


def test_only_these_can_be_imported_from_the_folder(folder, monkeypatch):
    run = read_run_file(written(folder, "nets:net"))
    (folder / "unnamed.py").touch()
    before = dict(os.environ), list(sys.path), list(sys.meta_path)
    with working_directory(run):
        assert load_object("nets:net")().out_features == 3
        with pytest.raises(ValueError, match="No module named 'unnamed'; install it"):
            load_object("unnamed:x")
    assert before == (dict(os.environ), sys.path, sys.meta_path)
    for name in ("nets", "helping", "deeper", "deeper.part"):
        monkeypatch.delitem(sys.modules, name)


def test_all_but_classes_of_layers_and_optimizers_are_named(folder, capsys):
    objects = [
        "torch.nn:Linear",
        "torch.optim:SGD",
        "compss_train:Gradients",
        "torch:load",
        "torch.nn:Module.eval",
    ]
    objects += ["torch.optim:Tensor", "numpy:load", "nets:net", "torch.nn:gone"]
    check_trust(read_run_file(written(folder, *objects)), trusted=False)
    said = capsys.readouterr().err
    named = (
        "nets:net, numpy:load, torch.nn:Module.eval, torch.nn:gone, torch.optim:Tensor, torch:load"
    )
    assert f"runs {named}, with deeper, helping, nets from {folder} (--trust to hide this)" in said
    check_trust(read_run_file(written(folder, *objects[:3])), trusted=False)
    check_trust(read_run_file(written(folder, *objects)), trusted=True)
    assert capsys.readouterr().err == ""


def test_names_cannot_hide_the_line_that_names_them(folder, capsys):
    check_trust(read_run_file(written(folder, "numpy:load", r"x:\u001b[2K\r\n")), trusted=False)
    said = capsys.readouterr().err
    assert "numpy:load" in said
    assert said.count("\n") == 1
    assert not {"\x1b", "\r"} & {*said}


@pytest.mark.parametrize(
    "name", ["torch.serialization:os.system", "torch.nn.functional:torch._C.sys.exit"]
)
def test_names_do_not_leave_their_package(name):
    with pytest.raises(ValueError, match=r"leaves torch: name the module \w+ itself|has no"):
        load_object(name)


def test_a_run_does_not_run_files_named_as_modules_of_torch_and_python_and_leaves_nothing(tmp_path):
    home = tmp_path / "run"
    marker = tmp_path / "marker"
    home.mkdir()
    names = {
        *sys.stdlib_module_names,
        *(name.partition(".")[0] for name in sys.modules),
        "tree",
        "pandas",
        "loky",
    }
    for name in names - {"compss_train", "torch"}:
        (home / f"{name}.py").write_text(SPY.format(marker=str(marker)))
    (home / "my_net.py").write_text("import torch\n\nclass Net(torch.nn.Linear):\n    pass\n")
    (home / "run.toml").write_text(RUN)
    program = (
        "import sys; sys.path.remove(''); from compss_train.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "fit", str(home / "run.toml")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f":{ROOT}"},  # begins with the current folder
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said
    assert not marker.exists(), marker.read_text()
    wait_until(lambda: not session(process.pid))  # loky's resource tracker ends a moment later
    assert leftovers(process.pid) == []


def written(folder: Path, *objects: str) -> Path:
    path = folder / "run.toml"
    path.write_text(
        "[build]\n" + "".join(f'a{n} = {{ import = "{name}" }}\n' for n, name in enumerate(objects))
    )
    return path
