"""Tiles in the daemon: commands, routes, balancing."""
