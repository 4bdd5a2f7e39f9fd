"""Lorenz's equations as a solver for Melissa: lorenz.py RHO STEPS, a trajectory on each rank."""

import sys

import numpy as np
from melissa_api import *
from mpi4py import MPI

SIGMA, BETA, STEP = 10.0, 8.0 / 3.0, 0.01


def derivative(position, rho):
    x, y, z = position
    return np.array([SIGMA * (y - x), x * (rho - z) - y, x * y - BETA * z])


comm = MPI.COMM_WORLD
rho = float(sys.argv[1])
position = np.array([1.0, 1.0, 1.0]) * (1 + comm.Get_rank())
melissa_init("position", 3, comm)
for _ in range(int(sys.argv[2])):
    melissa_send("position", position)
    position = position + STEP * derivative(position, rho)
melissa_finalize()
