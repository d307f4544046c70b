"""Locations of objects on a target: their neighbours, and clearing or leaving a directory."""
