"""Hosts and networks: drivers behind one protocol."""
