"""Compile every kernel for a GPU that need not be there, and print the shared memory of each.

    python tests/backends/compile_kernels.py 90 89     # compute capabilities times ten

Kernels without matrix products take as much on all of these; they are compiled for the first alone.

Run by test_triton.py in a process of its own, since kernels are interpreted in that of the tests.
"""

import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vbreg.backends.triton import (
    alignment,
    attention,
    ballots,
    gathered,
    layers,
    nearest,
    search,
)

F16, F32, F64, U8, I32, I64 = "*fp16", "*fp32", "*fp64", "*u8", "*i32", "*i64"
TILE, BACK = (
    {"D": 128, "ROWS": tile.rows, "COLUMNS": tile.columns, "MASKED": True, "PRECISION": "tf32"}
    for tile in (attention.FORWARD, attention.BACKWARD)
)
WIDE = {"query": F16, "key": F16, "value": F16, "points": F32, "mask": U8, "log_sum": F32}
NARROW = {"ROWS": search.SUPPRESSED_ROWS, "COLUMNS": search.SUPPRESSED_COLUMNS}
SETS = {"points": F32, "members": I64, "weights": F32, "N": "i32", "K": "i32", "kappa": "i32"}
PRODUCT = {
    **{"ROWS": layers.ROWS, "COLUMNS": layers.COLUMNS, "STEP": layers.STEP},
    "PRECISION": "tf32x3",
}
ROWS_OF_BRANCHES = {"M": "i32", "shift": "i32"}
NEAREST = {
    **dict.fromkeys(("points", "queries", "distance2"), F32),
    **dict.fromkeys(("N", "Q", "K"), "i32"),
    "real": U8,
    "index": I64,
    "limit": "fp32",
}
GRADIENTS = {
    **WIDE,
    "grad_out": F16,
    "inner": F32,
    "grad_query": F32,
    "grad_key": F32,
    "grad_value": F32,
    "N": "i32",
    "scale": "fp32",
}
# Kernel, types of its arguments, constants, options: as the functions beside the kernels launch it.
KERNELS: list[tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]] = [
    (
        attention._forward,
        {**WIDE, "out": F32, "N": "i32", "scale": "fp32", "span": "i32"},
        TILE,
        {"num_warps": attention.WARPS, "num_stages": attention.FORWARD.stages},
    ),
    (
        attention._join,
        {**dict.fromkeys(("parts", "logs", "out", "log_sum"), F32), "rows_in_all": "i32"},
        {"PARTS": 4, "D": 128, "ROWS": attention.JOINED},
        {"num_warps": 4},
    ),
    *(
        (
            kernel,
            GRADIENTS,
            BACK,
            {"num_warps": attention.WARPS, "num_stages": attention.BACKWARD.stages},
        )
        for kernel in (attention._backward_columns, attention._backward_rows)
    ),
    (
        ballots._elect,
        {
            **dict.fromkeys(("N", "K", "VOTERS", "ballot", "part"), "i32"),
            **dict.fromkeys(("cosine", "points", "sigma", "ranks"), F32),
            "mask": U8,
            "seeds": I64,
            "members": I64,
            "valid": U8,
        },
        {"SIZE": 8192, "HALVINGS": ballots.HALVINGS},
        {"num_warps": 8},
    ),
    (
        layers._affine,
        {"first": F16, "second": F32, "weight": F16, "bias": F32, "out": F16, **ROWS_OF_BRANCHES},
        {"FIRST": 128, "SECOND": 128, "OUT": 256, "RELU": True, **PRODUCT},
        {"num_warps": layers.WARPS, "num_stages": layers.STAGES},
    ),
    (
        layers._gate,
        {
            **dict.fromkeys(("x", "low", "w_input", "w_state", "out_low"), F16),
            **dict.fromkeys(("state", "b_input", "b_state", "out"), F32),
            "M": "i32",
        },
        {"X": 256, "H": 256, **PRODUCT},
        {"num_warps": layers.WARPS, "num_stages": layers.STAGES},
    ),
    (
        layers._normed,
        {
            **dict.fromkeys(("x", "parts", "scale", "shift", "weight", "bias", "residual"), F32),
            **dict.fromkeys(("out", "counted"), F32),
            "mask": U8,
            "N": "i32",
            "T": "i32",
        },
        {
            **{"C": 128, "WIDTH": 128, "OUT": 128},
            **dict.fromkeys(("NORMED", "COUNTED", "RESIDUAL", "MASKED"), True),
            **{"ROWS": layers.NORMED_ROWS, "COLUMNS": layers.NORMED_COLUMNS},
            **{"TILES": layers.TILES, "PRECISION": "tf32x3"},
        },
        {"num_warps": 4},
    ),
    (
        alignment._sums,
        {
            **dict.fromkeys(("source", "source_normals", "matched_source", "matched_target"), F64),
            **dict.fromkeys(("middle", "T", "tiles"), F64),
            **dict.fromkeys(("target", "target_normals"), F32),
            **dict.fromkeys(("source_real", "target_real", "matched_real"), U8),
            **dict.fromkeys(("n", "M", "N", "blocks"), "i32"),
        },
        {
            **{"REACH": 4.0, "MIN_COSINE": 0.5, "THRESHOLD": 2.0},
            **{"ROWS": alignment.ROWS, "POINTS": alignment.POINTS},
        },
        {"num_warps": alignment.WARPS},
    ),
    (
        alignment._step,
        {
            **dict.fromkeys(("tiles", "middle", "T", "after", "gains"), F64),
            **dict.fromkeys(("blocks", "programs"), "i32"),
        },
        {"MATCHES_WEIGHT": 0.1, "MIN_PARTNERS": 30.0, "TILES": alignment.TILES},
        {"num_warps": alignment.STEP_WARPS},
    ),
    (
        search._fit,
        {**SETS, "T": F32, "sound": U8, "tolerance": "fp32"},
        {"SIZE": 64},
        {"num_warps": 1},
    ),
    (
        search._score,
        {**dict.fromkeys(("points", "weights", "T", "scores"), F32), "N": "i32", "K": "i32"},
        {"BLOCK": search.BLOCK},
        {"num_warps": 4},
    ),
    (
        search._refine,
        {
            "points": F64,
            "T": F64,
            "mask": U8,
            "determined": U8,
            "N": "i32",
            "rounds": "i32",
            "settled": "fp32",
            "tolerance": "fp32",
        },
        {"BLOCK": search.BLOCK // 2},
        {"num_warps": 8},
    ),
    (
        search._suppress,
        {"points": F32, "confidence": F32, "suppressed": U8, "N": "i32", "radius": "fp32"},
        NARROW,
        {"num_warps": 4},
    ),
    (
        search._crowd,
        {"points": F32, "mask": U8, "weights": F32, "N": "i32"},
        NARROW,
        {"num_warps": 4},
    ),
    (
        search._spectral,
        {**SETS, "features": F32, "valid": U8, "sigma": F32},
        {"D": 128, "SIZE": 64, "ROUNDS": 10},
        {"num_warps": 4},
    ),
    (
        nearest._one,
        {name: kind for name, kind in NEAREST.items() if name != "K"},
        {"QUERIES": nearest.QUERIES, "POINTS": nearest.POINTS},
        {"num_warps": nearest.WARPS},
    ),
    (
        nearest._many,
        NEAREST,
        {"BLOCK": nearest.BLOCK, "SLOTS": nearest.MAX_NEIGHBORS},
        {"num_warps": nearest.MAX_NEIGHBORS // nearest.SLOTS_OF_WARP, "enable_fp_fusion": False},
    ),
    (
        gathered._product,
        {**dict.fromkeys(("x", "kernel", "out"), F32), "index": I32, "M": "i32", "N": "i32"},
        {
            **{"K": 27, "C": 256, "D": 256, "PRECISION": gathered.PRECISION},
            **{"ROWS": gathered.ROWS, "CHANNELS": gathered.MAX_BYTES // 4},
            "OUTPUTS": gathered.MAX_OUTPUTS,
        },
        {"num_warps": gathered.WARPS, "num_stages": gathered.STAGES},
    ),
    (
        gathered._outer,
        {
            **dict.fromkeys(("x", "y", "parts"), F32),
            **{"index": I32, "M": "i32", "N": "i32", "SPAN": "i32"},
        },
        {
            **{"K": 27, "C": 256, "D": 256, "PRECISION": gathered.PRECISION},
            **{"ROWS": gathered.OUTER_ROWS, "CHANNELS": gathered.OUTER_CHANNELS},
            "OUTPUTS": gathered.OUTER_CHANNELS,
        },
        {"num_warps": gathered.OUTER_WARPS},
    ),
]


# Products run on tensor cores, which differ between generations of GPUs.
WITHOUT_PRODUCTS = (
    *(alignment._sums, alignment._step, attention._join, ballots._elect),
    *(search._fit, search._score, search._refine, search._suppress, search._crowd),
    *(nearest._one, nearest._many),
)


def shared_memory(capability: int, *, products_only: bool) -> dict[str, int]:
    """Bytes of each kernel by its name."""
    found = {}
    for kernel, types, constants, options in KERNELS:
        if products_only and kernel in WITHOUT_PRODUCTS:
            continue
        names = kernel.arg_names
        signature = {name: types.get(name, "constexpr") for name in names}
        missing = [n for n in names if signature[n] == "constexpr" and n not in constants]
        assert not missing, (kernel.__name__, missing)
        source = ASTSource(
            fn=kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={
                (names.index(name),): [["tt.divisibility", 16]]
                for name in names
                if signature[name].startswith("*") or name == "N"
            },
        )
        target = GPUTarget("cuda", capability, 32)
        compiled = triton.compile(source, target=target, options=options)
        found[kernel.__name__] = int(compiled.metadata.shared)
    return found


if __name__ == "__main__":
    print(
        json.dumps(
            {
                capability: shared_memory(int(capability), products_only=k > 0)
                for k, capability in enumerate(sys.argv[1:])
            }
        )
    )
