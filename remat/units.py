"""Sizes, shares and durations as people write them, and back.

The only module that knows what a MiB is. Memory is rounded up when shown, budgets are
rounded down when read.
"""

import difflib
import re
from dataclasses import dataclass
from fractions import Fraction

from remat.errors import UsageError

MILLION = 1_000_000
# Larger than the address space of any machine: a typing error, not a limit.
_MOST_BYTES = 2**63 - 1
_UNIT_BYTES = {"B": 1} | {
    letter + suffix: base**power
    for suffix, base in (("iB", 1024), ("B", 1000))
    for power, letter in enumerate("KMGT", start=1)
}
_BYTES_OF = {unit.lower(): factor for unit, factor in _UNIT_BYTES.items()}
_SECONDS_OF = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}
_NUMBER_AND_UNIT = re.compile(r"(\d{1,30}(?:\.\d{1,30})?) ?([a-z%]*)", re.ASCII | re.IGNORECASE)
_SIZES_ACCEPTED = "a size such as 4GB, 512MiB, 1.5GiB or 1000000, or a share of the peak as 60%"
_DURATIONS_ACCEPTED = "remat takes a duration such as 60, 60s, 2m, 1h or 500ms"


@dataclass(frozen=True, slots=True)
class Size:
    """A size in bytes, or a share of the peak as it is: exactly one of the two is not 0.

    `share_millionths` is 1,000,000 for 100%. `text` is what was typed.
    """

    text: str
    size_bytes: int = 0
    share_millionths: int = 0

    def __post_init__(self) -> None:
        if (self.size_bytes > 0) == (self.share_millionths > 0):
            raise ValueError("a size is either a number of bytes or a share, and above 0")

    @property
    def is_share(self) -> bool:
        """Whether the peak as it is must be known to resolve it."""
        return self.share_millionths > 0

    def resolve(self, as_is_bytes: int) -> int:
        """The size in bytes, rounded down; `as_is_bytes` is the peak a share refers to."""
        if self.is_share:
            return as_is_bytes * self.share_millionths // MILLION
        return self.size_bytes


def parse_size(text: str) -> Size:
    """The size that `text` names: "4GB", "512MiB", "1.5 GiB", "60%", "1000000".

    KB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB powers of 1024, in any letter case; a
    number alone counts bytes. Fractions of a byte are dropped.
    Raises UsageError R201 for anything else, for less than a byte and for 2^63 bytes or more.
    """
    found = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if found is None:
        raise _bad_size(text, "is not a size", _squeezed(text))
    number, unit = Fraction(found[1]), found[2].lower()
    if unit == "%":
        share = int(number * (MILLION // 100))
        if share == 0:
            raise _bad_size(text, "leaves no memory at all")
        return Size(text, share_millionths=share)
    if unit not in _BYTES_OF and unit:
        raise _bad_size(text, f"has an unknown unit '{found[2]}'", _with_known_unit(found))
    size_bytes = int(number * _BYTES_OF[unit or "b"])
    if size_bytes == 0:
        raise _bad_size(text, "leaves no memory at all")
    if size_bytes > _MOST_BYTES:
        raise _bad_size(text, "is more than any machine has")
    return Size(text, size_bytes=size_bytes)


def parse_seconds(text: str) -> float:
    """The duration in seconds that `text` names: "60", "60s", "2m", "1h", "500ms".

    Raises UsageError R202 for anything else and for 0.
    """
    found = _NUMBER_AND_UNIT.fullmatch(text.strip())
    unit = found[2].lower() or "s" if found else ""
    if found is None or unit not in _SECONDS_OF:
        raise UsageError("R202", f"{_quoted(text)} is not a duration", fix=_DURATIONS_ACCEPTED)
    seconds = float(Fraction(found[1]) * _SECONDS_OF[unit])
    if seconds == 0:
        raise UsageError("R202", f"{_quoted(text)} leaves no time at all", fix=_DURATIONS_ACCEPTED)
    return seconds


def format_bytes(size_bytes: int) -> str:
    """A size for people, rounded up to a tenth: "96.0 MiB", "812 B"."""
    factor, unit = _binary_unit(abs(size_bytes))
    if factor == 1:
        return f"{size_bytes} B"
    tenths = -(-size_bytes * 10 // factor)
    sign = "-" if tenths < 0 else ""
    return f"{sign}{abs(tenths) // 10}.{abs(tenths) % 10} {unit}"


def format_bytes_exact(size_bytes: int) -> str:
    """A size for people and to the byte: "96.0 MiB (100,663,296 bytes)"."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes} bytes"
    return f"{format_bytes(size_bytes)} ({size_bytes:,} bytes)"


def format_mem_argument(size_bytes: int) -> str:
    """The shortest text that `parse_size` reads as `size_bytes` or up to 1 % more: "129MiB"."""
    for unit in ("GiB", "MiB", "KiB"):
        count = max(1, -(-size_bytes // _UNIT_BYTES[unit]))
        if (count * _UNIT_BYTES[unit] - size_bytes) * 100 <= size_bytes:
            return f"{count}{unit}"
    return f"{max(1, size_bytes)}B"


def format_ns(time_ns: int) -> str:
    """A duration for people, three digits: "950 ns", "12.3 us", "8.31 ms", "1.20 s"."""
    magnitude = abs(time_ns)
    for factor, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        # 999.5 us and more would read as 1000 us.
        if magnitude * 2000 >= factor * 1999:
            value = time_ns / factor
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{time_ns} ns"


def format_share(part: int, whole: int) -> str:
    """`part` in percent of `whole`: "12.5 %"; "-" where there is no whole."""
    return f"{part / whole:.1%}".replace("%", " %") if whole else "-"


def round_up(value: int, multiple: int) -> int:
    """The least multiple of `multiple` (above 0) that is not less than `value`."""
    return -(-value // multiple) * multiple


def _binary_unit(size_bytes: int) -> tuple[int, str]:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        # A tenth below the unit would be shown as 1024.0 of the one before.
        if size_bytes * 10 > _UNIT_BYTES[unit] * 10 - _UNIT_BYTES[unit] // 1024:
            return _UNIT_BYTES[unit], unit
    return 1, "B"


def _with_known_unit(found: re.Match[str]) -> str:
    near = difflib.get_close_matches(found[2].upper(), [unit.upper() for unit in _UNIT_BYTES], 1)
    spelling = {unit.upper(): unit for unit in _UNIT_BYTES}
    return f"{found[1]}{spelling[near[0]]}" if near else ""


def _squeezed(text: str) -> str:
    squeezed = "".join(text.split())
    found = _NUMBER_AND_UNIT.fullmatch(squeezed)
    return squeezed if found and found[2].lower() in _BYTES_OF else ""


def _bad_size(text: str, fault: str, suggestion: str = "") -> UsageError:
    fix = f"did you mean {suggestion}? " if suggestion else ""
    return UsageError("R201", f"{_quoted(text)} {fault}", fix=f"{fix}remat takes {_SIZES_ACCEPTED}")


def _quoted(text: str) -> str:
    shown = text if len(text) <= 40 else text[:37] + "..."
    return ascii(shown)
