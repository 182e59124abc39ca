"""Specs: fabric files and cluster files, validated strictly.

Invariant: a spec that exists is valid in itself; the plan checks properties that depend on the machine. An unknown key
is an error that suggests the nearest known key.
"""
