"""Where the boxes of a drawing go: in columns from left to right, with few crossings of arrows.

This is the usual way to draw a layered graph (Sugiyama, Tagawa and Toda, 1981). Each box is in the
column after its last producer. An arrow that passes columns gets a waypoint in each. Columns are
then put in order by the barycentres of their neighbours, in a few sweeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

#: Sweeps over all columns, in both directions.
_SWEEPS = 8

#: A box, or the waypoint of an arrow in a column.
Spot = str | tuple[int, int]


def columns_of(ids: Sequence[str], arrows: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the column of each box.

    Args:
        ids: the boxes, producers before consumers.
        arrows: (source, target) of each arrow.
    """
    columns: dict[str, int] = {}
    for box in ids:
        columns[box] = max((columns[one] + 1 for one, to in arrows if to == box), default=0)
    return columns


class Placement:
    """The order of boxes and waypoints within their columns.

    Attributes:
        columns: the boxes and waypoints of each column, from top to bottom.
        paths: the boxes and waypoints of each arrow, from left to right.

    Args:
        ids: the boxes, producers before consumers.
        arrows: (source, target) of each arrow.
    """

    def __init__(self, ids: Sequence[str], arrows: Sequence[tuple[str, str]]) -> None:
        column = columns_of(ids, arrows)
        self.columns: list[list[Spot]] = [[] for _ in range(max(column.values(), default=-1) + 1)]
        for box in ids:
            self.columns[column[box]].append(box)
        self.paths: list[list[Spot]] = []
        for number, (source, target) in enumerate(arrows):
            waypoints: list[Spot] = []
            for between in range(column[source] + 1, column[target]):
                waypoints.append((number, between))
                self.columns[between].append((number, between))
            self.paths.append([source, *waypoints, target])
        self._order()

    def crossings(self) -> int:
        """Return how often arrows cross each other."""
        found = 0
        for left, right in zip(self.columns[:-1], self.columns[1:], strict=True):
            at_left, at_right = _positions(left), _positions(right)
            pairs = [
                (at_left[one], at_right[to])
                for path in self.paths
                for one, to in zip(path[:-1], path[1:], strict=True)
                if one in at_left and to in at_right
            ]
            found += sum(
                (a - c) * (b - d) < 0
                for index, (a, b) in enumerate(pairs)
                for c, d in pairs[index + 1 :]
            )
        return found

    def _order(self) -> None:
        before: dict[Spot, list[Spot]] = {}
        after: dict[Spot, list[Spot]] = {}
        for path in self.paths:
            for one, to in zip(path[:-1], path[1:], strict=True):
                before.setdefault(to, []).append(one)
                after.setdefault(one, []).append(to)
        best, fewest = [list(column) for column in self.columns], self.crossings()
        for sweep in range(_SWEEPS):
            if not fewest:
                break
            forward = sweep % 2 == 0
            numbers = (
                range(1, len(self.columns)) if forward else range(len(self.columns) - 2, -1, -1)
            )
            for number in numbers:
                beside = self.columns[number - 1 if forward else number + 1]
                _sort(self.columns[number], beside, before if forward else after)
            if (crossings := self.crossings()) < fewest:
                best, fewest = [list(column) for column in self.columns], crossings
        self.columns = best


def _positions(column: Iterable[Spot]) -> dict[Spot, int]:
    return {spot: at for at, spot in enumerate(column)}


def _sort(
    column: list[Spot], beside: Sequence[Spot], neighbours: Mapping[Spot, Sequence[Spot]]
) -> None:
    """Sort a column by the mean position of what each spot is connected with in another column."""
    there, own = _positions(beside), _positions(column)

    def barycentre(spot: Spot) -> float:
        found = [there[one] for one in neighbours.get(spot, ()) if one in there]
        return sum(found) / len(found) if found else own[spot]

    column.sort(key=barycentre)
