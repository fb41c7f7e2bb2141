"""A pipeline that notes how it was called and answers with made-up results."""

from pathlib import Path
from types import ModuleType
from typing import Any

from remat.options import ModelOptions, OptimizeOptions, VerifyOptions
from remat.results import Inspection, Measurement, Optimization, Profile, Verdict
from tests import result_samples as samples

Calls = list[tuple[str, dict[str, Any]]]


class Fake(ModuleType):
    """Stands in for the module `remat.pipeline`; `wrong` is raised by every verb."""

    def __init__(self, calls: Calls, wrong: BaseException | None = None) -> None:
        super().__init__("remat.pipeline")
        self.calls = calls
        self.wrong = wrong

    def inspect(self, model: Path, options: ModelOptions, *, top: int = 10) -> Inspection:
        """As `remat.pipeline.inspect`."""
        self._note("inspect", model=model, options=options, top=top)
        return samples.INSPECTION

    def profile(
        self, model: Path, options: ModelOptions, *, output: Path | None, force: bool
    ) -> Profile:
        """As `remat.pipeline.profile`."""
        self._note("profile", model=model, options=options, output=output, force=force)
        return samples.PROFILE

    def optimize(self, model: Path, options: OptimizeOptions) -> Optimization:
        """As `remat.pipeline.optimize`."""
        self._note("optimize", model=model, options=options)
        return samples.OPTIMIZATION

    def verify(self, original: Path, optimized: Path, options: VerifyOptions) -> Verdict:
        """As `remat.pipeline.verify`; a file named bad.onnx fails."""
        self._note("verify", original=original, optimized=optimized, options=options)
        return samples.BAD if optimized.name == "bad.onnx" else samples.GOOD

    def run(
        self, model: Path, options: ModelOptions, *, repeat: int, outputs: Path | None, force: bool
    ) -> Measurement:
        """As `remat.pipeline.run`."""
        self._note("run", model=model, options=options, repeat=repeat, outputs=outputs, force=force)
        return samples.OPTIMIZED

    def _note(self, verb: str, **arguments: Any) -> None:
        self.calls.append((verb, arguments))
        if self.wrong is not None:
            raise self.wrong
