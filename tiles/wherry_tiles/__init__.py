"""Tiles: a multikernel on Linux, whose processes move between small kernels. A component of Wherry (`component`)."""
