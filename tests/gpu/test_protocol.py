"""Events of a device, simulated or real."""

from itertools import pairwise
from time import perf_counter_ns

import pytest

from stallscope.hooks.device_time import Edge, EventClock

STEP_S = 0.004


def read(worker, plan):
    """Return the edges of a plan of pairs (host's nap, device's work), on the host's clock."""
    edges = []
    clock = EventClock(worker.device, lambda *edge: edges.append(edge))
    for nap, work_s in plan:
        nap()
        clock.edge(Edge.STEP)
        if work_s:
            worker.launch(work_s)
        clock.edge(Edge.NOTHING)
    clock.end()
    begin, (_, end, astray) = edges[0][1], edges[-1]
    return [(Edge(edge), at + astray * (at - begin) / (end - begin)) for edge, at, _ in edges]


def lengths(edges, kind):
    """Return the seconds from each edge of a kind to the next edge."""
    return [(end - at) / 1e9 for (edge, at), (_, end) in pairwise(edges) if edge == kind]


@pytest.mark.parametrize("work_s", [0.001, 0.004, 0.02])
def test_the_length_of_work_is_measured(worker, nap, work_s):
    durations_s = sorted(lengths(read(worker, [(lambda: nap(0.001), work_s)] * 21), Edge.STEP))

    assert durations_s[10] == pytest.approx(work_s, rel=0.05, abs=5e-5)


@pytest.mark.parametrize("nap_s", [0.005, 0.02])
def test_a_pause_of_the_host_beyond_its_work_is_idle_time(worker, nap, nap_s):
    """The median idle time is the rest of the nap after the step."""
    naps_s = []

    def timed_nap():
        began_ns = perf_counter_ns()
        nap(nap_s)
        naps_s.append((perf_counter_ns() - began_ns) / 1e9)  # longer than asked for, if others run

    edges = read(worker, [(timed_nap, STEP_S)] * 15)
    idle = sorted(lengths(edges[2:], Edge.NOTHING))

    assert idle[7] == pytest.approx(sorted(naps_s)[7] - STEP_S, rel=0.3)


def test_a_host_that_is_ahead_leaves_no_idle_time(worker):
    idle = sorted(lengths(read(worker, [(lambda: None, STEP_S)] * 20)[2:], Edge.NOTHING))

    assert idle[10] < 0.05 * STEP_S


def test_edges_come_in_order_and_none_is_lost(worker):
    edges = read(worker, [(lambda: None, 0.0005)] * 100)

    assert 2 * 100 + 2 == len(edges)
    assert all(at <= later for (_, at), (_, later) in pairwise(edges))


def test_no_edge_is_earlier_than_its_launch(worker, nap):
    """Despite clock drift, the median edge is at most 0.1 ms early, the anchors' accuracy."""
    host_ns = []

    def noted():
        nap(0.002)
        host_ns.append(perf_counter_ns())

    edges = [at for edge, at in read(worker, [(noted, 0.001)] * 40) if edge == Edge.STEP]
    early_ns = sorted(host - at for host, at in zip(host_ns, edges, strict=True))

    assert early_ns[len(early_ns) // 2] < 100_000


def test_the_host_is_not_held_up(worker):
    """The host launches work and its events without waiting for the device."""
    edges = []
    clock = EventClock(worker.device, lambda *edge: edges.append(edge))
    for _ in range(8):
        clock.edge(Edge.STEP)
        worker.launch(0.1)
        clock.edge(Edge.NOTHING)

    assert len(edges) < 16, "the device cannot be through with 0.8 s of work by now"
    clock.end()
    assert 18 == len(edges)


def test_events_are_used_again(worker, nap):
    events = []
    new = worker.device.event

    class Counted:
        name = worker.device.name
        record = staticmethod(worker.device.record)
        synchronize = staticmethod(worker.device.synchronize)
        give_back = staticmethod(worker.device.give_back)

        @staticmethod
        def event():
            events.append(new())
            return events[-1]

    clock = EventClock(Counted, lambda *_: None)
    for number in range(300):
        clock.edge(Edge.STEP)
        worker.launch(0.0001)
        clock.edge(Edge.NOTHING)
        if number % 10 == 9:
            nap(0.003)
    clock.end()

    assert len(events) < 200


def test_a_loop_can_wait_for_its_device(worker):
    """`wait_for` reads events until at most this many edges are pending."""
    edges = []
    clock = EventClock(worker.device, lambda *edge: edges.append(edge))
    for _ in range(20):
        clock.edge(Edge.STEP)
        worker.launch(0.002)
        clock.edge(Edge.NOTHING)
        clock.wait_for(4)

    assert len(edges) >= 1 + 40 - 4
    clock.end()
