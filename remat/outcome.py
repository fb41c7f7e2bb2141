"""What an optimization leaves behind: the model, its schedule file, the report."""

import shutil
from collections.abc import Callable
from pathlib import Path

from onnx import ModelProto, TensorProto

import remat
from remat import costs as cost_tables
from remat import onnx_io
from remat.files import all_or_none
from remat.lower import PREFIX
from remat.options import OptimizeOptions
from remat.passes.offline import WEIGHTS_SUFFIX, cpu_family
from remat.plan import Plan, Planned
from remat.profiles.session import settings
from remat.results import Optimization
from remat.schedule_file import (
    CostsRecord,
    ModelRecord,
    PredictionRecord,
    ScheduleFile,
    SolverRecord,
    StepRecord,
    to_text,
)
from remat.schedule_file import Mode as FileMode
from remat.session_text import session_options


def weights_of(target: Path) -> Path:
    """Where the external data of a model that is written to `target` goes."""
    return target.with_name(target.name + WEIGHTS_SUFFIX)


def write_files(
    source: Path, files: tuple[Path, Path], schedule_text: Callable[[str], str]
) -> None:
    """Move a model of the work folder to where it was wanted and write its schedule, by renames:
    both are there or neither is.

    Its external data, one file, goes along as MODEL.weights. `schedule_text` is given the hash of
    the model's file.
    """
    target, schedule = files
    weights = weights_of(target)
    proto = onnx_io.read(source)
    locations = onnx_io.external_files(proto)
    if locations:
        _relocate(proto, weights.name)
        onnx_io.write(proto, source)
    text = schedule_text(onnx_io.sha256(source))
    with all_or_none([weights, target, schedule]) as [data_part, model_part, schedule_part]:
        for location in locations:
            shutil.move(source.with_name(location), data_part)
        shutil.move(source, model_part)
        schedule_part.write_text(text, encoding="utf-8", newline="\n")


def _relocate(proto: ModelProto, name: str) -> None:
    """All external data of an optimized model is in one file: give its name."""
    for tensor in proto.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = name


def schedule_file(
    plan: Plan, planned: Planned, options: OptimizeOptions, budget_bytes: int, model_sha256: str
) -> str:
    """The text of the schedule file of the model whose file has that hash."""
    predicted, solution, here = planned.predicted, planned.solution, plan.costs.environment
    mode = FileMode.PINNED if options.pin else FileMode.STRICT
    steps = {}
    for node in planned.model.graph.node:
        note = {entry.key.removeprefix(PREFIX): entry.value for entry in node.metadata_props}
        if "step" in note:
            live = int(note["live_bytes"])
            origin = note.get("recompute_of", "")
            steps[int(note["step"])] = StepRecord(node.name, note["device"], origin, live)
    return to_text(
        ScheduleFile(
            remat_version=remat.__version__,
            model=ModelRecord(plan.prepared.source.name, plan.prepared.sha256),
            optimized_graph_sha256=model_sha256,
            costs=CostsRecord(
                sha256=cost_tables.sha256(plan.costs),
                provider=here.provider,
                threads=here.threads,
                cpu=here.cpu,
                ort_version=here.runtime,
            ),
            cpu_family=cpu_family() if plan.prepared.cpu_specific else "",
            budget_bytes=budget_bytes,
            budget_text=options.mem,
            as_is_bytes=plan.as_is.total_bytes,
            mode=mode,
            session_options=settings(planned.mode, plan.threads),
            solver=SolverRecord(
                found_by=solution.found_by,
                status=solution.status,
                seed=options.model.seed,
                lower_bound_ns=solution.lower_bound_ns,
                bound_kind=solution.bound_kind,
            ),
            predicted=PredictionRecord(
                peak_bytes=predicted.total_bytes,
                weights_bytes=predicted.weights_bytes,
                tensors_bytes=predicted.tensors_bytes,
                workspace_bytes=predicted.workspace_bytes,
                overhead_bytes=predicted.overhead_bytes,
                time_ns=solution.time_ns,
                base_time_ns=sum(plan.problem.time_ns) - planned.dropped_ns,
            ),
            steps=tuple(steps[place] for place in sorted(steps)),
        )
    )


def optimization(
    plan: Plan,
    planned: Planned,
    options: OptimizeOptions,
    budget_bytes: int,
    files: tuple[Path, Path] | None,
) -> Optimization:
    """The report; `seconds` is left for the caller, who knows when it began. `files` are the model
    and the schedule, None where nothing is written."""
    solution = planned.solution
    return Optimization(
        model=str(plan.prepared.source),
        output=str(files[0]) if files else "",
        schedule_file=str(files[1]) if files else "",
        budget_text=options.mem,
        budget_bytes=budget_bytes,
        as_is_bytes=plan.as_is.total_bytes,
        predicted=planned.predicted,
        predicted_ns=solution.time_ns,
        base_ns=sum(plan.problem.time_ns) - planned.dropped_ns,
        status=solution.status,
        lower_bound_ns=solution.lower_bound_ns,
        bound_kind=solution.bound_kind,
        found_by=solution.found_by,
        ops=len(plan.graph.ops),
        recomputed_ops=len(solution.steps) - len(plan.graph.ops),
        interrupted=solution.interrupted,
        seconds=0.0,
        session_options=session_options(settings(planned.mode, plan.threads)),
        warnings=_warnings(plan, planned),
        verdict=planned.verdict,
    )


def _warnings(plan: Plan, planned: Planned) -> tuple[str, ...]:
    found = []
    if not planned.keeps_order:
        found.append(
            "no edge can pin the whole schedule: the prediction is for the order that a plain "
            "session takes instead"
        )
    if plan.prepared.left_dynamic:
        found.append(
            "the runtime refuses this model with fixed sizes, so the output keeps its dynamic "
            "dimensions: the budget holds for the sizes given, not for larger ones"
        )
    return tuple(found)
