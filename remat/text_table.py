"""Columns of text."""

from collections.abc import Collection, Sequence


def named(facts: Sequence[tuple[str, str]]) -> str:
    """A line "name  fact" each, the facts aligned; a name's indent is kept."""
    width = max((len(name) for name, _ in facts), default=0)
    return "\n".join(f"{name.ljust(width)}  {fact}".rstrip() for name, fact in facts)


def aligned(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int] = ()
) -> str:
    """A table without borders; columns in `left` are flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (header, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)
