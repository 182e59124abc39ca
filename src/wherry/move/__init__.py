"""Moves: one state machine for every kind of node."""
