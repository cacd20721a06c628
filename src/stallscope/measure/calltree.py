"""Who calls whom, and from which line: a tree of the Python functions that make some samples.

Tells which functions are worth a closer look, and how much of a function's time belongs to which of
the lines that call it. `sys.setprofile` calls us for every function, so its times are rough: they
choose and divide, and are shown to nobody.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType


class Node:
    """A function as it is called along one way.

    Args:
        code: what runs; None: the root.
        line: of the caller that this call stands on.
        module: where it lives.
    """

    __slots__ = ("children", "code", "line", "module", "ns")

    def __init__(self, code: CodeType | None = None, line: int = 0, module: str = "") -> None:
        self.code = code
        self.line = line
        self.module = module
        self.ns = 0
        self.children: dict[tuple[int, CodeType], Node] = {}


class Call(NamedTuple):
    """Part of a function's time: what it spends in calls from one line of another."""

    caller: CodeType
    line: int
    code: CodeType
    share: float


class CallTree:
    """The functions that ran while it watched."""

    def __init__(self) -> None:
        self.root = Node()
        self._stack: list[tuple[Node, int]] = []
        self._on = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread for the length of the block; another profiler is put back."""
        before = sys.getprofile()
        self._stack = [(self.root, perf_counter_ns())]
        try:
            sys.setprofile(self._event)
            self._on = True
            yield
        finally:
            self._on = False  # what follows is no part of the samples
            with held_back():
                sys.setprofile(before)
                self.root.ns += perf_counter_ns() - self._stack[0][1]

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._on:
            return
        stack = self._stack
        if event == "call":
            code, back = frame.f_code, frame.f_back
            key = (0 if back is None else back.f_lineno or 0, code)
            parent = stack[-1][0]
            node = parent.children.get(key)
            if node is None:
                module = str(frame.f_globals.get("__name__", ""))
                node = parent.children[key] = Node(code, key[0], module)
            stack.append((node, perf_counter_ns()))
        elif event == "return" and len(stack) > 1 and stack[-1][0].code is frame.f_code:
            node, began_ns = stack.pop()
            node.ns += perf_counter_ns() - began_ns

    def ways(self) -> Iterator[list[Node]]:
        """Every node that has returned, at the end of the way that leads to it."""
        todo = [[self.root]]
        while todo:
            way = todo.pop()
            for node in way[-1].children.values():
                if node.ns:
                    yield [*way, node]
                    todo.append([*way, node])

    def shares(self) -> dict[CodeType, float]:
        """Of each function, the share of all time that it and what it calls take."""
        found: dict[CodeType, float] = {}
        for way in self.ways():
            code = way[-1].code
            if code is not None and all(node.code is not code for node in way[:-1]):
                found[code] = found.get(code, 0.0) + way[-1].ns / max(self.root.ns, 1)
        return found

    def modules(self) -> dict[CodeType, str]:
        """Where each function lives."""
        return {way[-1].code: way[-1].module for way in self.ways() if way[-1].code}

    def called(self, module: str, name: str) -> set[CodeType]:
        """The functions of that name and place that ran."""
        return {
            code
            for code, place in self.modules().items()
            if (place, code.co_name) == (module, name)
        }

    def calls(self, chosen: set[CodeType]) -> list[Call]:
        """From which lines of chosen functions the chosen ones are called, itself or by others."""
        parts: dict[tuple[CodeType, int, CodeType], int] = {}
        whole: dict[CodeType, int] = {}
        for way in self.ways():
            node = way[-1]
            if node.code not in chosen or node.code is None:
                continue
            whole[node.code] = whole.get(node.code, 0) + node.ns
            above = next((n for n in range(len(way) - 2, 0, -1) if way[n].code in chosen), 0)
            caller = way[above].code
            if caller is not None:
                key = (caller, way[above + 1].line, node.code)
                parts[key] = parts.get(key, 0) + node.ns
        return [Call(*key, ns / max(whole[key[2]], 1)) for key, ns in parts.items()]

    def nearest(self, known: dict[CodeType, Any]) -> dict[CodeType, Any]:
        """For each function what is known of it, or of the one nearest above it."""
        spent: dict[CodeType, dict[int, int]] = {}
        values: dict[int, Any] = {}
        for way in self.ways():
            code = way[-1].code
            above = next((n.code for n in reversed(way) if n.code in known), None)
            if code is None or above is None:
                continue
            value = known[above]
            values[id(value)] = value
            times = spent.setdefault(code, {})
            times[id(value)] = times.get(id(value), 0) + way[-1].ns
        return {code: values[max(times, key=times.__getitem__)] for code, times in spent.items()}
