"""Sizes and durations as people write them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat.errors import ExitCode, UsageError
from remat.units import (
    Size,
    format_bytes,
    format_bytes_exact,
    format_mem_argument,
    format_ns,
    format_share,
    parse_seconds,
    parse_size,
    round_up,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        ("1000000", 1_000_000),
        ("4GB", 4_000_000_000),
        ("4 gb", 4_000_000_000),
        ("512MiB", 512 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("0.0015kb", 1),
        ("1.9B", 1),
        (" 2TiB ", 2**41),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text).resolve(as_is_bytes=77) == size_bytes
    assert not parse_size(text).is_share


@pytest.mark.parametrize(
    ("text", "as_is_bytes", "size_bytes"),
    [("60%", 1001, 600), ("62.5 %", 1000, 625), ("100%", 7, 7), ("150%", 3, 4), ("33.3333%", 3, 0)],
)
def test_shares_are_rounded_down(text: str, as_is_bytes: int, size_bytes: int) -> None:
    assert parse_size(text).is_share
    assert parse_size(text).resolve(as_is_bytes) == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        *["", " ", "0", "0GB", "0%", "0.5B", "0.0000001%", "-1", "-4GB", "+4GB", "nan", "inf"],
        *["1e9", "0x10", "4 G B", "4G", "4GBB", "GB", "%", "4,5GB", "1_000", "4GB4GB", "60%%"],
        *[
            "\uff14GB",
            "\u0664GB",
            "4\u212aB",
            "4\u00a0\u00a0GB",
            "9" * 40,
            "99999999TiB",
            "4\n\nGB",
        ],
    ],
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert caught.value.code == "R201"
    assert caught.value.exit_code == ExitCode.USAGE
    assert "4GB, 512MiB" in caught.value.fix
    assert caught.value.render().isascii()


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [("4G", "4GB"), ("4GBB", "4GB"), ("4 G B", "4GB"), ("512Mib s", ""), ("512mi", "512MiB")],
)
def test_near_misses_are_suggested(text: str, suggestion: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    found = re.match(r"did you mean (\S+)\?", caught.value.fix)
    assert (found[1] if found else "") == suggestion


@given(st.text())
def test_no_text_escapes_as_another_error(text: str) -> None:
    try:
        size = parse_size(text)
    except UsageError:
        return
    assert size.resolve(as_is_bytes=10**9) >= 0


def test_a_size_is_bytes_or_a_share_but_not_both() -> None:
    with pytest.raises(ValueError, match="either"):
        Size("?", size_bytes=1, share_millionths=1)
    with pytest.raises(ValueError, match="either"):
        Size("?")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 60.0), ("60s", 60.0), ("2m", 120.0), ("1.5 h", 5400.0), ("500ms", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-1", "nan", "inf", "2 min", "60%", "1m30s"])
def test_other_durations_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError, match="R202"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1025, "1.1 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (2**20, "1.0 MiB"),
        (96 * 2**20, "96.0 MiB"),
        (96 * 2**20 + 1, "96.1 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (-(2**21), "-2.0 MiB"),
    ],
)
def test_bytes_are_rounded_up(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


def test_exact_bytes() -> None:
    assert format_bytes_exact(812) == "812 bytes"
    assert format_bytes_exact(96 * 2**20) == "96.0 MiB (100,663,296 bytes)"


@given(st.integers(1, 2**50))
def test_a_mem_argument_reads_back_as_little_more(size_bytes: int) -> None:
    read = parse_size(format_mem_argument(size_bytes)).resolve(0)
    assert size_bytes <= read <= size_bytes * 1.01


@given(st.integers(0, 2**60))
def test_shown_sizes_have_at_most_four_digits_before_the_point(size_bytes: int) -> None:
    number = format_bytes(size_bytes).split()[0].split(".")[0]
    assert int(number) < 1024 or size_bytes >= 2**50


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0 ns"),
        (950, "950 ns"),
        (999_500, "1.00 ms"),
        (12_340, "12.3 us"),
        (8_310_000, "8.31 ms"),
        (831_000_000, "831 ms"),
        (1_200_000_000, "1.20 s"),
    ],
)
def test_durations_in_three_digits(time_ns: int, text: str) -> None:
    assert format_ns(time_ns) == text


def test_shares() -> None:
    assert format_share(1, 8) == "12.5 %"
    assert format_share(1, 0) == "-"


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_round_up_is_the_least_multiple(value: int, multiple: int) -> None:
    rounded = round_up(value, multiple)
    assert rounded % multiple == 0
    assert 0 <= rounded - value < multiple
