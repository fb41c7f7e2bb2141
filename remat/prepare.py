"""From a model file to what is scheduled: bound, optimized by the runtime."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto

from remat import feeds, onnx_io
from remat.child import call
from remat.errors import BadModel, RematError, located
from remat.options import ModelOptions
from remat.passes.known_ops import excuse
from remat.passes.offline import INLINE_WEIGHTS_LIMIT_BYTES, first_line, is_cpu_specific
from remat.profiles.cpu import Request


@dataclass(frozen=True, slots=True)
class Prepared:
    """Files in a work folder. `bound` is the original with its dimensions bound, `optimized`
    what is scheduled; `feeds` are the inputs both run on. `dims` are the bound dimensions,
    `left_dynamic` says that the file keeps them dynamic because the runtime refuses it else."""

    source: Path
    sha256: str
    folder: Path
    bound: Path
    optimized: Path
    model: ModelProto
    feeds: Path
    dims: tuple[tuple[str, int], ...]
    dynamic_dims: tuple[tuple[str, str], ...]
    cpu_specific: bool
    portable: bool
    left_dynamic: bool

    def request(self, options: ModelOptions) -> Request:
        """For `remat.profiles.cpu`."""
        return Request(
            self.optimized, self.feeds, options.threads, options.repeats, str(self.source)
        )


@contextmanager
def work_folder(beside: Path, source: Path) -> Iterator[Path]:
    """A temporary folder in `beside` where that is writable, so that data files can be linked
    into it and results moved out of it; it is gone afterwards, so errors name `source` for any
    file in it."""
    parent = beside if beside.is_dir() and os.access(beside, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=".remat-", dir=parent))
    try:
        with located(str(source)):
            yield folder
    except RematError as error:
        inside = re.escape(str(folder)) + r"[\w./-]*"
        error.place = re.sub(inside, lambda _: str(source), error.place)
        error.fact = re.sub(inside, lambda _: str(source), error.fact)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def prepare(source: Path, options: ModelOptions, folder: Path) -> Prepared:
    """Bind and optimize offline; all files go to `folder`."""
    original = _opened(source, folder)
    arrays = feeds.read(options.inputs) if options.inputs else None
    feeds.give_ranks(arrays or {}, original)
    dynamic = onnx_io.dynamic_dims(original)
    dims = dict(options.dims)
    if arrays is not None:
        dims = feeds.bind_from(arrays, original) | dims
    unbound = ModelProto()
    unbound.CopyFrom(original)
    onnx_io.bind(original, dims, str(source))
    original = onnx_io.sort_nodes(original)
    given = feeds.given_or_made(arrays, original, options.inputs, options.seed)
    feeds.save(given, folder / "feeds.npz")
    options.progress("optimize", 0, 1)
    bound, left_dynamic = _optimized(original, unbound, source, options, folder)
    options.progress("optimize", 1, 1)
    # The runtime saves an optimized graph in the order in which a plain session runs it.
    model = onnx_io.read(folder / "optimized.onnx")
    onnx_io.give_readers(model)
    onnx_io.write(model, folder / "optimized.onnx")
    return Prepared(
        source=source,
        sha256=onnx_io.sha256(source),
        folder=folder,
        bound=bound,
        optimized=folder / "optimized.onnx",
        model=model,
        feeds=folder / "feeds.npz",
        dims=tuple(sorted(dims.items())),
        dynamic_dims=dynamic,
        cpu_specific=is_cpu_specific(model),
        portable=options.portable,
        left_dynamic=left_dynamic,
    )


def _opened(source: Path, folder: Path) -> ModelProto:
    """The model as all that follows wants it, its data files in reach of `folder`."""
    model = onnx_io.read(source)
    onnx_io.separate_weights(model)
    onnx_io.make_dense(model)
    excuse(model)
    feeds.require_tensors(model)
    onnx_io.link_external_files(model, source.parent, folder)
    return model


def _optimized(
    bound: ModelProto, unbound: ModelProto, source: Path, options: ModelOptions, folder: Path
) -> tuple[Path, bool]:
    """Write the bound and the optimized model; the path of the former, and whether it had to
    stay dynamic: a branch that is not taken may not fit the sizes, which inference refuses."""
    path = folder / "bound.onnx"
    onnx_io.write(bound, path)
    try:
        _offline(path, source, options)
        return path, False
    except BadModel:
        if not onnx_io.dynamic_dims(unbound):
            raise
        onnx_io.write(onnx_io.sort_nodes(unbound), path)
        _offline(path, source, options)
        return path, True


def _offline(path: Path, source: Path, options: ModelOptions) -> None:
    data = onnx_io.external_files(onnx_io.read(path))
    large = path.stat().st_size > INLINE_WEIGHTS_LIMIT_BYTES
    target = path.with_name("optimized.onnx")
    payload = {
        "model": str(path),
        "target": str(target),
        "portable": options.portable,
        "external": bool(data) or large,
        "place": str(source),
    }
    call("remat.passes.offline:optimize_offline", payload)
    try:
        _check(target, source)
    except BadModel:
        # Shapes that came with the model may be stale; the runtime goes by its own.
        model = onnx_io.read(path)
        if not model.graph.value_info:
            raise
        del model.graph.value_info[:]
        onnx_io.write(model, path)
        call("remat.passes.offline:optimize_offline", payload)
        _check(target, source)


def _check(optimized: Path, source: Path) -> None:
    """Raises BadModel R514 where the checker of ONNX refuses what would be scheduled."""
    try:
        onnx.checker.check_model(str(optimized), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        fact = f"the checker of ONNX refuses the optimized model: {first_line(error)}"
        fix = "see what onnx.checker.check_model(MODEL, full_check=True) says of the model itself"
        raise BadModel("R514", fact, place=str(source), fix=fix) from None
