"""Made-up results of every command, for tests of reports and of the command line."""

import math
from dataclasses import replace

from remat.results import (
    Breakdown,
    Comparison,
    Enforcement,
    Holder,
    Inspection,
    Measurement,
    OpProfile,
    Optimization,
    Profile,
    Verdict,
)
from remat.schedule import BoundKind, Status

MIB = 2**20

PEAK = Breakdown(
    weights_bytes=10 * MIB,
    tensors_bytes=40 * MIB,
    workspace_bytes=4 * MIB,
    overhead_bytes=MIB // 2,
    inputs_bytes=3 * MIB,
)
INSPECTION = Inspection(
    model="net.onnx",
    ops=3,
    kinds=(("Conv", 2), ("Relu", 1)),
    dynamic_dims=(("x", "batch"),),
    bound_dims=(("height", 32),),
    activations_bytes=120 * MIB,
    as_is=PEAK,
    peak_op="conv_2",
    least_found_bytes=30 * MIB,
    least_proven_bytes=29 * MIB,
    needed_by="conv_1",
    holders=(Holder("t1", "conv_1", 30 * MIB), Holder("t2", "relu_1", 10 * MIB)),
)
PROFILE = Profile(
    model="net.onnx",
    provider="CPUExecutionProvider",
    runtime="onnxruntime 1.23.0",
    threads=1,
    cpu="some, cpu",
    cached_ops=1,
    measured_ns=1_100_000,
    ops=(
        OpProfile("conv_1", "Conv", 750_000, 10_000, 30 * MIB, MIB, (), ()),
        OpProfile("relu, 1", "Relu", 250_000, 0, 10 * MIB, 0, (), (0,)),
        OpProfile("reshape", "Reshape", 100, 0, 0, 0, (0, 1), ()),
    ),
)
ORIGINAL = Measurement("net.onnx", "default", 12 * MIB, 80 * MIB, 25 * MIB, (9_000_000,) * 3)
OPTIMIZED = Measurement(
    "out.onnx", "strict", 11 * MIB, 44 * MIB, 24 * MIB, (9_900_000, 9_600_000, 9_700_000)
)
SAME = Comparison("y", True, True, 0.0, 0.0)
CLOSE = Comparison("z", True, False, 1e-6, 2e-6)
WRONG = Comparison("w", False, False, 0.5, math.nan, "one is not a number")
GOOD = Verdict(ORIGINAL, OPTIMIZED, (SAME,), 60 * MIB, 54 * MIB, 9_500_000, ())
ENFORCED = replace(GOOD, enforcement=Enforcement(60 * MIB, False, True), seeded_ops=2)
BAD = Verdict(
    ORIGINAL,
    OPTIMIZED,
    (SAME, CLOSE, WRONG),
    50 * MIB,
    54 * MIB,
    9_500_000,
    ("output 'w' differs", "the peak is above the budget"),
)
OPTIMIZATION = Optimization(
    model="net.onnx",
    output="out.onnx",
    schedule_file="out.json",
    budget_text="60%",
    budget_bytes=60 * MIB,
    as_is_bytes=100 * MIB,
    predicted=PEAK,
    predicted_ns=9_500_000,
    base_ns=8_000_000,
    status=Status.FEASIBLE,
    lower_bound_ns=9_025_000,
    bound_kind=BoundKind.ORDER_FREE,
    found_by="greedy",
    ops=130,
    recomputed_ops=7,
    interrupted=False,
    seconds=1.25,
    session_options=(("Python", "so = 1\nso.x = False"), ("C", "x();"), ("C#", "X();")),
    warnings=("the machine is busy",),
    verdict=GOOD,
)
