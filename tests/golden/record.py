"""`python -m tests.golden.record OUT [--sample]`: records scenes of cycles with today's plans.

Where plans change on purpose, the committed sample is renewed in the commit of that change:
`python -m tests.golden.record tests/golden/sample --sample`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from tests.golden import scenes
from tests.golden.cycles import SUFFIX, Seen, write_scene

SAMPLE_CYCLES_MAX = 50


def all_scenes(*, sample: bool) -> Iterator[tuple[str, list[Seen]]]:
    """Scenes by name; for a sample few of each kind."""
    yield from scenes.made()
    yield "odd-snapshots", scenes.odd(40 if sample else 600)
    for seed in range(2 if sample else 12):
        yield f"life-{seed}", scenes.life(seed)
        yield f"events-{seed}", scenes.events(seed)
    for seed in range(1 if sample else 24):
        for number, seen in enumerate(scenes.simulated(seed)):
            yield f"simulation-{seed}-{number}", seen
    for nodes, pending in [(4, 20)] if sample else [(8, 60), (40, 200)]:
        yield f"scale-{nodes}", scenes.scale(nodes, pending)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.record", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", action="store_true", help="few scenes, for the repository")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for old in options.folder.glob(f"*{SUFFIX}"):
        old.unlink()
    for name, seen in all_scenes(sample=options.sample):
        kept = seen[:SAMPLE_CYCLES_MAX] if options.sample else seen
        write_scene(options.folder / f"{name}{SUFFIX}", kept)
        print(f"{name}: {len(kept)} cycles", flush=True)


if __name__ == "__main__":
    main()
