"""Each rank writes its part of one HDF5 file, turn by turn, and rank 0 reads all of it at the end."""

import os
import time

os.environ["H5PY_ALWAYS_USE_MPI"] = "1"

import h5py
import numpy
from mpi4py import MPI

TURNS, PIECE = 150, 500
world = MPI.COMM_WORLD
with h5py.File("all.h5", "w", driver="mpio", comm=world) as file:
    table = file.create_dataset(
        "table", (0, world.size, PIECE), maxshape=(None, world.size, PIECE), chunks=(8, world.size, PIECE), dtype="f8"
    )
    for turn in range(TURNS):
        table.resize(turn + 1, axis=0)
        with table.collective:
            table[turn, world.rank, :] = numpy.arange(PIECE) * 0.5 + turn * 1000 + world.rank
        time.sleep(0.02)
if world.rank == 0:
    with h5py.File("all.h5", "r") as file:
        written = file["table"][...]
    pieces, turns, ranks = numpy.arange(PIECE), numpy.arange(TURNS), numpy.arange(world.size)
    right = pieces[None, None, :] * 0.5 + turns[:, None, None] * 1000 + ranks[None, :, None]
    print("RESULT", written.shape, bool((written == right).all()))
