"""Diagnosis: one file for a support case, without secrets."""
