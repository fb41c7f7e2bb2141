"""Linear programs row by row, solved by HiGHS on one thread.

The effort is limited by counts (simplex iterations, nodes), which repeat, and only at last by a
clock. What is trusted is the dual bound alone; primal points are hints that others must judge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import highspy
import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]

INFINITY = float(highspy.kHighsInf)
# More simplex iterations than any program here takes: the clock or the nodes end it.
MANY_ITERATIONS = 10_000_000


class Outcome(Enum):
    """SOLVED: to the gap asked for. CUT: a limit, or `stop`, came first. INFEASIBLE: no point."""

    SOLVED = auto()
    CUT = auto()
    INFEASIBLE = auto()


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits of one run; `gap` is absolute, `enough` an objective the bound need not pass.

    `stop` ends it from outside: `remat.scheduler.apart` asks it, where programs are solved.
    """

    iterations: int
    nodes: int
    seconds: float
    gap: float
    enough: float
    stop: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Answer:
    """`bound`: no point has a lower objective (-inf: none known). `point` may be empty.

    `reduced` are the reduced costs of a solved relaxation, else empty.
    """

    outcome: Outcome
    bound: float
    point: Real
    reduced: Real


@dataclass(slots=True)
class Program:
    """min cost'x with variables in [low, high] and rows low <= a'x <= high; grows by calls."""

    cost: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    row_low: list[float] = field(default_factory=list)
    row_high: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)

    def variable(self, *, cost: float = 0.0, low: float = 0.0, whole: bool = False) -> int:
        """A new variable in [low, 1]; `whole` makes it 0 or 1."""
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(1.0)
        self.whole.append(whole)
        return len(self.cost) - 1

    def at_most(self, terms: Sequence[tuple[int, float]], high: float) -> None:
        """A row: sum of factor * variable <= high."""
        self._row(terms, -INFINITY, high)

    def at_least(self, terms: Sequence[tuple[int, float]], low: float) -> None:
        """A row: sum of factor * variable >= low."""
        self._row(terms, low, INFINITY)

    def equal(self, terms: Sequence[tuple[int, float]], value: float) -> None:
        """A row: sum of factor * variable == value."""
        self._row(terms, value, value)

    def _row(self, terms: Sequence[tuple[int, float]], low: float, high: float) -> None:
        self.columns.extend(column for column, _ in terms)
        self.factors.extend(factor for _, factor in terms)
        self.starts.append(len(self.columns))
        self.row_low.append(low)
        self.row_high.append(high)


def relaxed(program: Program, effort: Effort) -> Answer:
    """Solve with fractions; a bound only if solved to the end."""
    highs = _highs(program, effort, whole=False)
    highs.setOptionValue("simplex_iteration_limit", effort.iterations)
    highs.run()
    status = highs.getModelStatus()
    nothing = np.zeros(0)
    if status == highspy.HighsModelStatus.kInfeasible:
        return Answer(Outcome.INFEASIBLE, INFINITY, nothing, nothing)
    if status != highspy.HighsModelStatus.kOptimal:
        return Answer(Outcome.CUT, -INFINITY, nothing, nothing)
    solution = highs.getSolution()
    bound = float(highs.getInfo().objective_function_value)
    return Answer(Outcome.SOLVED, bound, np.array(solution.col_value), np.array(solution.col_dual))


def whole(program: Program, effort: Effort, start: Sequence[float] = ()) -> Answer:
    """Solve in whole numbers by branch and bound, from the point `start` if there is one."""
    highs = _highs(program, effort, whole=True)
    highs.setOptionValue("mip_max_nodes", effort.nodes)
    highs.setOptionValue("mip_abs_gap", effort.gap)
    highs.setOptionValue("mip_rel_gap", 0.0)
    if len(start):
        point = highspy.HighsSolution()
        point.col_value = list(start)
        highs.setSolution(point)

    def limit(event: highspy.HighsCallbackEvent) -> None:
        seen = event.data_out
        proven = effort.enough <= seen.mip_dual_bound < INFINITY
        event.interrupt(proven)

    highs.cbMipInterrupt += limit
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    nothing = np.zeros(0)
    if status == highspy.HighsModelStatus.kInfeasible:
        return Answer(Outcome.INFEASIBLE, INFINITY, nothing, nothing)
    solved = status == highspy.HighsModelStatus.kOptimal
    has_point = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    point_found = np.array(highs.getSolution().col_value) if has_point else nothing
    outcome = Outcome.SOLVED if solved else Outcome.CUT
    return Answer(outcome, float(info.mip_dual_bound), point_found, nothing)


def _highs(program: Program, effort: Effort, *, whole: bool) -> highspy.Highs:
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(program.cost), len(program.row_low)
    model.col_cost_ = np.array(program.cost)
    model.col_lower_ = np.array(program.low)
    model.col_upper_ = np.array(program.high)
    model.row_lower_ = np.array(program.row_low)
    model.row_upper_ = np.array(program.row_high)
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = np.array(program.starts, dtype=np.int32)
    matrix.index_ = np.array(program.columns, dtype=np.int32)
    matrix.value_ = np.array(program.factors)
    if whole:
        kinds = highspy.HighsVarType
        model.integrality_ = [kinds.kInteger if w else kinds.kContinuous for w in program.whole]
    highs: highspy.Highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("time_limit", max(0.0, effort.seconds))
    highs.passModel(model)
    return highs
