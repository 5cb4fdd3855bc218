"""kubectl gpujob version: the versions of the plugin, the operator, its chart and the CRDs."""

import argparse

from gpujob_api.manifest import RESOURCES
from gpujob_api.meta import API_VERSION, VERSION
from gpujob_api.version import installed_version
from kubectl_gpujob.cluster import Cluster
from kubectl_gpujob.errors import EXIT_DONE, UserError
from kubectl_gpujob.grammar import World, add_output, add_target

Row = tuple[str, str]
_OPERATORS = "app.kubernetes.io/name=gpujob,app.kubernetes.io/component=operator"
_LABEL = "app.kubernetes.io/version"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--client", action="store_true", help="only the plugin's")
    add_target(parser)
    add_output(parser, "table", "json")


def run(options: argparse.Namespace, world: World) -> int:
    found: list[Row] = [("plugin", f"{installed_version()} ({API_VERSION})")]
    if not options.client:
        found += of_cluster(world.cluster(options))
    if options.output == "json":
        world.screen.json(dict(found))
        return EXIT_DONE
    widest = max(len(label) for label, _ in found)
    for label, value in found:
        world.screen.line(f"{label.ljust(widest)}   {value}")
    return EXIT_DONE


def of_cluster(cluster: Cluster) -> list[Row]:
    """Returns the cluster's versions. What cannot be read is reported in its place."""
    return [("operator", _operators(cluster)), ("CRDs", _crds(cluster))]


def _operators(cluster: Cluster) -> str:
    try:
        found = cluster.objects(
            "deployments of all namespaces", "/apis/apps/v1/deployments", labelSelector=_OPERATORS
        )
    except UserError as error:
        return f"unknown: {error}"
    words: list[str] = []
    for item in found:
        metadata = item["metadata"]
        labels = metadata.get("labels") or {}
        name = f"{metadata.get('namespace')}/{metadata.get('name')}"
        chart = labels.get("helm.sh/chart", "")
        words.append(f"{labels.get(_LABEL, '?')} ({', '.join(filter(None, (name, chart)))})")
    return "; ".join(words) or "no Deployment of the chart in the cluster"


def _crds(cluster: Cluster) -> str:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    words: list[str] = []
    for resource in RESOURCES.values():
        try:
            [item] = cluster.objects(
                "customresourcedefinitions",
                crds,
                fieldSelector=f"metadata.name={resource.crd_name}",
            )
        except UserError as error:
            return f"unknown: {error}"
        except ValueError:
            words.append(f"{resource.plural} missing")
            continue
        served = [one["name"] for one in item["spec"]["versions"] if one.get("served")]
        if VERSION not in served:
            words.append(f"{resource.plural} serves {', '.join(served)}")
    return "; ".join(words) or f"{len(RESOURCES)} of {API_VERSION}"
