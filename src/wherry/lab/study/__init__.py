"""Studies: repeatable experiments, from a recipe over raw samples to a report."""
