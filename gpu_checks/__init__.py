"""Real memory: allocation, views and quantised round trips."""
