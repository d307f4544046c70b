"""Simulation of a fleet of metastores, policies and executors, fed by measured costs. See docs/scaling.md."""
