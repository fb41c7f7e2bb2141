"""The session options that a schedule needs, spelt for callers in Python, C and C#."""

_STRICT_PYTHON = """\
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
options.enable_cpu_mem_arena = False
options.enable_mem_pattern = False
options.enable_mem_reuse = False
options.intra_op_num_threads = {threads}"""

_PLAIN_PYTHON = """\
options = onnxruntime.SessionOptions()
options.enable_cpu_mem_arena = False
options.enable_mem_pattern = False
options.intra_op_num_threads = {threads}"""

_PLAIN_C = """\
api->CreateSessionOptions(&options);
api->DisableCpuMemArena(options);
api->DisableMemPattern(options);
api->SetIntraOpNumThreads(options, {threads});"""

_STRICT_C = (
    """\
// order and reuse have no C function: use a model written with --pin, which needs neither
"""
    + _PLAIN_C
)

_PLAIN_CSHARP = """\
var options = new SessionOptions();
options.EnableCpuMemArena = false;
options.EnableMemoryPattern = false;
options.IntraOpNumThreads = {threads};"""

_STRICT_CSHARP = (
    """\
// order and reuse have no C# property: use a model written with --pin, which needs neither
"""
    + _PLAIN_CSHARP
)

# Freed tensors go back to the system only where each is its own mapping.
ENVIRONMENT = "MALLOC_MMAP_THRESHOLD_=65536"


def session_options(mode: str, threads: int) -> tuple[tuple[str, str], ...]:
    """(language, lines) for a schedule in `mode` ("strict" or "pinned")."""
    texts = {
        "strict": (_STRICT_PYTHON, _STRICT_C, _STRICT_CSHARP),
        "pinned": (_PLAIN_PYTHON, _PLAIN_C, _PLAIN_CSHARP),
    }[mode]
    names = ("Python", "C", "C#")
    lines = tuple(
        (name, text.format(threads=threads)) for name, text in zip(names, texts, strict=True)
    )
    return (*lines, ("environment", ENVIRONMENT))
