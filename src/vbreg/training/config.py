"""What a training run is made of, read from a TOML file whose tables are the classes below."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

from vbreg.descriptors.fpfh import WIDTH as FPFH_WIDTH
from vbreg.errors import MissingExtraError, VBRegError
from vbreg.losses import Objective
from vbreg.network import NetworkConfig
from vbreg.training.places import PlacesConfig
from vbreg.voting import VotingConfig

T = TypeVar("T")
MatchedBy = Literal["any", "fpfh"]


@dataclass(frozen=True)
class DataConfig:
    """What is trained on.

    `places` are made while the network trains, and their scans matched. Or `shards` are folders of
    match sets, drawn in proportion to `weights` (default: alike), and `validation` is a folder of
    sets that are only looked at. Folders are relative to the configuration file.
    """

    places: PlacesConfig | None = None
    places_held: int = 1500
    places_first: int = 60  # before the first step

    shards: tuple[Path, ...] = ()
    weights: tuple[float, ...] = ()
    validation: Path | None = None
    matched_by: MatchedBy = "any"  # which sets of these folders: all, or those of FPFH alone
    sizes: tuple[int, ...] = (256, 512, 1024, 2048, 4096)  # N of a micro-batch, drawn evenly
    correspondences: int = 40960  # of a micro-batch in all: it holds this // N pairs
    inlier_boost: tuple[float, float] = (0.5, 8.0)  # inliers are drawn so many times as readily
    jitter: float = 0.05  # at most, in inlier thresholds

    def __post_init__(self) -> None:
        check_field(self.places is None or not self.shards, self, "shards", "none beside places")
        check_field(
            len(self.weights) in (0, len(self.shards)), self, "weights", "one for each of shards"
        )
        check_field(all(w > 0 for w in self.weights), self, "weights", "positive numbers")
        check_field(
            min(self.sizes, default=0) >= 3, self, "sizes", "numbers of matches, each at least 3"
        )
        check_field(
            self.correspondences >= max(self.sizes), self, "correspondences", "at least max(sizes)"
        )
        low, high = self.inlier_boost
        check_field(
            0 < low <= high, self, "inlier_boost", "two positive numbers, the smaller first"
        )


@dataclass(frozen=True)
class OptimizerConfig:
    """How the weights are updated, and how fast."""

    learning_rate: float = 1e-3
    weight_decay: float = 1e-6
    warmup_steps: int = 200
    decay: Literal["cosine", "exponential"] = "cosine"
    final: float = 0.01  # the learning rate at the end, as a share of the one at the start
    gradient_clip: float = 1.0
    ema: float = 0.999  # of the weights; grows to this from 0.1 in the first steps

    def __post_init__(self) -> None:
        check_field(self.learning_rate > 0, self, "learning_rate", "a positive number")
        check_field(0 < self.final <= 1, self, "final", "a number in (0, 1]")
        check_field(0 <= self.ema < 1, self, "ema", "a number in [0, 1)")


@dataclass(frozen=True)
class MatchesPlan:
    """The plan of a training run on matches, in steps or in `minutes`.

    With `minutes`, `steps` is not looked at, the learning rate follows the time that steps have
    taken, and networks of any cost get the same. The first step after a start is not counted, since
    it compiles; nor are validation and saving.
    """

    steps: int = 8000
    minutes: float | None = None
    seed: int = 0
    micro_batches: int = 1  # of a step, shared by the workers; each has a seed of its own
    start_from: Path | None = None  # weights to begin with, relative to the configuration file
    log_every: int = 50
    validate_every: int = 500
    checkpoint_every: int = 500
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        for name in ("steps", "micro_batches", "log_every", "validate_every", "checkpoint_every"):
            check_field(getattr(self, name) >= 1, self, name, "at least 1")
        check_field(self.minutes is None or self.minutes > 0, self, "minutes", "a positive number")


@dataclass(frozen=True)
class TrainConfig(MatchesPlan):
    """The plan of the training of the network that tells right matches from wrong."""

    precision: Literal["bf16", "fp32"] = "bf16"
    compile: bool = False  # with torch.compile: minutes at the start, then several times faster
    prior_mean: bool = True  # train the prior pass on the mean, which inference uses
    network: NetworkConfig = field(default_factory=NetworkConfig)
    objective: Objective = field(default_factory=Objective)
    voting: VotingConfig = field(default_factory=VotingConfig)  # of the search behind the weights

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network.input == "feat":
            check_field(
                self.data.matched_by == "fpfh",
                self.data,
                "matched_by",
                "'fpfh' with network.input = 'feat', which is trained on FPFH",
            )
            check_field(
                self.network.descriptor_width == FPFH_WIDTH,
                self.network,
                "descriptor_width",
                f"{FPFH_WIDTH}, the width of FPFH",
            )


M = TypeVar("M", bound=MatchesPlan)


def read_config(path: str | Path) -> TrainConfig:
    """Read the configuration in a TOML file; its folders are taken relative to the file."""
    return read_matches_plan(TrainConfig, Path(path))


def read_matches_plan(kind: type[M], path: Path) -> M:
    """Read a plan of that kind from a TOML file; its folders are taken relative to the file."""
    config = from_dict(kind, read_toml(path), str(path))
    there = path.parent
    folders = config.data
    folders = dataclasses.replace(
        folders,
        places=folders.places and folders.places.below(there),
        shards=tuple(there / shard for shard in folders.shards),
        validation=there / folders.validation if folders.validation else None,
    )
    start = there / config.start_from if config.start_from else None
    return dataclasses.replace(config, data=folders, start_from=start)


def read_toml(path: Path) -> dict[str, Any]:
    """Read the tables of a TOML file."""
    tomllib = _tomllib()
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise VBRegError(f"no training configuration at {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise VBRegError(f"{path} is not TOML: {error}") from error
    return found


def from_dict(kind: type[T], data: dict[str, Any], where: str) -> T:
    """Make an instance of the dataclass `kind`; each key is a field, each value of its type."""
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise VBRegError(f"{where}: unknown {unknown[0]!r}; expected some of {', '.join(hints)}")
    values = {
        name: _convert(hints[name], value, f"{where}: {name}") for name, value in data.items()
    }
    try:
        return kind(**values)
    except ValueError as error:
        raise VBRegError(f"{where}: {error}") from error


def to_dict(config: object) -> dict[str, Any]:
    """Return plain values, which `from_dict` reads back; what is None is left out."""
    assert dataclasses.is_dataclass(config)
    assert not isinstance(config, type)
    plain: dict[str, Any] = _plain(dataclasses.asdict(config))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value.as_posix() if isinstance(value, Path) else value


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Convert `value` from TOML to the type `hint`, or raise an error that names both."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_dict(typing.cast("type[object]", hint), value, where)
    if origin in (typing.Union, types.UnionType):  # only `X | None` occurs
        return _convert(options[0], value, where)
    if origin is Literal and value in options:
        return value
    if origin is tuple and isinstance(value, list):
        kinds = options[:1] * len(value) if options[-1] is Ellipsis else options
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return tuple(_convert(kind, v, f"{where}[{k}]") for k, (kind, v) in pairs)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise VBRegError(f"{where} = {value!r}: expected {_spell(hint)}")


def _spell(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def check_field(good: bool, config: object, name: str, expected: str) -> None:
    """Raise an error that names a field and what it should hold, unless it is good."""
    if not good:
        raise ValueError(f"{name} = {getattr(config, name)!r}: expected {expected}")


def _tomllib() -> Any:
    for name in ("tomllib", "tomli"):  # the second before Python 3.11
        if find_spec(name) is not None:
            return import_module(name)
    raise MissingExtraError("tomli", "train", "reading a training configuration on Python 3.10")
