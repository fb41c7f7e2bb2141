"""Rewrites of a model before it is scheduled, one file each."""
