"""What `remat solve` says, for people."""

from remat.report_optimize import proven
from remat.results import Solved
from remat.text_table import named
from remat.units import format_bytes_exact, format_ns, format_share


def solved_text(solved: Solved) -> str:
    """The answer, what it costs, and what is proven about it."""
    extra_ns = solved.time_ns - solved.base_ns
    overhead = format_share(extra_ns, solved.base_ns)
    share = format_share(solved.budget_bytes, solved.base_peak_bytes)
    facts = [
        ("problem", f"{solved.problem}, {solved.ops} ops"),
        ("budget", f"{format_bytes_exact(solved.budget_bytes)}, {share} of the peak as it is"),
        ("peak", format_bytes_exact(solved.peak_bytes)),
        ("time", f"{format_ns(solved.time_ns)}, {format_ns(solved.base_ns)} without recomputation"),
        ("overhead", overhead),
        ("recomputed", f"{solved.recomputed_ops} times, in {len(solved.steps)} steps"),
        ("search", f"{solved.status}, found by {solved.found_by}"),
        ("proven", proven(solved.time_ns, solved.lower_bound_ns, solved.bound_kind)),
        ("took", f"{solved.seconds:.1f} s"),
    ]
    cut = ["interrupted: this is the best the search had found"] if solved.interrupted else []
    return "\n".join([named(facts), *cut])
