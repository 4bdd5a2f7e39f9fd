"""A solver in Python that does something wrong at time step 3 of 6: faulty.py WHAT."""

import os
import sys

import numpy as np

if "OMPI_COMM_WORLD_SIZE" in os.environ:
    from mpi4py import MPI

    rank, ranks = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
else:
    rank, ranks = 0, 1

from compss_train.online import client

what = sys.argv[1]
assert "torch" not in sys.modules
assert "zmq" not in sys.modules
client.init("u", 4)
client.init("v", 2)
for step in range(6):
    u = np.full((2, 2), 10 * rank + step)
    if step == 3 and rank == ranks - 1:
        if what == "raises":
            raise RuntimeError("no mesh")
        if what == "exits":
            sys.exit(3)
        if what == "finishes":
            client.finalize()
            break
        if what == "length":
            u = u[0]
        if what == "complex":
            u = u + 1j
        if what == "other":
            client.send("v", u[0])
            continue
        if what == "unknown":
            client.send("w", u)
        if what == "declares":
            client.init("w", 4)
    client.send("u", u, text=f"step {step}")
    client.send("v", u.astype(np.float32)[:, 0])
else:
    client.finalize()
