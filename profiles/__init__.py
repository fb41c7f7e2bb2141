"""Costs of ops as the runtime itself reports them, one file per execution provider."""
