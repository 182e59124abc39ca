"""Benchmarks: measurements of Wherry itself, each beside a baseline and, where there is one, its goal."""
