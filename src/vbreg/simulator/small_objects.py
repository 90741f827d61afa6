"""Small objects are made here, each centred on the origin and standing on z = 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from vbreg.simulator.meshes import (
    Generator,
    Maker,
    Mesh,
    arc,
    blob,
    box,
    lathe,
    make_one_of,
    merge,
    sheet,
    smooth_noise,
    torus,
    tube,
)


def scatter_objects(
    makers: Sequence[Maker], count: int, size: ArrayLike, z: float, generator: Generator
) -> list[Mesh]:
    """Lay `count` objects on a board of `size` (2,), centred on the origin at height `z`."""
    spots = generator.uniform(-0.45, 0.45, (count, 2)) * np.asarray(size)
    return [
        make_one_of(makers, generator).moved((*spot, z), generator.uniform(0, 2 * np.pi))
        for spot in spots
    ]


def book_stack(generator: Generator) -> Mesh:
    """Make a pile of two to eight books."""
    z, parts = 0.0, []
    for _ in range(generator.integers(2, 9)):
        size = generator.uniform((0.12, 0.15, 0.01), (0.24, 0.32, 0.05))
        parts.append(box(size).moved((*generator.normal(0, 0.015, 2), z), generator.normal(0, 0.3)))
        z += size[2]
    return merge(parts)


def vessel(generator: Generator) -> Mesh:
    """Make a vase, a jar or a pot of a random profile."""
    height, radius = generator.uniform(0.06, 0.55), generator.uniform(0.03, 0.22)
    profile = radius * generator.uniform(0.45, 1.0, 5)
    return lathe([0, *profile, 0], np.array([0, 0, 0.25, 0.5, 0.75, 1, 1]) * height)


def carton(generator: Generator) -> Mesh:
    """Make a closed box of any proportions."""
    return box(generator.uniform(0.05, 0.45, 3))


def compound_object(generator: Generator) -> Mesh:
    """Make two to four shapes grown together, as toys and appliances are."""
    parts: list[Mesh] = []
    for _ in range(generator.integers(2, 5)):
        size = generator.uniform(0.05, 0.3, 3)
        part = blob(size, generator, 0.5) if generator.random() < 0.6 else box(size)
        shift = (*generator.normal(0, 0.1, 2), generator.uniform(0, 0.12))
        parts.append(part.moved(shift, generator.uniform(0, np.pi), generator.normal(0, 0.3)))
    return merge(parts)


def bottle(generator: Generator) -> Mesh:
    """Make a bottle with its neck."""
    r, h, neck = generator.uniform((0.03, 0.16, 0.012), (0.05, 0.33, 0.018))
    return lathe([0, r, r, neck, neck, 0], np.array([0, 0, 0.6, 0.8, 1, 1]) * h, 16)


def cup(generator: Generator) -> Mesh:
    """Make a cup with its handle."""
    r, h = generator.uniform((0.035, 0.07), (0.05, 0.12))
    handle = tube(arc(0.6 * h, 0.035) @ np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0]]), 0.006, 6)
    body = lathe([0, r, r, 0.9 * r, 0.9 * r, 0], np.array([0, 0, 1, 1, 0.1, 0.1]) * h, 16)
    return merge([body, handle.moved((r, 0, h / 2))])


def bowl(generator: Generator) -> Mesh:
    """Make an open bowl."""
    r, h = generator.uniform((0.07, 0.04), (0.17, 0.12))
    out = np.linspace(0.3, 1, 5)
    return lathe(r * np.r_[0, out, 0.93 * out[::-1], 0], h * np.r_[0, out, out[::-1], 0.3] ** 1.5)


def pan(generator: Generator) -> Mesh:
    """Make a pan or a pot with its handle."""
    r, h, grip = generator.uniform((0.09, 0.05, 0.12), (0.16, 0.2, 0.22))
    pot = lathe([0, r, r, 0.95 * r, 0.95 * r, 0], [0, 0, h, h, 0.01, 0.01])
    return merge([pot, box((grip, 0.025, 0.02), (r + grip / 2, 0, 0.8 * h))])


def plate_stack(generator: Generator) -> Mesh:
    """Make a pile of two to eight plates."""
    r, count = generator.uniform(0.09, 0.14), generator.integers(2, 9)
    heights = 0.012 * np.arange(count)
    return merge([lathe([0, 0.6 * r, r, 0.6 * r], np.r_[0, 0, 0.02, 0.006] + z) for z in heights])


def paper_roll(generator: Generator) -> Mesh:
    """Make a roll of paper that lies along y."""
    r, length = generator.uniform((0.02, 0.1), (0.07, 0.6))
    return lathe([0, r, r, 0], [0, 0, length, length], 14).moved((0, length / 2, r), 0, np.pi / 2)


def bag(generator: Generator) -> Mesh:
    """Make a handbag or a rucksack, by its proportions."""
    w, d, h = generator.uniform((0.22, 0.1, 0.2), (0.45, 0.25, 0.5))
    body = blob((w, d, h), generator, 0.15)
    pocket = blob((0.7 * w, 0.4 * d, 0.5 * h), generator, 0.1).moved((0, 0.5 * d, 0.08 * h))
    strap = tube(arc(0.5 * w, generator.uniform(0.08, 0.25)), 0.012, 6).moved((0, 0, 0.9 * h))
    return merge([body, pocket, strap])


def open_carton(generator: Generator) -> Mesh:
    """Make a box with its flaps open and something inside."""
    w, d, h = generator.uniform((0.25, 0.2, 0.15), (0.55, 0.45, 0.4))
    flaps = [
        box((across, along / 2, 0.004), (0, along / 4, 0))
        .moved((0, 0, 0), 0, -generator.uniform(-0.5, 1.2))
        .moved((0.5 * out * np.sin(-turn), 0.5 * out * np.cos(turn), h), turn)
        for turn, across, along, out in (
            (0, w, d, d), (np.pi / 2, d, w, w), (np.pi, w, d, d), (-np.pi / 2, d, w, w)
        )
    ]  # fmt: skip
    inside = [box((0.4 * w, 0.4 * d, generator.uniform(0.2, 1.0) * h), (0.1 * w, 0, 0), "z")]
    return merge([box((w, d, h), skip="Z"), *flaps, *inside])


def shoes(generator: Generator) -> Mesh:
    """Make a pair of shoes."""
    shoe = blob(generator.uniform((0.08, 0.24, 0.07), (0.11, 0.31, 0.14)), generator, 0.3)
    return merge([shoe, shoe.moved((0.13, generator.normal(0, 0.05), 0), generator.normal(0, 0.3))])


def clothes_heap(generator: Generator) -> Mesh:
    """Make a heap of clothes or a blanket, dropped."""
    r, h = generator.uniform((0.15, 0.08), (0.4, 0.3))
    rho, phi = np.meshgrid(np.linspace(0, 1, 14), np.linspace(0, 2 * np.pi, 33), indexing="ij")
    edge = r * (1 + 0.2 * np.sin(3 * phi + generator.uniform(0, 6)))
    x, y = edge * rho * np.cos(phi), edge * rho * np.sin(phi)
    z = h * (1 - rho**2) * np.maximum(0.15, 0.7 + 0.25 * smooth_noise(x, y, generator, 0.3))
    return sheet(np.stack([x, y, z + 0.004], axis=-1))


def bucket(generator: Generator) -> Mesh:
    """Make a waste bin, a bucket or a basket, open above."""
    r, h, wide = generator.uniform((0.1, 0.2, 1.0), (0.2, 0.65, 1.3))
    turned = int(generator.choice([4, 24]))
    return lathe(r * np.array([0, 1, wide, wide - 0.06, 0.94, 0]), [0, 0, h, h, 0.02, 0.02], turned)


def cable(generator: Generator) -> Mesh:
    """Make a cable that lies about, with the plug strip at its end."""
    turn = np.cumsum(np.cumsum(generator.normal(0, 0.06, 40)))
    path = np.cumsum(0.04 * np.stack([np.cos(turn), np.sin(turn), 0 * turn], axis=-1), axis=0)
    path += [0, 0, 0.008] - path[20]
    path[:, 2] = 0.008
    return merge(
        [tube(path, 0.008, 6), box((0.3, 0.05, 0.04)).moved(path[-1] * [1, 1, 0], turn[-1])]
    )


def monitor(generator: Generator) -> Mesh:
    """Make a screen on its foot, to be seen from +y."""
    w, h, lift = generator.uniform((0.42, 0.26, 0.08), (0.75, 0.42, 0.18))
    foot = box((0.4 * w, 0.18, 0.012))
    return merge(
        [foot, box((0.05, 0.03, lift + 0.1), (0, -0.03, 0)), box((w, 0.03, h), (0, 0, lift))]
    )


def laptop(generator: Generator) -> Mesh:
    """Make an open laptop."""
    w, d = generator.uniform((0.3, 0.2), (0.38, 0.26))
    lid = box((w, 0.01, d)).moved((0, -d / 2, 0.02), 0, generator.uniform(0.0, 0.6))
    return merge([box((w, d, 0.02)), lid])


def keyboard(generator: Generator) -> Mesh:
    """Make a keyboard with a mouse beside it."""
    mouse = blob((0.06, 0.1, 0.035), generator, 0.05).moved((0.32, generator.normal(0, 0.03), 0))
    return merge([box((generator.uniform(0.36, 0.46), 0.14, 0.025)), mouse])


def desk_lamp(generator: Generator) -> Mesh:
    """Make a shade on a stem, or a cone on a bent arm."""
    h, r = generator.uniform((0.25, 0.08), (0.5, 0.16))
    if generator.random() < 0.5:
        return lathe([0, 0.09, 0.09, 0.015, 0.015, r, 0.6 * r], [0, 0, 0.03, 0.05, h, h, h + 0.18])
    arm = np.array([[0, 0, 0.02], [0, -0.12, h], [0, 0.2, 1.15 * h]])
    head = lathe([0.03, 0.08], [0.0, -0.1]).moved(arm[-1], 0, 0.5)
    return merge([lathe([0, 0.09, 0.09, 0], [0, 0, 0.02, 0.02]), tube(arm, 0.01, 6), head])


def microwave(generator: Generator) -> Mesh:
    """Make a microwave oven with door and handle."""
    w, d, h = generator.uniform((0.42, 0.3, 0.24), (0.52, 0.38, 0.32))
    door = box((0.7 * w, 0.02, 0.8 * h), (-0.1 * w, d / 2, 0.1 * h), "y")
    handle = tube(
        np.array([[0, 0, 0.2], [0, 0.04, 0.3], [0, 0.04, 0.7], [0, 0, 0.8]]) * [1, 1, h], 0.01
    )
    return merge([box((w, d, h), skip="z"), door, handle.moved((0.27 * w, d / 2 + 0.01, 0))])


def kettle(generator: Generator) -> Mesh:
    """Make a kettle with handle and spout."""
    r, h = generator.uniform((0.07, 0.16), (0.1, 0.24))
    handle = tube(arc(1.6 * r, 0.1), 0.012, 6).moved((0, 0, 0.9 * h))
    spout = tube([[0.8 * r, 0, 0.5 * h], [1.2 * r, 0, 0.7 * h], [1.5 * r, 0, 0.95 * h]], 0.015, 6)
    return merge([lathe([0, r, r, 0.7 * r, 0], [0, 0, 0.4 * h, 0.95 * h, h]), handle, spout])


def simple_object(generator: Generator) -> Mesh:
    """Make any object of a simple shape, from books to rings and lumps."""
    kinds: list[Maker] = [book_stack, vessel, carton, compound_object, compound_object]
    kinds.append(lambda g: torus(g.uniform(0.06, 0.2), g.uniform(0.015, 0.05)))
    kinds.append(lambda g: blob(g.uniform(0.08, 0.4, 3), g, 0.5))
    return kinds[generator.integers(len(kinds))](generator)


KITCHENWARE: tuple[Maker, ...] = (
    bottle, bottle, cup, cup, bowl, pan, plate_stack, kettle, microwave, vessel, carton, paper_roll
)  # fmt: skip
PAPERWORK: tuple[Maker, ...] = (
    book_stack, book_stack, cup, laptop, carton, paper_roll, bottle, desk_lamp, keyboard, bag,
    vessel,
)  # fmt: skip
BELONGINGS: tuple[Maker, ...] = (
    book_stack, vessel, compound_object, bag, shoes, clothes_heap, bottle, cup, bowl, desk_lamp,
    carton, open_carton, simple_object,
)  # fmt: skip
LEFTOVERS: tuple[Maker, ...] = (
    bag,
    shoes,
    bucket,
    cable,
    open_carton,
    carton,
    bottle,
    clothes_heap,
    compound_object,
)
TOILETRIES: tuple[Maker, ...] = (
    bottle,
    bottle,
    bottle,
    cup,
    paper_roll,
    clothes_heap,
    shoes,
    bucket,
)
