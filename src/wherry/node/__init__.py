"""Nodes: drivers behind one protocol."""
