"""Implementations under test, running them, reports and the command line."""
