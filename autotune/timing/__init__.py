"""Predict seconds: a roofline, collectives, and the correction by what probes measured."""
