"""Keypoints of two clouds look at each other before they are matched.

A descriptor sees one patch of surface: walls fit everywhere, and at low overlap most points have no
partner at all. Here every keypoint attends to others of its own cloud, whose relative places it
knows, and to those of the other cloud, in turns. It comes out with a descriptor that knows its
surroundings and whether they are in the other cloud, too; each match of two such descriptors gets
a probability that it is right. Nothing depends on the frames of the clouds.
Shapes: B pairs of clouds, n keypoints, a anchors among them, H heads, d channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vbreg.errors import FileFormatError
from vbreg.weights_file import do_not_fit, fill, read_weights, save_weights

REACHES = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)  # voxels: how a distance is told
PAIR_NUMBERS = len(REACHES) + 4  # of two keypoints of a cloud: distance and angles


@dataclass(frozen=True)
class ContextConfig:
    """Sizes of the network."""

    descriptor: int = 64  # numbers of a descriptor, in and out
    width: int = 128
    heads: int = 4
    layers: int = 4  # each looks at the own cloud, then at the other
    own_anchors: int = 256  # keypoints of the own cloud that are attended to, at least
    other_anchors: int = 512  # and of the other cloud
    pair_width: int = 16  # hidden numbers of two keypoints

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise ValueError(f"{name} = {value}: expected at least 1")
        if self.width % self.heads:
            raise ValueError(f"width = {self.width}: expected a multiple of heads = {self.heads}")


class Keypoints(NamedTuple):
    """Described keypoints of one cloud of each pair."""

    points: Tensor  # (B, n, 3) in voxels
    normals: Tensor  # (B, n, 3) of length 1
    descriptors: Tensor  # (B, n, D) of length 1


class InContext(NamedTuple):
    """What keypoints know of their surroundings and of the other cloud."""

    descriptors: Tensor  # (B, n, D) of length 1, to be matched
    shared: Tensor  # (B, n) logit: the keypoint lies in the other cloud, too


class Attention(nn.Module):
    """Lets points gather from others, with several heads, and adds what they gathered."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.gathered = nn.Linear(width, width)

    def forward(self, x: Tensor, others: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x (B, n, d) after a look at the others (B, m, d); bias (B, H, n, m)."""
        y = self.norm(others)
        query = self._in_heads(self.query(self.norm(x)))
        key, value = (self._in_heads(part) for part in self.key_value(y).chunk(2, -1))
        if bias is not None:
            bias = bias.to(query.dtype)
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return x + self.gathered(found.transpose(1, 2).flatten(2))

    def _in_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, n, d / H)


class Layer(nn.Module):
    """A look at the own cloud, a look at the other, and a thought of each point for itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.own, self.other = Attention(width, heads), Attention(width, heads)
        self.alone = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )


class ContextNetwork(nn.Module):
    """Re-describes the keypoints of two clouds in view of each other; both are treated alike."""

    def __init__(self, config: ContextConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ContextConfig()
        width = config.width
        self.enter = nn.Linear(config.descriptor, width)
        self.pair = nn.Sequential(
            nn.Linear(PAIR_NUMBERS, config.pair_width),
            nn.ReLU(),
            nn.Linear(config.pair_width, config.layers * config.heads),
        )
        self.layers = nn.ModuleList(Layer(width, config.heads) for _ in range(config.layers))
        self.leave = nn.LayerNorm(width)
        self.change = nn.Linear(width, config.descriptor)  # of a descriptor; none at first
        nn.init.zeros_(self.change.weight)
        nn.init.zeros_(self.change.bias)
        self.shared = nn.Linear(width, 1)
        self.rightness = nn.Sequential(
            nn.Linear(2 * config.descriptor + 5, 64), nn.ReLU(), nn.Linear(64, 1)
        )
        self.temperature = nn.Parameter(torch.tensor(0.07).log())  # of similarities

    def forward(self, source: Keypoints, target: Keypoints) -> tuple[InContext, InContext]:
        """Return both clouds' keypoints in context."""
        ends = source, target
        features = [self.enter(end.descriptors) for end in ends]
        config, counts = self.config, [end.points.shape[1] for end in ends]
        anchors = [_anchors(n, config.own_anchors) for n in counts]
        others = [_anchors(n, config.other_anchors) for n in counts]
        biases = [self._biases(end, rows) for end, rows in zip(ends, anchors, strict=True)]
        for k, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            features = [
                layer.own(x, x[:, rows], bias[k])
                for x, rows, bias in zip(features, anchors, biases, strict=True)
            ]
            x, y = features
            features = [layer.other(x, y[:, others[1]]), layer.other(y, x[:, others[0]])]
            features = [x + layer.alone(x) for x in features]
        first, second = (
            self._left(x, end.descriptors) for x, end in zip(features, ends, strict=True)
        )
        return first, second

    def _biases(self, cloud: Keypoints, anchors: slice) -> list[Tensor]:
        """Return how much the place of an anchor counts, (B, H, n, a) of each layer."""
        found: Tensor = self.pair(pair_numbers(cloud, anchors))  # (B, n, a, layers x H)
        return list(found.permute(0, 3, 1, 2).split(self.config.heads, dim=1))

    def _left(self, x: Tensor, descriptors: Tensor) -> InContext:
        x = self.leave(x)
        found = descriptors.float() + self.change(x).float()
        return InContext(F.normalize(found, dim=-1), self.shared(x).squeeze(-1).float())

    def log_probabilities(self, source: InContext, target: InContext) -> tuple[Tensor, Tensor]:
        """Return (B, n, m): of each source point its partner, and of each target point."""
        logits = source.descriptors @ target.descriptors.transpose(1, 2)
        logits = logits / self.temperature.exp().clamp_min(0.01)
        return logits.log_softmax(2), logits.log_softmax(1)

    def right_logits(
        self,
        source: InContext,
        target: InContext,
        ways: tuple[Tensor, Tensor],  # what `log_probabilities` gave
        i: Tensor,  # (B, K) rows of the source
        j: Tensor,  # (B, K) rows of the target
    ) -> Tensor:
        """Return logits (B, K): match i, j is right."""
        x, y = (_rows(end.descriptors, k) for end, k in ((source, i), (target, j)))
        batch = torch.arange(len(i), device=i.device).unsqueeze(1)
        there, back = (way[batch, i, j] for way in ways)
        shared = [end.shared.gather(1, k) for end, k in ((source, i), (target, j))]
        numbers = torch.stack([there, back, there + back, *shared], dim=-1)
        # The same whichever cloud is called the source.
        swapped = torch.stack([back, there, there + back, *shared[::-1]], dim=-1)
        pair = torch.cat([x * y, (x - y).abs()], dim=-1)
        logits = [self.rightness(torch.cat([pair, some], dim=-1)) for some in (numbers, swapped)]
        found: Tensor = ((logits[0] + logits[1]) / 2).squeeze(-1).float()
        return found


@torch.no_grad()
def pair_numbers(cloud: Keypoints, anchors: slice) -> Tensor:
    """Return (B, n, a, PAIR_NUMBERS): distance and angles of keypoints and anchors, in any frame.

    The last of them tells left from right.
    """
    points, normals = cloud.points.float(), cloud.normals.float()
    offset = points[:, anchors].unsqueeze(1) - points.unsqueeze(2)  # (B, n, a, 3)
    distance = offset.norm(dim=-1)
    direction = offset / distance.clamp_min(1e-6).unsqueeze(-1)
    here, there = normals.unsqueeze(2), normals[:, anchors].unsqueeze(1)
    angles = (
        (here * direction).sum(-1),
        (there * direction).sum(-1),
        (here * there).sum(-1),
        (torch.linalg.cross(here.expand_as(direction), there.expand_as(direction)) * direction).sum(
            -1
        ),
    )
    near = (torch.exp(-((distance / reach) ** 2)) for reach in REACHES)
    return torch.stack([*near, *angles], dim=-1)


def _anchors(count: int, least: int) -> slice:
    """Return every k-th of so many rows: voxels are in order, so that these lie everywhere."""
    return slice(None, None, max(1, count // least))


def _rows(table: Tensor, rows: Tensor) -> Tensor:
    return table.gather(1, rows.unsqueeze(-1).expand(-1, -1, table.shape[-1]))


def save_context(
    path: str | Path, network: ContextNetwork, about: Mapping[str, Any] | None = None
) -> str:
    """Write the network's weights and configuration; return the checksum written."""
    return save_weights(
        path, network, {"context": asdict(network.config), "about": dict(about or {})}
    )


def load_context(path: Path) -> tuple[ContextNetwork, str]:
    """Load the network of a weights file and its checksum: every tensor and no other."""
    if not path.is_file():
        raise FileFormatError(f"no weights at {path}: give a .safetensors file that vbreg wrote")
    header, tensors = read_weights(path)
    try:
        network = ContextNetwork(ContextConfig(**header["context"]))
    except (KeyError, TypeError, ValueError) as error:
        raise do_not_fit(path, error) from error
    fill(network, tensors, header, path)
    return network.eval(), str(header["sha256"])
