"""Starts and steers the native multikernel: tiles, the programs that run on them, and their moves."""
