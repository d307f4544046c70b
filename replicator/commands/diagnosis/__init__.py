"""Diagnosis: what a support case needs to know, without secrets, in one file."""
