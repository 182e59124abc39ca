"""Reports: statistics, tables, figures, the HTML page and its PDF. Knows neither studies nor benchmarks."""
