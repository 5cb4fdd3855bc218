"""Plays many scripts, a few at a time, each in a folder of its own."""

import queue
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

from tests.worker.resume.shapes.course import Course, play
from tests.worker.resume.shapes.generator import Shape
from tests.worker.resume.shapes.runs import RealProcesses, Runner, Zygote

_LINES_MAX = 12


class Workshop:
    """Threads with a zygote each; a zygote plays one script after another."""

    def __init__(self, folder: Path, jobs: int, *, real: bool, keeps_all: bool) -> None:
        self._folder, self._jobs = folder.resolve(), jobs
        self._real, self._keeps_all = real, keeps_all
        self._lock = threading.Lock()

    def courses(self, shapes: Iterable[Shape]) -> Iterator[Course]:
        """In the order in which they end. An error of a thread is raised here."""
        waiting = iter(shapes)
        ended: queue.Queue[Course | BaseException | None] = queue.Queue()
        threads = [
            threading.Thread(target=self._play, args=(waiting, ended), daemon=True)
            for _ in range(self._jobs)
        ]
        for thread in threads:
            thread.start()
        left = len(threads)
        while left:
            course = ended.get()
            if isinstance(course, BaseException):
                raise course
            if course is None:
                left -= 1
            else:
                yield course

    def _play(
        self, waiting: Iterator[Shape], ended: "queue.Queue[Course | BaseException | None]"
    ) -> None:
        try:
            with nullcontext(RealProcesses()) if self._real else Zygote() as runner:
                while (shape := self._next(waiting)) is not None:
                    ended.put(self._course(shape, runner))
        except BaseException as error:
            ended.put(error)
        ended.put(None)

    def _next(self, waiting: Iterator[Shape]) -> Shape | None:
        with self._lock:
            return next(waiting, None)

    def _course(self, shape: Shape, runner: Runner) -> Course:
        folder = self._folder / f"seed-{shape.seed}"
        shutil.rmtree(folder, ignore_errors=True)
        course = play(shape, folder, runner)
        if not (self._keeps_all or course.verdict.is_failure):
            shutil.rmtree(folder)
        return course


def failure(course: Course) -> str:
    """What failed, what it is made of, and where the script lies."""
    shape = course.shape
    labels = ", ".join(f"{name} {value}" for name, value in sorted(shape.labels.items()))
    lines = [
        f"seed {shape.seed}: {course.verdict.value}: {course.reason}",
        f"  stops {course.stops}; {labels}",
        f"  parts: {', '.join(shape.parts)}",
        f"  script: {course.folder / 'train.py'}",
        f"  again: python -m tests.worker.resume.shapes --seed {shape.seed} --keep FOLDER",
    ]
    details = [line for text in course.details for line in text.splitlines()]
    return "\n".join([*lines, *(f"    {line[:300]}" for line in details[:_LINES_MAX])])
