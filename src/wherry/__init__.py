"""Wherry runs unmodified MPI programs on virtual clusters and moves their nodes while they run."""

__version__ = "0.1.0"
