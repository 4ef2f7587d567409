"""Two writers of one store, step by step: a step is one operation of the store."""

import queue
import threading
from collections.abc import Callable, Iterator

from collage.errors import StoreError


class SteppedStore:
    """A store whose every operation waits until it is its writer's turn."""

    def __init__(self, store, turn):
        self._store, self._turn = store, turn
        self.url = store.url

    def __getattr__(self, name):
        act = getattr(self._store, name)

        def step(*args, **kwargs):
            self._turn()
            actual = act(*args, **kwargs)
            return iter(list(actual)) if name == "entries" else actual

        return step


class Writer:
    """An act on a store in a thread of its own, which goes on by single steps."""

    def __init__(self, store, act: Callable[[SteppedStore], object]):
        self._go, self._said = threading.Semaphore(0), queue.Queue()
        self.ended, self.error, self.found = False, None, None
        self._thread = threading.Thread(target=self._run, args=(store, act), daemon=True)
        self._thread.start()
        self._said.get(timeout=30)

    def step(self) -> None:
        """Do one operation of the store, and what follows up to the next one."""
        if not self.ended:
            self._go.release()
            self.ended = self._said.get(timeout=30)

    def _run(self, store, act):
        def turn():
            self._said.put(False)
            if not self._go.acquire(timeout=60):
                raise AssertionError("nobody went on")

        try:
            turn()
            self.found = act(SteppedStore(store, turn))
        except StoreError as error:
            self.error = error
        finally:
            self._said.put(True)


def interleavings(steps: tuple[int, int]) -> Iterator[tuple[int, int, int]]:
    """All ways to let one writer do some steps, the other one some, the first the rest, then the other."""
    for first in (0, 1):
        for before in range(steps[first] + 1):
            for between in range(1, steps[1 - first] + 1):
                yield first, before, between


def run(
    store, acts, order: tuple[int, int, int], check: Callable[[], None]
) -> tuple[Writer, Writer]:
    """Run two acts in an order of `interleavings`; check after every step."""
    writers = [Writer(store, act) for act in acts]
    first, before, between = order
    first_writer, second_writer = writers[first], writers[1 - first]
    for writer, steps in (
        (first_writer, before),
        (second_writer, between),
        (first_writer, None),
        (second_writer, None),
    ):
        done = 0
        while not writer.ended and (steps is None or done < steps):
            writer.step()
            check()
            done += 1
    return writers[0], writers[1]


def count(store, act) -> int:
    """Count the steps of an act that runs alone."""
    writer, steps = Writer(store, act), 0
    while not writer.ended:
        writer.step()
        steps += 1
    return steps
