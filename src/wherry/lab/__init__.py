"""Studies, benchmarks, statistics, figures, reports."""
