"""What the commands find out: plain data, rendered by `remat.report`.

All sizes in bytes, all times in nanoseconds.
"""

from dataclasses import dataclass

from remat.schedule import BoundKind, Status


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What a session holds at its peak beyond an empty process.

    `tensors_bytes` are live values, `workspace_bytes` the scratch of the op at the peak,
    `overhead_bytes` the session's own bookkeeping. Inputs belong to the caller and are not
    part of the total.
    """

    weights_bytes: int
    tensors_bytes: int
    workspace_bytes: int
    overhead_bytes: int
    inputs_bytes: int

    @property
    def total_bytes(self) -> int:
        """What a memory limit is compared with."""
        return self.weights_bytes + self.tensors_bytes + self.workspace_bytes + self.overhead_bytes


@dataclass(frozen=True, slots=True)
class Holder:
    """A buffer alive at the peak: the value that opened it, the op that wrote it."""

    value: str
    op: str
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """`remat inspect`: the model as it is, in ONNX Runtime's default order.

    `least_found_bytes` is the least total for which a schedule was found, `least_proven_bytes`
    a total that every schedule needs, because of the op `needed_by`.
    """

    model: str
    ops: int
    kinds: tuple[tuple[str, int], ...]
    dynamic_dims: tuple[tuple[str, str], ...]
    bound_dims: tuple[tuple[str, int], ...]
    activations_bytes: int
    as_is: Breakdown
    peak_op: str
    least_found_bytes: int
    least_proven_bytes: int
    needed_by: str
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class OpProfile:
    """One op of a profiled model. `alias` and `in_place` name inputs by position."""

    name: str
    kind: str
    time_ns: int
    spread_ns: int
    output_bytes: int
    workspace_bytes: int
    alias: tuple[int, ...]
    in_place: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """`remat profile`: the op costs in execution order and the measured run they add up to."""

    model: str
    provider: str
    runtime: str
    threads: int
    cpu: str
    cached_ops: int
    measured_ns: int
    ops: tuple[OpProfile, ...]

    @property
    def sum_ns(self) -> int:
        """The sum of all op times, to be compared with `measured_ns`."""
        return sum(op.time_ns for op in self.ops)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One model in a fresh process.

    `held_bytes` is what the loaded, warmed session holds; `run_bytes` what a run adds at its
    peak; `load_peak_bytes` the high-water mark while loading. `run_ns` are single runs in order.
    `mode` is "default" (a plain session), "strict" or "plain" (default, arena and pattern off).
    """

    model: str
    mode: str
    held_bytes: int
    run_bytes: int
    load_peak_bytes: int
    run_ns: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """What a memory limit is compared with."""
        return self.held_bytes + self.run_bytes

    @property
    def median_ns(self) -> int:
        """The middle run."""
        return sorted(self.run_ns)[len(self.run_ns) // 2]

    @property
    def fastest_ns(self) -> int:
        """The fastest run, which is what a predicted time is for."""
        return min(self.run_ns)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output of both models; `equal` is judged with the tolerances asked for."""

    output: str
    equal: bool
    bitwise: bool
    worst_absolute: float
    worst_relative: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Whether a run of either model came through a real limit of the operating system."""

    limit_bytes: int
    original_survived: bool
    optimized_survived: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """`remat verify`: `failures` is empty if and only if everything holds.

    `enforcement` is None where no real limit was set. `seeded_ops` counts the random ops without
    a seed that were given one in copies of both models, which the outputs are those of, and
    `racing_ops` those on whose account both models were compared on one thread.
    """

    original: Measurement
    optimized: Measurement
    outputs: tuple[Comparison, ...]
    budget_bytes: int
    predicted_bytes: int
    predicted_ns: int
    failures: tuple[str, ...]
    enforcement: Enforcement | None = None
    seeded_ops: int = 0
    racing_ops: int = 0


@dataclass(frozen=True, slots=True)
class Optimization:
    """`remat optimize`: what was asked, decided, predicted and measured.

    `budget_bytes` is 0 where no budget applies. `base_ns` is the predicted time without any
    recomputation. `verdict` is None with `--no-verify`. `session_options` maps a language to
    the lines its caller must write.
    """

    model: str
    output: str
    schedule_file: str
    budget_text: str
    budget_bytes: int
    as_is_bytes: int
    predicted: Breakdown
    predicted_ns: int
    base_ns: int
    status: Status
    lower_bound_ns: int
    bound_kind: BoundKind
    found_by: str
    ops: int
    recomputed_ops: int
    interrupted: bool
    seconds: float
    session_options: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class SolvedStep:
    """One step: the op, how often it has run before, what is held while it runs."""

    op: str
    recomputation: int
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Solved:
    """`remat solve`: a schedule of a bare problem, and what is proven about it.

    `base_peak_bytes` and `base_ns` are those of the order given, nothing computed twice.
    """

    problem: str
    solver: str
    seed: int
    ops: int
    budget_bytes: int
    base_peak_bytes: int
    base_ns: int
    status: Status
    peak_bytes: int
    time_ns: int
    lower_bound_ns: int
    bound_kind: BoundKind
    needed_bytes: int
    found_by: str
    interrupted: bool
    seconds: float
    steps: tuple[SolvedStep, ...]

    @property
    def recomputed_ops(self) -> int:
        """How many steps compute something again."""
        return sum(1 for step in self.steps if step.recomputation)
