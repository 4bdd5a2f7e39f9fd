"""Try an installed wheel: train, run the command, and import what each extra installs.

``make extras`` calls it with the Python of a fresh environment that holds the wheel and nothing
else, from an empty folder, so that no file of the checkout can help::

    python try_wheel.py train         # five lines, doctor, the example of `fit`, headers
    python try_wheel.py extras WHEEL  # installs each extra in turn, and imports its packages
"""

import re
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

TRAIN = """
import numpy as np
from torch import nn

import compss_train

rng = np.random.default_rng(0)
x = rng.normal(size=(4000, 20)).astype(np.float32)
y = (x[:, :3].sum(axis=1) > 0).astype(np.int64)
trainer = compss_train.DistributedTrainer(num_workers=2, seed=0)
trainer.build(nn.Linear(20, 2), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy", "accuracy")
trainer.fit(x, y, num_epochs=5, batch_size=50, progress=False)
accuracy = trainer.evaluate(x, y)["accuracy"]
if accuracy < 0.9:
    raise SystemExit(f"accuracy {accuracy:.3f} after five epochs; at least 0.9 was expected")
package = f"compss_train {compss_train.__version__} in {compss_train.__file__}"
print(f"trained by {package}: accuracy {accuracy:.3f}")
"""

HEADERS = (
    "compss_train.h",
    "compss_train.f90",
    "libcompss_train.c",
    "melissa_api.h",
    "melissa_api.f90",
)


def run(*command: str) -> str:
    """Run a command, and return what it prints; end this program if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}")
    return done.stdout


def train() -> None:
    """Train five lines in a script, then the example of the command."""
    script = Path("five_lines.py")
    script.write_text(TRAIN)
    print(run(sys.executable, str(script)), end="")
    command = str(Path(sys.executable).with_name("compss-train"))
    print(run(command, "doctor"), end="")
    example = Path("example.toml")
    example.write_text(run(command, "fit", "--example"))
    run(command, "fit", str(example), "--output", "run")
    run(command, "evaluate", "run", "--json")
    print("compss-train fit --example: trained and evaluated")
    headers = Path(run(command, "headers").strip())
    if missing := [name for name in HEADERS if not (headers / name).is_file()]:
        raise SystemExit(f"{headers} lacks {', '.join(missing)}")
    python = Path(run(command, "headers", "--python").strip())
    if not (python / "melissa_api.py").is_file():
        raise SystemExit(f"{python} lacks melissa_api.py")


def extras(wheel: str) -> None:
    """Install each extra of the wheel, and import every module of the packages that it names."""
    distribution = metadata.distribution("compss_train")
    required = distribution.requires or []
    for extra in distribution.metadata.get_all("Provides-Extra") or []:
        run(sys.executable, "-m", "pip", "install", "--quiet", *sys.argv[3:], f"{wheel}[{extra}]")
        marker = re.compile(rf"extra\s*==\s*['\"]{extra}['\"]")
        names = [
            re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0]
            for line in required
            if marker.search(line)
        ]
        checked = [module for name in names for module in modules_of(name)]
        for module in checked:
            import_module(module)
        print(f"{extra}: {', '.join(checked)}")


def modules_of(name: str) -> list[str]:
    """Return the top-level modules that have a file of their own in an installed distribution."""
    normal = re.sub(r"[-_.]+", "-", name).lower()
    modules = sorted(
        module
        for module, names in metadata.packages_distributions().items()
        if normal in {re.sub(r"[-_.]+", "-", each).lower() for each in names}
        and module.isidentifier()
        and not module.startswith("_")
    )
    if not modules and not name.startswith("types-"):  # stubs have no module to import
        raise SystemExit(f"{name} is not installed, or has no module")
    return modules


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train()
    elif sys.argv[1:2] == ["extras"] and len(sys.argv) > 2:
        extras(sys.argv[2])
    else:
        raise SystemExit(__doc__)
