"""The session options that a schedule needs, spelt for callers in Python, C and C#."""

from remat.schedule_file import SessionRecord

# Freed tensors go back to the system only where each is its own mapping.
ENVIRONMENT = "MALLOC_MMAP_THRESHOLD_=65536"


def session_options(record: SessionRecord) -> tuple[tuple[str, str], ...]:
    """(language, lines) for a session that is set up as `record` says; defaults are not named."""
    return (
        ("Python", "\n".join(_python(record))),
        ("C", "\n".join([*_missing(record, "C function"), *_c(record)])),
        ("C#", "\n".join([*_missing(record, "C# property"), *_csharp(record)])),
        ("environment", ENVIRONMENT),
    )


def _is_optimized(record: SessionRecord) -> bool:
    return record.graph_optimization_level == "ORT_ENABLE_ALL"


def _python(record: SessionRecord) -> list[str]:
    level = f"onnxruntime.GraphOptimizationLevel.{record.graph_optimization_level}"
    order = f"onnxruntime.ExecutionOrder.{record.execution_order}"
    lines = ["options = onnxruntime.SessionOptions()"]
    if not _is_optimized(record):
        lines.append(f"options.graph_optimization_level = {level}")
    if record.execution_order != "DEFAULT":
        lines.append(f"options.execution_order = {order}")
    for name in ("enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse"):
        if not getattr(record, name):
            lines.append(f"options.{name} = False")
    return [*lines, f"options.intra_op_num_threads = {record.intra_op_threads}"]


def _missing(record: SessionRecord, what: str) -> list[str]:
    if record.execution_order == "DEFAULT" and record.enable_mem_reuse:
        return []
    return [f"// order and reuse have no {what}: a model written with --pin needs neither"]


def _c(record: SessionRecord) -> list[str]:
    lines = ["api->CreateSessionOptions(&options);"]
    if not _is_optimized(record):
        lines.append("api->SetSessionGraphOptimizationLevel(options, ORT_DISABLE_ALL);")
    if not record.enable_cpu_mem_arena:
        lines.append("api->DisableCpuMemArena(options);")
    if not record.enable_mem_pattern:
        lines.append("api->DisableMemPattern(options);")
    return [*lines, f"api->SetIntraOpNumThreads(options, {record.intra_op_threads});"]


def _csharp(record: SessionRecord) -> list[str]:
    fields = []
    if not _is_optimized(record):
        fields.append("GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL")
    if not record.enable_cpu_mem_arena:
        fields.append("EnableCpuMemArena = false")
    if not record.enable_mem_pattern:
        fields.append("EnableMemoryPattern = false")
    fields.append(f"IntraOpNumThreads = {record.intra_op_threads}")
    return ["var options = new SessionOptions();", *(f"options.{field};" for field in fields)]
