"""Random draws with a state of our own, so that a seed fixes the answer whatever else runs.

The generator is xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift
generators, scrambled", 2016), seeded through one round of splitmix64.
"""

import numpy as np

from remat.scheduler.compiled import Word, part

MASK = (1 << 64) - 1


def seeded(seed: int) -> Word:
    """A fresh generator; any integer is a valid seed."""
    word = (seed + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    word ^= word >> 31
    return np.array([word or 1], dtype=np.uint64)


@part
def uniform(rng: Word) -> float:
    """A float in [0, 1)."""
    word = rng[0]
    word ^= word >> np.uint64(12)
    word ^= word << np.uint64(25)
    word ^= word >> np.uint64(27)
    rng[0] = word
    return float((word * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(11)) * 2.0**-53


@part
def below(rng: Word, end: int) -> int:
    """An integer in [0, end); end >= 1."""
    return int(uniform(rng) * end)
