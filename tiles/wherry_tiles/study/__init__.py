"""The study `manycore`."""
