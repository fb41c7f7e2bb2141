"""The pipe: load, optimize offline, profile, schedule, lower, verify. One verb, one function."""

import collections
import contextlib
import dataclasses
import functools
import shlex
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from onnx import ModelProto

from remat import costs as cost_tables
from remat import feeds, onnx_io
from remat.build import require_slots
from remat.errors import BadModel, UsageError
from remat.files import write_text
from remat.lower import notes
from remat.options import SEARCH_SECONDS, ModelOptions, OptimizeOptions, VerifyOptions
from remat.outcome import optimization, schedule_file, weights_of, write_files
from remat.outputs import check_output
from remat.plan import Plan, make_plan, total_of
from remat.prepare import Prepared, prepare, work_folder
from remat.profiles import cpu
from remat.profiles.session import Mode, thread_count
from remat.results import Holder, Inspection, Measurement, OpProfile, Optimization, Profile, Verdict
from remat.runtime import check_family, recorded_mode, recorded_threads
from remat.scheduler.auto import least_budget
from remat.scheduler.bounds import needed
from remat.simulate import holders
from remat.units import format_bytes, parse_size
from remat.verify import Match, Promise, Tolerance, Trial, decide, run_trial
from remat.within import plan_within

# Another machine's workspace may be smaller by so much; a table that tells less is wrong.
UNTOLD_BYTES = 1 << 20
UNTOLD_PARTS = 4


def inspect(model: Path, options: ModelOptions, *, top: int = 10) -> Inspection:
    """What a model takes as it is, and the least that any schedule of it could."""
    with work_folder(_beside(model), model) as folder:
        plan = _plan(model, options, None, folder)
        problem = plan.problem
        _, proven, steps = least_budget(problem, seed=options.seed, time_limit_s=SEARCH_SECONDS)
        _, needed_by = needed(problem)
        peak_op, held = _at_peak(plan, top)
        kinds = collections.Counter(op.kind for op in plan.graph.ops)
        as_is = plan.as_is
        return Inspection(
            model=str(model),
            ops=len(plan.graph.ops),
            kinds=tuple(sorted(kinds.items(), key=lambda pair: (-pair[1], pair[0]))),
            dynamic_dims=plan.prepared.dynamic_dims,
            bound_dims=plan.prepared.dims,
            activations_bytes=sum(tensor.nbytes for tensor in plan.graph.tensors.values()),
            as_is=as_is,
            peak_op=peak_op,
            least_found_bytes=min(total_of(plan, steps), as_is.total_bytes),
            least_proven_bytes=plan.accounted.total_for(proven, plan.accounted.nodes),
            needed_by=problem.op_names[needed_by] if needed_by >= 0 else "",
            holders=held,
        )


def _at_peak(plan: Plan, top: int) -> tuple[str, tuple[Holder, ...]]:
    """The op at the peak and the largest buffers then; "" where optimization left no op."""
    problem, trace = plan.problem, plan.base_trace
    if not problem.op_names:
        return "", ()
    at, writer = trace.live_bytes.index(trace.peak_bytes), problem.writer
    held = holders(problem, range(len(problem.op_names)), at)[:top]
    return problem.op_names[at], tuple(
        Holder(problem.value_names[value], problem.op_names[writer[value]], size)
        for value, size in held
        if size
    )


def profile(model: Path, options: ModelOptions, *, output: Path | None, force: bool) -> Profile:
    """The cost of every op; with `output`, written there as a cost table."""
    if output is not None:
        check_output(output, _inputs(model, options), force=force)
    with work_folder(_beside(model), model) as folder:
        prepared = prepare(model, options, folder)
        options.progress("profile", 0, 1)
        costing = cpu.measure(prepared.request(options), fresh=False)
        options.progress("profile", 1, 1)
        measured = costing.measured_ns or _fastest_run(prepared, options)
        if output is not None:
            write_text(output, cost_tables.dumps(costing.costs))
        here = costing.costs.environment
        return Profile(
            model=str(model),
            provider=here.provider,
            runtime=here.runtime,
            threads=here.threads,
            cpu=here.cpu,
            cached_ops=costing.cached_ops,
            measured_ns=measured,
            ops=_op_profiles(costing),
        )


def _op_profiles(costing: cpu.Costing) -> tuple[OpProfile, ...]:
    rows = []
    for op in costing.graph.ops:
        cost = costing.costs.ops[op.signature]
        shared = sorted({slot for slots in cost.in_place for slot in slots})
        rows.append(
            OpProfile(
                name=op.name,
                kind=op.kind,
                time_ns=cost.time_ns,
                spread_ns=cost.spread_ns,
                output_bytes=sum(costing.graph.tensors[name].nbytes for name in op.outputs if name),
                workspace_bytes=cost.workspace_bytes,
                alias=tuple(slot for slot in cost.alias if slot >= 0),
                in_place=tuple(shared),
            )
        )
    return tuple(rows)


def _fastest_run(prepared: Prepared, options: ModelOptions) -> int:
    trial = Trial(
        prepared.optimized,
        Mode.STRICT,
        prepared.feeds,
        thread_count(options.threads),
        options.repeats,
    )
    return run_trial(trial).fastest_ns


def optimize(model: Path, options: OptimizeOptions) -> Optimization:
    """Write a model and its schedule that keep the budget, or raise and write nothing.

    Raises UsageError, BadModel, Infeasible (R3xx), NoAnswer (R4xx), CheckFailed (R1xx).
    """
    begin = time.monotonic()
    size = parse_size(options.mem)
    output, schedule = _output_files(model, options)
    table = cost_tables.load(options.costs) if options.costs else None
    parent = _beside(model) if options.check else output.parent
    with work_folder(parent, model) as folder:
        with _renewed(model, options):
            plan = _plan(model, _portable_if_foreign(options.model, table), table, folder)
        budget_bytes = size.resolve(plan.as_is.total_bytes)
        planned = plan_within(plan, budget_bytes, options)
        files = None if options.check else (output, schedule)
        result = optimization(plan, planned, options, budget_bytes, files)
        if not options.check:
            text = functools.partial(schedule_file, plan, planned, options, budget_bytes)
            write_files(planned.file, (output, schedule), text)
    return dataclasses.replace(result, seconds=round(time.monotonic() - begin, 3))


@contextlib.contextmanager
def _renewed(model: Path, options: OptimizeOptions) -> Iterator[None]:
    """A cost table that is refused as stale or untrue can be made again: say how."""
    try:
        yield
    except UsageError as error:
        if error.code in ("R222", "R224") and options.costs:
            words = ["remat", "profile", str(model), "-o", str(options.costs), "--force"]
            words += ["--threads", str(thread_count(options.model.threads))]
            for name, size in sorted(options.model.dims.items()):
                words += ["--dim", f"{name}={size}"]
            error.fix = f"make it again: {shlex.join(words)}"
        raise


def _output_files(model: Path, options: OptimizeOptions) -> tuple[Path, Path]:
    """Where the model and its schedule go. Raises UsageError R203 to R205 where they cannot."""
    output = options.output or model.with_name(f"{model.stem}.remat.onnx")
    if options.check:
        return output, output
    inputs = (*_inputs(model, options.model), *([options.costs] if options.costs else []))
    check_output(output, inputs, force=options.force)
    schedule = options.schedule or output.with_suffix(".json")
    others = (*inputs, output)
    for path in (weights_of(output), schedule):
        check_output(path, others, force=options.force)
        others = (*others, path)
    return output, schedule


def _inputs(model: Path, options: ModelOptions) -> tuple[Path, ...]:
    """Files that a call reads."""
    return (*onnx_io.files_of(model), *([options.inputs] if options.inputs else []))


def _portable_if_foreign(
    options: ModelOptions, table: cost_tables.CostTable | None
) -> ModelOptions:
    """A cost table of another CPU plans for that CPU: nothing of this one may get into the file.

    Raises UsageError R222 where the table is stale.
    """
    if table is None:
        return options
    here = cpu.environment(options.threads or table.environment.threads)
    reason = cost_tables.stale_reason(table, here)
    if reason:
        raise UsageError("R222", f"the cost table is stale: {reason}")
    foreign = cost_tables.is_foreign(table, here)
    return dataclasses.replace(options, threads=here.threads, portable=options.portable or foreign)


def _plan(
    model: Path, options: ModelOptions, table: cost_tables.CostTable | None, folder: Path
) -> Plan:
    prepared = prepare(model, options, folder)
    request = prepared.request(options)
    options.progress("profile", 0, 2)
    costing = cpu.from_table(request, table) if table else cpu.measure(request, fresh=False)
    options.progress("profile", 1, 2)
    require_slots(costing.graph, costing.costs)
    plan = make_plan(prepared, costing.graph, costing.costs, options.threads)
    if table:
        _require_truth(plan)
    options.progress("profile", 2, 2)
    return plan


def _require_truth(plan: Plan) -> None:
    """A table that says too little would make what fits look impossible. Raises UsageError R224."""
    told_bytes, taken_bytes = plan.base_trace.peak_bytes, plan.base.run_bytes
    if taken_bytes - told_bytes > UNTOLD_BYTES + taken_bytes // UNTOLD_PARTS:
        fact = (
            f"by the cost table a run of the model as it is takes {format_bytes(told_bytes)} of "
            f"tensors and workspace; it takes {format_bytes(taken_bytes)}"
        )
        raise UsageError("R224", fact, place=str(plan.prepared.source))


def _beside(model: Path) -> Path:
    """Where a work folder can link to the data files of a model; anywhere if it has none."""
    if not model.is_file() or not onnx_io.external_files(onnx_io.read(model)):
        return Path(tempfile.gettempdir())
    return model.parent


def verify(original: Path, optimized: Path, options: VerifyOptions) -> Verdict:
    """Run both, compare outputs and judge the budget; see `remat.verify`."""
    candidate = onnx_io.read(optimized)
    written = notes(candidate)
    check_family(written, optimized)
    model_options = _as_recorded(options.model, written)
    threads = recorded_threads(written, options.model.threads)
    budget = _budget(options.mem, written, optimized)
    if options.enforce and not budget:
        fact = "there is no limit to enforce: the model records none"
        raise UsageError("R209", fact, place=str(optimized), fix="give one: --mem 4GB")
    with work_folder(_beside(original), original) as folder:
        prepared = prepare(original, model_options, folder)
        _require_same_inputs(prepared.model, candidate, optimized)
        inputs, outputs = prepared.feeds, folder / "reference.npz"
        plain = Trial(prepared.bound, Mode.DEFAULT, inputs, threads, options.repeats)
        ours = Trial(optimized, recorded_mode(written), inputs, threads, options.repeats)
        if written:
            # A schedule must not change a bit of what the graph that it was made for computes.
            reference = Trial(prepared.optimized, Mode.STRICT, inputs, threads, 0, outputs)
        else:
            reference = plain = dataclasses.replace(plain, outputs=outputs)
        match = Match(
            original=plain,
            optimized=dataclasses.replace(ours, outputs=folder / "candidate.npz"),
            reference=reference,
            tolerance=Tolerance(options.rtol, options.atol),
            promise=Promise(
                budget_bytes=budget,
                predicted_bytes=int(written.get("predicted_peak_bytes", 0)),
                predicted_ns=int(written.get("predicted_ns", 0)),
            ),
            enforce_bytes=budget if options.enforce else 0,
        )
        return decide(match, options.model.progress)


def _require_same_inputs(original: ModelProto, candidate: ModelProto, place: Path) -> None:
    """Both models run on the same arrays. Raises BadModel R516 where they cannot."""
    pair = [[one.name for one in onnx_io.caller_inputs(model)] for model in (original, candidate)]
    if sorted(pair[0]) != sorted(pair[1]):
        wanted, got = (", ".join(names) or "none" for names in pair)
        fact = f"the models take different inputs: the original {wanted}; this one {got}"
        raise BadModel("R516", fact, place=str(place), fix="name the model that it was made from")


def _as_recorded(options: ModelOptions, written: dict[str, str]) -> ModelOptions:
    """The options that the optimized model was made with, where it says so."""
    if not written:
        return options
    dims = onnx_io.json_dims(written.get("dims", "{}"))
    return dataclasses.replace(
        options, dims=dims | dict(options.dims), portable=written.get("portable") == "1"
    )


def _budget(mem: str, written: dict[str, str], place: Path) -> int:
    if not mem:
        return int(written.get("budget_bytes", 0))
    size = parse_size(mem)
    if size.is_share and "as_is_bytes" not in written:
        fact = f"{mem} is a share of a peak that the model does not record"
        raise UsageError("R206", fact, place=str(place), fix="give a size: --mem 4GB")
    return size.resolve(int(written.get("as_is_bytes", 0)))


def run(
    model: Path, options: ModelOptions, *, repeat: int, outputs: Path | None, force: bool
) -> Measurement:
    """Run a model as its schedule needs, measured; `outputs` (an .npz) gets what it computes."""
    proto = onnx_io.read(model)
    if outputs is not None:
        check_output(outputs, _inputs(model, options), force=force)
    written = notes(proto)
    check_family(written, model)
    with work_folder(_beside(model), model) as folder:
        stored, inputs = folder / "outputs.npz", folder / "feeds.npz"
        arrays = feeds.read(options.inputs) if options.inputs else None
        feeds.give_ranks(arrays or {}, proto)
        dims = feeds.bind_from(arrays or {}, proto) | dict(options.dims)
        onnx_io.bind(proto, dims, str(model))
        given = feeds.given_or_made(arrays, proto, options.inputs, options.seed)
        feeds.save(given, inputs)
        threads = recorded_threads(written, options.threads)
        trial = Trial(model, recorded_mode(written), inputs, threads, repeat, stored)
        measured = run_trial(trial)
        if outputs is not None:
            feeds.publish(feeds.load(stored), outputs)
        return measured
