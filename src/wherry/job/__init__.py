"""Jobs: launch, readiness gate, output."""
