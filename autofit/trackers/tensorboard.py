"""TensorBoard: writes a search as one run in the format of TensorBoard, without torch and without TensorFlow.

The run is a new folder below DIR (default: "runs"). Scalars and texts have the names of `autofit.trackers.run_log`. The
parameters are the run's hyperparameters (tab "HParams"). Files are written into the folder of the run.
"""

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from autofit.trackers.base import Conclusion, Ending, Tracker, Value

DEFAULT_FOLDER = "runs"
"""Folder that `torch.utils.tensorboard.SummaryWriter` writes to by default."""
FILE_VERSION = "brain.Event:2"
"""Content of the first event of a file, by which TensorBoard knows the format."""


class TensorBoard(Tracker):
    """Writes a search as one run of TensorBoard."""

    name: ClassVar[str] = "tensorboard"
    place: ClassVar[str] = "DIR"
    modules: ClassVar[tuple[str, ...]] = (
        "tensorboard.compat.proto.event_pb2",
        "tensorboard.plugins.hparams.summary_v2",
        "tensorboard.summary.writer.record_writer",
    )
    extra: ClassVar[str] = "tensorboard"
    _writer: Any
    _folder: Path

    def open(self, title: str, parameters: Mapping[str, Value]) -> None:
        """Makes the folder of the run."""
        self._folder = _new_folder(Path(self.where or DEFAULT_FOLDER).expanduser(), title)
        # TensorBoard finds a file by "tfevents" in its name. Its own EventFileWriter starts a thread, whose errors are
        # printed as tracebacks.
        file = (self._folder / f"events.out.tfevents.{int(time.time())}.autofit.{os.getpid()}").open("wb")
        self._writer = import_module("tensorboard.summary.writer.record_writer").RecordWriter(file)
        self._write(file_version=FILE_VERSION)
        hparams = import_module("tensorboard.plugins.hparams.summary_v2").hparams_pb(dict(parameters))
        self._write(step=0, summary=hparams)

    def log(self, step: int, metrics: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Writes scalars and texts."""
        summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        scalars = [summary.Value(tag=name, simple_value=figure) for name, figure in metrics.items()]
        shown = (_text(name, text) for name, text in texts.items())
        self._write(step=step, summary=summary(value=[*scalars, *shown]))

    def conclude(self, conclusion: Conclusion) -> None:
        """Writes the final figures and texts, and the files."""
        self.log(0, conclusion.metrics, conclusion.texts)
        for name, text in conclusion.documents.items():
            (self._folder / name).write_text(text, encoding="utf-8")

    def close(self, ending: Ending) -> None:
        """Writes how the search ended, and closes the file."""
        self.log(0, {}, {"result/ending": ending.value})
        self._writer.close()

    def _write(self, **fields: Any) -> None:
        """Writes one event at once, so that a running TensorBoard shows it."""
        event = import_module("tensorboard.compat.proto.event_pb2").Event(wall_time=time.time(), **fields)
        self._writer.write(event.SerializeToString())
        self._writer.flush()


def _new_folder(parent: Path, title: str) -> Path:
    """Makes and returns a new folder, named after the time and the title."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", title)[-60:].strip("-.")
    stem = "_".join(part for part in (datetime.now().strftime("%Y%m%d-%H%M%S"), name) if part)
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = parent / (stem if number == 1 else f"{stem}_{number}")
        with suppress(FileExistsError):  # another search began in this second
            folder.mkdir()
            break
    return folder


def _text(tag: str, text: str) -> Any:
    """Returns a text as the plugin "text" reads it, which shows Markdown: escaped, with its line breaks."""
    markdown = re.sub(r"([\\`*_{}\[\]<>()#+|!~-])", r"\\\1", text).replace("\n", "  \n")
    proto = import_module("tensorboard.compat.proto.summary_pb2")
    tensor = import_module("tensorboard.compat.proto.tensor_pb2").TensorProto
    plugin = proto.SummaryMetadata.PluginData(plugin_name="text")
    content = tensor(dtype="DT_STRING", string_val=[markdown.encode("utf-8", "replace")])
    return proto.Summary.Value(tag=tag, metadata=proto.SummaryMetadata(plugin_data=plugin), tensor=content)
