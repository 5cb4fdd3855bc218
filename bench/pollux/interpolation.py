"""Linear interpolation between scattered measured points, as a Delaunay triangulation gives it.

The weights of a point x are those of the lowest lifted simplex above it: of all ways to write x as
a convex combination of measured points p, the one that minimises the sum of weight x |p|^2. That is
a small linear program, solved here by the simplex method. Where points are cospherical (they lie on
a grid) several triangulations are right; this one picks by Bland's rule.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_ITERATIONS_MAX = 2000
_TOLERANCE = 1e-9


def interpolate(points: Array, values: Array, at: Array) -> Array:
    """`values` (one row a point) at `at`. Raises ValueError outside the points' convex hull."""
    center = points.mean(axis=0)
    scale = np.maximum(np.ptp(points, axis=0), 1.0).max()
    # One scale for all axes: which simplex is the lowest must not change.
    lifted = (points - center) / scale
    columns = np.vstack([lifted.T, np.ones(len(points))])
    target = np.append((at - center) / scale, 1.0)
    weights = _lowest_weights(columns, target, (lifted**2).sum(axis=1))
    return weights @ values


def _lowest_weights(columns: Array, target: Array, cost: Array) -> Array:
    """Non-negative weights w with columns @ w = target and least cost @ w."""
    signs = np.where(target < 0, -1.0, 1.0)
    rows = len(target)
    table = np.hstack([columns * signs[:, None], np.eye(rows)])
    # What the artificial columns cost exceeds any gain from leaving one in.
    full_cost = np.append(cost, np.full(rows, 1e4))
    right = target * signs
    basis = list(range(columns.shape[1], table.shape[1]))
    for _ in range(_ITERATIONS_MAX):
        inverse = np.linalg.inv(table[:, basis])
        solution = inverse @ right
        reduced = full_cost - (full_cost[basis] @ inverse) @ table
        entering = np.flatnonzero(reduced < -_TOLERANCE)
        if not len(entering):
            return _weights(basis, solution, columns.shape[1])
        direction = inverse @ table[:, entering[0]]
        basis[_leaving(basis, solution, direction)] = int(entering[0])
    raise ValueError("interpolation did not end")


def _leaving(basis: list[int], solution: Array, direction: Array) -> int:
    ratios = [
        (max(solution[row], 0.0) / direction[row], basis[row], row)
        for row in range(len(basis))
        if direction[row] > _TOLERANCE
    ]
    if not ratios:
        raise ValueError("interpolation is unbounded")
    return min(ratios)[2]


def _weights(basis: list[int], solution: Array, count: int) -> Array:
    weights = np.zeros(count)
    for column, weight in zip(basis, solution, strict=True):
        if column < count:
            weights[column] = weight
        elif weight > 1e-6:
            raise ValueError("the point lies outside all measured points")
    return weights
