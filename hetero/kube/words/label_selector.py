"""Evaluates label selectors, of nodes and of pods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from hetero.kube.objects.kinds import LabelSelector, Requirement


def meets(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Return whether labels meet one of a selector's `matchExpressions`."""
    meets_values = _OPERATORS[requirement.operator]
    return meets_values(labels.get(requirement.key), requirement.values)


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Return whether a selector chooses an object with these labels; an empty one chooses all."""
    return selector.match_labels.items() <= labels.items() and all(
        meets(requirement, labels) for requirement in selector.match_expressions
    )


def _compared(label_value: str | None, bounds: Collection[str], is_larger: bool) -> bool:
    try:
        label_number, bound = int(label_value or ""), int(next(iter(bounds)))
    except (ValueError, StopIteration):
        return False
    return label_number > bound if is_larger else label_number < bound


_OPERATORS: Mapping[str, Callable[[str | None, Collection[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: _compared(value, values, True),
    "Lt": lambda value, values: _compared(value, values, False),
}
