"""Streets are made here for a LiDAR to drive through: urban, residential and open.

Lengths are metres and z points up; the road runs along x, and the scanner's range is furnished
around its middle. Objects are made with x along the road and y away from it. Everything follows
from the generator passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vbreg import geometry
from vbreg.simulator import street_objects
from vbreg.simulator.meshes import Generator, blob, box, sheet
from vbreg.simulator.relief import Waves, random_waves
from vbreg.simulator.street_objects import (
    ASPHALT,
    GRASS,
    METAL,
    PAVING,
    WALL,
    Part,
    fence,
    garden_wall,
    guard_rail,
    hedge,
    thicket,
)
from vbreg.types import Float64

Setting = Literal["urban", "residential", "open"]
Place = tuple[float, float, float, float]  # x, y, z, yaw
Lane = Callable[[float, float], Place]  # metres along it, metres to its left

ROAD_HALF_LENGTH = 110.0  # the road's extent either way
GROUND_HALF_WIDTH = 75.0  # the ground's extent to either side


@dataclass(frozen=True, eq=False)
class Road:
    """This holds the line y(x) of a road, the terrain around it, and a side street across it."""

    width: float
    kerb: float  # from the middle to the pavement
    edge: float  # from the middle to the fronts
    bends: Float64  # (B, 3) amplitude, wave number, phase of y(x)
    hills: Float64  # (H, 4) amplitude, two wave numbers, phase
    bank: Float64  # (2, P) metres to the left, rising, and heights there above the hills
    crossing: float | None  # where the side street meets the road
    side: float = 3.5  # half of the side street's width

    def centre(self, x: Float64 | float) -> Float64:
        """Return y of the middle of the road at x."""
        a, k, phase = self.bends.T
        return np.asarray((a * np.sin(np.multiply.outer(x, k) + phase)).sum(-1))

    def slope(self, x: Float64 | float) -> Float64:
        """Return dy/dx of the middle of the road at x."""
        a, k, phase = self.bends.T
        return np.asarray((a * k * np.cos(np.multiply.outer(x, k) + phase)).sum(-1))

    def height(self, x: Float64 | float, y: Float64 | float) -> Float64:
        """Return the height of the ground at x and y."""
        a, kx, ky, phase = self.hills.T
        hills = (a * np.sin(np.multiply.outer(x, kx) + np.multiply.outer(y, ky) + phase)).sum(-1)
        bank = np.interp((np.asarray(y) - self.centre(x)) / np.hypot(1, self.slope(x)), *self.bank)
        if self.crossing is not None:
            bank = bank * np.clip((np.abs(np.asarray(x) - self.crossing) - self.side - 2) / 6, 0, 1)
        return np.asarray(hills + bank)

    def place_on_road(self, s: float, t: float) -> Place:
        """Return the place at x = s on the road, t to its left."""
        yaw = math.atan(float(self.slope(s)))
        x, y = s - t * math.sin(yaw), float(self.centre(s)) + t * math.cos(yaw)
        return x, y, float(self.height(x, y)), yaw

    def place_on_side_street(self, s: float, t: float) -> Place:
        """Return the place s from the crossing along the side street, leftwards from the road."""
        x, y, _, yaw = self.place_on_road(self.crossing or 0.0, 0.0)
        yaw += math.pi / 2
        x, y = x + s * math.cos(yaw) - t * math.sin(yaw), y + s * math.sin(yaw) + t * math.cos(yaw)
        return x, y, float(self.height(x, y)), yaw

    def crosses(self, s: float) -> bool:
        """Tell whether the side street meets the road at x = s."""
        return self.crossing is not None and abs(s - self.crossing) < self.side + 2

    def car_pose(self, s: float, t: float) -> Float64:
        """Return T_world_car (4, 4) with x along the road, up its slope, and z up."""
        x, y, z, yaw = self.place_on_road(s, t)
        forward = np.array(self.place_on_road(s + 1, t)[:3]) - np.array(
            self.place_on_road(s - 1, t)[:3]
        )
        forward /= np.linalg.norm(forward)
        left = np.array([-math.sin(yaw), math.cos(yaw), 0.0])
        left -= forward * (left @ forward)
        left /= np.linalg.norm(left)
        T = np.eye(4)
        T[:3] = np.stack([forward, left, np.cross(forward, left), [x, y, z]], axis=-1)
        return T


@dataclass(frozen=True, eq=False)
class Mover:
    """This keeps its lane and its speed, and comes again where the road ends."""

    triangles: Tensor  # (F, 3, 3) float32, driving along x
    start: float
    offset: float  # to the left of the middle of the road
    speed: float  # metres a second along the road, negative against it

    def pose(self, road: Road, time: float) -> Float64:
        """Return T_world_mover (4, 4) at `time` seconds."""
        s = (self.start + self.speed * time + ROAD_HALF_LENGTH) % (
            2 * ROAD_HALF_LENGTH
        ) - ROAD_HALF_LENGTH
        T = road.car_pose(s, self.offset)
        T[:3, :2] *= np.sign(self.speed)
        return T


@dataclass(frozen=True, eq=False)
class Street:
    """This holds triangles that stand still, triangles that move, and the road between them."""

    triangles: Tensor  # (F, 3, 3) float32
    relief: Tensor  # (F,) rms height of the waves on each
    movers: tuple[Mover, ...]
    road: Road
    waves: Waves  # of the relief: height of unit variance at points (N, 3) of the world

    @property
    def device(self) -> torch.device:
        """Tell where the triangles lie."""
        return self.triangles.device

    def to(self, device: torch.device | str) -> Street:
        """Return the same street on another device."""
        return replace(
            self,
            triangles=self.triangles.to(device),
            relief=self.relief.to(device),
            movers=tuple(replace(m, triangles=m.triangles.to(device)) for m in self.movers),
            waves=self.waves.to(device),
        )

    def triangles_at(self, time: float, eye: ArrayLike = (np.inf, np.inf)) -> tuple[Tensor, Tensor]:
        """Return all triangles (F, 3, 3) at `time` seconds, and their relief (F,).

        The traffic leaves out what would run into the vehicle at `eye`, x and y.
        """
        triangles = [self.triangles]
        for mover in self.movers:
            T = mover.pose(self.road, time)
            if np.linalg.norm(T[:2, 3] - np.asarray(eye)) > 6:
                T_world_mover = torch.from_numpy(T).float().to(self.device)
                triangles.append(geometry.apply(T_world_mover, mover.triangles))
        moving = sum(map(len, triangles[1:]))
        relief = torch.cat([self.relief, self.relief.new_full((moving,), METAL)])
        return torch.cat(triangles), relief


def assemble_street(
    parts: Sequence[Part], road: Road, generator: Generator, movers: Sequence[Mover] = ()
) -> Street:
    """Put parts that lie in the world together to a street."""
    return Street(
        torch.cat([mesh.triangles() for mesh, _ in parts]),
        torch.cat([torch.full((len(mesh.faces),), relief) for mesh, relief in parts]),
        tuple(movers),
        road,
        random_waves(generator, 0.5, 6.0),
    )


# --- the whole street -----------------------------------------------------------------------------


@dataclass(frozen=True)
class StreetKind:
    """This says how a street is built up; pairs are the ends of what is drawn evenly."""

    width: tuple[float, float]  # between the parking lanes
    parking: float  # width of the parking lane on each side
    pavement: tuple[float, float]
    lot: tuple[float, float]
    built: float  # share of the lots with a house
    setback: tuple[float, float]  # of the house, from the pavement
    levels: tuple[int, int]
    parked: float  # share of the parking places taken
    border: float  # share of the fronts with one of the borders
    borders: tuple[Callable[[float, Generator], list[Part]], ...]
    plants: float  # mean number of bushes on a lot
    trees: float
    furniture: float  # mean number of things on a lot's pavement
    crossing: float  # chance of one
    bank: float  # of the ground beside the road, metres rms
    traffic: float  # mean number of things that move
    rows: tuple[float, ...]  # how far behind the fronts more lots begin


STREET_KINDS: dict[Setting, StreetKind] = {
    "urban": StreetKind(
        width=(5.5, 9.0), parking=2.2, pavement=(1.5, 4.5), lot=(9, 20), built=0.82,
        setback=(0.0, 2.5), levels=(2, 5), parked=0.5, border=0.4,
        borders=(hedge, fence, garden_wall),
        plants=1.5, trees=0.8, furniture=1.6, crossing=0.7, bank=0.1, traffic=9.0, rows=(30.0,),
    ),
    "residential": StreetKind(
        width=(5.0, 8.0), parking=2.0, pavement=(1.0, 2.5), lot=(11, 24), built=0.65,
        setback=(2.0, 12.0), levels=(1, 3), parked=0.3, border=0.6,
        borders=(hedge, thicket, fence, garden_wall),
        plants=4.0, trees=1.5, furniture=0.9, crossing=0.7, bank=0.25, traffic=5.0, rows=(30.0,),
    ),
    "open": StreetKind(
        width=(6.0, 15.0), parking=0.3, pavement=(0.8, 2.5), lot=(12, 30), built=0.1,
        setback=(8.0, 25.0), levels=(1, 2), parked=0.02, border=0.4,
        borders=(thicket, thicket, guard_rail, fence),
        plants=6.0, trees=2.0, furniture=0.4, crossing=0.25, bank=0.9, traffic=4.0,
        rows=(20.0, 45.0),
    ),
}  # fmt: skip
SETTINGS: tuple[Setting, ...] = get_args(Setting)


def _traffic(road: Road, kind: StreetKind, generator: Generator) -> list[Mover]:
    """Make cars, cyclists and people that move along the road and keep right."""
    movers, g = [], generator
    for _ in range(g.poisson(kind.traffic)):
        make, offset, speed = (
            (street_objects.car, road.width / 4, g.uniform(4, 14)),
            (street_objects.cyclist, road.width / 2 - 0.5, g.uniform(3, 6)),
            (
                street_objects.pedestrian,
                g.uniform(road.kerb + 0.2, road.edge - 0.2),
                g.uniform(0.5, 1.8),
            ),
        )[g.choice(3, p=[0.5, 0.15, 0.35])]
        way = g.choice([-1, 1])  # all keep right
        start = g.uniform(-ROAD_HALF_LENGTH, ROAD_HALF_LENGTH)
        movers.append(Mover(make(g).triangles(), start, -way * offset, way * speed))
    return movers


def _ground(road: Road) -> list[Part]:
    """Make the road and the land beside it as surfaces."""
    x = np.arange(-ROAD_HALF_LENGTH - 70, ROAD_HALF_LENGTH + 71, 1.5)
    beyond = [
        0,
        0.7,
        1.4,
        2.2,
        3.2,
        4.5,
        6,
        8,
        10.5,
        13.5,
        17,
        21,
        26,
        33,
        42,
        55,
        GROUND_HALF_WIDTH,
    ]
    out = road.edge + np.array(beyond)
    middle = np.linspace(-road.edge, road.edge, 15)
    parts = []
    for t, relief in ((-out[::-1], GRASS), (middle, ASPHALT), (out, GRASS)):
        gx, gt = np.meshgrid(x, t, indexing="ij")
        gy = road.centre(gx) + gt * np.hypot(1, road.slope(gx))
        parts.append((sheet(np.stack([gx, gy, road.height(gx, gy)], -1)), relief))
    return parts


class _Builder:
    """This collects the parts of a street, each brought to its place in the world."""

    def __init__(self, road: Road, kind: StreetKind, generator: Generator) -> None:
        """Begin with the ground."""
        self.kind, self.generator = kind, generator
        self.pavement = road.edge - road.kerb
        self.kerb = generator.uniform(0.06, 0.16) if kind.parking > 1 else 0.02
        self.parts = _ground(road)

    def put(self, parts: Sequence[Part], place: Place, turn: float) -> None:
        """Move parts to a place, turned by `turn` about z."""
        *shift, yaw = place
        self.parts += [(mesh.moved(shift, yaw + turn), relief) for mesh, relief in parts]

    def build_stretch(
        self, lane: Lane, start: float, end: float, kerb: float, rows: tuple[float, ...] = ()
    ) -> None:
        """Build both sides of a lane: pavement, parked cars, lots, and more of them behind."""
        for side in (-1, 1):
            self.raise_pavement(lane, start, end, side * kerb)
            self.park_cars(lane, start, end, side * (kerb - 1.1))
            for behind in (0.0, *rows):
                self.line_with_lots(lane, start, end, kerb + self.pavement + behind, side)

    def raise_pavement(self, lane: Lane, start: float, end: float, t: float) -> None:
        """Raise the pavement from the kerb at `t`."""
        far = t + np.sign(t) * self.pavement
        profile = [(t, -0.1), (t, self.kerb), (far, self.kerb), (far, -0.1)]
        along = np.linspace(start, end, max(2, int((end - start) / 2)))
        rows = [[np.add(lane(s, t)[:3], (0, 0, h)) for t, h in profile] for s in along]
        self.parts.append((sheet(np.array(rows)), PAVING))

    def park_cars(self, lane: Lane, start: float, end: float, t: float) -> None:
        """Park cars one behind the other."""
        g = self.generator
        for s in np.arange(start + 3, end - 3, 5.8):
            if g.random() < self.kind.parked:
                spot = lane(s + g.normal(0, 0.25), t + g.normal(0, 0.12))
                self.put(
                    [(street_objects.car(g), METAL)],
                    spot,
                    g.normal(0, 0.02) + np.pi * g.integers(2),
                )

    def line_with_lots(self, lane: Lane, start: float, end: float, edge: float, side: int) -> None:
        """Fill one side of a lane with lots, fronts at `edge`, `side` +1 for the left."""
        while end - start > 4:
            wide = min(self.generator.uniform(*self.kind.lot), end - start)

            def spot(s: float, t: float, start: float = start) -> Place:
                """Return the place s along the lot, t behind its front, y away from the road."""
                x, y, z, yaw = lane(start + s, side * (edge + t))
                return x, y, z, yaw + (0.0 if side > 0 else np.pi)

            self.fill_lot(spot, wide)
            start += wide

    def fill_lot(self, spot: Lane, wide: float) -> None:
        """Fill a lot with a house or a yard, a border, plants, and what stands on the pavement."""
        g, kind = self.generator, self.kind
        back, built = g.uniform(*kind.setback), g.random() < kind.built
        depth = back if built else 14.0  # of the garden
        if built:
            free = 0.0 if kind.levels[1] > 3 else g.uniform(1.5, 5.0)
            levels = int(g.integers(*kind.levels, endpoint=True))
            self.put(
                street_objects.house(max(wide - free, 3.5), levels, g), spot(wide / 2, back), 0.0
            )
        else:
            self.fill_empty_lot(spot, wide)
        if depth > 1.5 and g.random() < kind.border:
            self.add_border(spot, wide)
        for make, mean in ((street_objects.bush, kind.plants), (street_objects.tree, kind.trees)):
            for _ in range(g.poisson(mean * min(1.0, depth / 4))):
                place = spot(g.random() * wide, 0.8 + g.random() ** 1.5 * depth)
                self.put(make(g), place, g.uniform(0, 6))
        for _ in range(g.poisson(kind.furniture)):
            item = street_objects.PAVEMENT_OBJECTS[
                g.integers(len(street_objects.PAVEMENT_OBJECTS))
            ](g)
            place = spot(g.random() * wide, -self.pavement * g.choice([0.15, 0.8]))
            self.put([(item, METAL)], place, 0.0)

    def add_border(self, spot: Lane, wide: float) -> None:
        """Put a fence or the like along the front, at times with a gate."""
        g = self.generator
        make = self.kind.borders[g.integers(len(self.kind.borders))]
        pieces = max(1, int(wide / 5))
        gate = g.integers(2 * pieces)
        for k in (k for k in range(pieces) if k != gate):
            self.put(make(wide / pieces, g), spot((k + 0.5) * wide / pieces, 0.3), 0.0)

    def fill_empty_lot(self, spot: Lane, wide: float) -> None:
        """Fill a yard or a field with tall grass, sheds and heaps, and a thicket at its end."""
        g = self.generator
        tips = g.uniform(0, (wide, 20, g.uniform(0.05, 0.5)), (int(12 * wide), 3))
        tufts = np.array([np.add(spot(s, t)[:3], (0, 0, z)) for s, t, z in tips])
        self.parts.append((street_objects.leaves(tufts, 0.2, g), GRASS))
        for _ in range(g.poisson(1.0)):
            w, d, h = g.uniform((0.6, 0.6, 0.4), (4.0, 3.0, 2.6))
            shed = box((w, d, h + 0.5), (0, 0, -0.5), "z")
            heap = blob((w, d, h), g, 0.5)
            pile = (shed if g.random() < 0.5 else heap, WALL)
            self.put([pile], spot(g.random() * wide, g.uniform(4, 20)), g.normal(0, 0.4))
        if g.random() < 0.6:
            self.put(thicket(wide, g), spot(wide / 2, g.uniform(8, 18)), g.normal(0, 0.1))


def _road(kind: StreetKind, generator: Generator) -> Road:
    """Draw the line, the terrain and the crossing of a road."""
    g = generator
    width, pavement = g.uniform(*kind.width), g.uniform(*kind.pavement)
    kerb = width / 2 + kind.parking
    k = 2 * np.pi / g.uniform((90, 200), (180, 500))
    bends = np.stack([g.uniform(0, 0.16, 2) / k, k, g.uniform(0, 6, 2)], -1)
    turn, k = g.uniform(0, 2 * np.pi, 6), 2 * np.pi / np.geomspace(10, 250, 6)
    hills = [g.normal(0, 0.009, 6) / k, k * np.cos(turn), k * np.sin(turn), g.uniform(0, 6, 6)]
    beyond = kerb + pavement + np.array([0, 1.5, 3.5, 6, 10, 20, 40, GROUND_HALF_WIDTH])
    rise = g.normal(0, kind.bank, (2, 8)) * (0, 0.3, 0.6, 1, 1.2, 1.5, 2, 2) - 0.02 * kerb
    bank = np.stack([np.r_[-beyond[::-1], 0, beyond], np.r_[rise[0, ::-1], 0, rise[1]]])
    crossing = g.uniform(-35, 35) if g.random() < kind.crossing else None
    return Road(
        width, kerb, kerb + pavement, bends, np.stack(hills, -1), bank, crossing, g.uniform(3, 5)
    )


def make_street(generator: Generator, setting: Setting | None = None) -> Street:
    """Make a street of 220 m with all that stands and moves on it; None draws the setting."""
    g = generator
    drawn = SETTINGS[g.choice(3, p=[0.35, 0.45, 0.2])]
    kind = STREET_KINDS[setting or drawn]
    plants, trees, parked = g.lognormal(0, 0.5, 3) * (kind.plants, kind.trees, kind.parked)
    kind = replace(kind, plants=plants, trees=trees, parked=parked)
    road = _road(kind, g)
    builder = _Builder(road, kind, g)
    if road.crossing is None:
        builder.build_stretch(
            road.place_on_road, -ROAD_HALF_LENGTH, ROAD_HALF_LENGTH, road.kerb, kind.rows
        )
    else:
        gap = road.side + builder.pavement
        builder.build_stretch(
            road.place_on_road, -ROAD_HALF_LENGTH, road.crossing - gap, road.kerb, kind.rows
        )
        builder.build_stretch(
            road.place_on_road, road.crossing + gap, ROAD_HALF_LENGTH, road.kerb, kind.rows
        )
        builder.build_stretch(
            road.place_on_side_street, -GROUND_HALF_WIDTH, -road.edge - 2, road.side
        )
        builder.build_stretch(
            road.place_on_side_street, road.edge + 2, GROUND_HALF_WIDTH, road.side
        )
    return assemble_street(builder.parts, road, g, _traffic(road, kind, g))
