"""kubectl gpujob get: the object of a job."""

import argparse

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import from_manifest
from kubectl_gpujob.errors import EXIT_DONE
from kubectl_gpujob.grammar import World, add_output, add_target
from kubectl_gpujob.verbs.list import COLUMNS, WIDE, cells


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="JOB", help="name of the job")
    add_target(parser)
    add_output(parser, "table", "wide", "json", "yaml", "name")


def run(options: argparse.Namespace, world: World) -> int:
    manifest, screen = world.cluster(options).manifest(options.name), world.screen
    match options.output:
        case "json":
            screen.json(manifest)
        case "yaml":
            screen.yaml(manifest)
        case "name":
            screen.line(f"gpujob.gpujob.dev/{options.name}")
        case _:
            columns = WIDE if options.output == "wide" else COLUMNS
            screen.table([cells(from_manifest(GPUJob, manifest), world.now())], columns[1:])
    return EXIT_DONE
