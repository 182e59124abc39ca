"""Clusters: from a spec to a plan, from a plan to nodes."""
