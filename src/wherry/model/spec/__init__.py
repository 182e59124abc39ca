"""What a user writes: fabric files and cluster files, validated strictly.

Invariant: a spec that exists is valid in itself; what depends on the machine is checked by the plan. Unknown keys are
errors that suggest the nearest known key.
"""
