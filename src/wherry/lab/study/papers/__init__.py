"""The studies, one for each published experiment, beside their pages."""
