"""Studies: repeatable experiments, from a design over raw samples to a report."""
