"""Lets every test import what lies here beside it: `names`."""
