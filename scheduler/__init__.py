"""Solvers: a problem in, a solution out; judged by `remat.check` and `remat.simulate`."""
