"""A study whose jobs are processes of a folder: job_program.py FOLDER; a job: job_program.py job.

``FOLDER/simulation-000003-....began`` has the ids of the jobs of a simulation, and ``ended.json``
the last record.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from torch import nn

from compss_train import (
    BufferSpec,
    DistributedTrainer,
    Jobs,
    Merge,
    SampleSender,
    Simulations,
)
from compss_train.callbacks import Checkpoint
from tests.helpers.waiting import hang, pause
from tests.online.simulations import free_port

INPUTS = 6
AT_MOST = 2
STEPS = 40


def run_job() -> None:
    value = json.loads(os.environ["COMPSS_TRAIN_INPUT"])
    with SampleSender() as sender:
        for step in range(STEPS):
            pause(0.06 if value % 2 else 0.02)  # so that two do not end at a time
            sender.send(np.float32([value, step / STEPS]), np.float32([value * step]))


def living(folder: Path) -> list[str]:
    """Return the ids of jobs that run."""
    ids = " ".join(path.read_text() for path in folder.glob("*.began")).split()
    return [job_id for job_id in ids if _runs(job_id)]


def _runs(job_id: str) -> bool:
    try:
        status = Path(f"/proc/{job_id}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def submit(folder: Path, variables: dict[str, str]) -> int:
    job = subprocess.Popen(
        [sys.executable, "-m", "tests.online.job_program", "job"],
        env={**os.environ, **variables},
        start_new_session=True,
    )
    with (folder / f"{variables['COMPSS_TRAIN_NAME']}.began").open("a") as file:
        file.write(f"{job.pid}\n")
    slow = folder / "slow"
    if slow.exists():  # it does not answer any more
        slow.rename(folder / "submitting")
        hang()
    return job.pid


def find(folder: Path, name: str) -> list[str]:
    """Return the ids of the jobs of a name that run."""
    began = folder / f"{name}.began"
    return [job_id for job_id in began.read_text().split() if _runs(job_id)]


def main(folder: Path) -> None:
    port = folder / "port"
    if not port.exists():
        port.write_text(str(free_port()))
    trainer = DistributedTrainer(1, engine="local", seed=0, threads=1)
    trainer.build(nn.Linear(2, 1), {"optimizer": "adam", "lr": 0.01}, "mse")
    trainer.fit_online(
        Simulations(
            jobs=Jobs(
                submit=lambda variables: submit(folder, variables),
                alive=lambda ids: living(folder),
                cancel=lambda job_id: os.kill(int(job_id), 9),
                at_most=AT_MOST,
                every=0.1,
                find=lambda name: find(folder, name),
            ),
            inputs=range(INPUTS),
            address=f"tcp://127.0.0.1:{port.read_text()}",
            token="ours alone",
        ),
        buffer=BufferSpec("FIFO", 40),
        batch_size=5,
        merge=Merge(every=3),
        checkpoint_every=0.5,
        callbacks=[Checkpoint(folder / "saves")],
        progress=False,
        resume=True,
    )
    (folder / "ended.json").write_text(json.dumps(trainer.history[-1]))
    trainer.close()


if __name__ == "__main__":
    run_job() if sys.argv[1] == "job" else main(Path(sys.argv[1]))
