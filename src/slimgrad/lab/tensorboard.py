"""Logs a run for TensorBoard, on request: the package is not needed for anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slimgrad.errors import ConfigError
from slimgrad.lab.run import Run


class Log:
    """Writes the points of a run's history as they come; a resumed run goes on in the same folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise ConfigError(f"expected TensorBoard, got {error}; pip install tensorboard") from error
        self._writer: Any = SummaryWriter(str(folder))
        self._written: dict[str, int] = {}  # points of each list of the history so far

    def began(self, run: Run) -> None:
        """Leave out what an earlier process has written."""
        self._written = {kind: len(points) for kind, points in run.history.to_dict().items()}

    def write(self, run: Run) -> None:
        """Write what is new."""
        for kind, points in run.history.to_dict().items():
            for point in points[self._written.get(kind, 0) :]:
                for name, value in point.items():
                    if name != "step" and value is not None:
                        self._writer.add_scalar(f"{kind}/{name}", value, point["step"])
            self._written[kind] = len(points)

    def close(self) -> None:
        self._writer.close()
