"""What a container's process is given: the kubelet's rules, and paths of mounts."""

import pytest

from gpujob_local.kubelet.pod_environment import (
    ContainerConfigError,
    Json,
    PathMap,
    PodFacts,
    build_command,
    build_environment,
    expand,
    referenced_objects,
    unsupported_feature,
)

POD: Json = {
    "metadata": {
        "name": "train-1-0",
        "namespace": "vision",
        "uid": "u-1",
        "labels": {"app.kubernetes.io/name": "x"},
        "annotations": {"gpujob.dev/gpus": "CPU-1"},
    },
    "spec": {"nodeName": "node-1", "serviceAccountName": "worker", "containers": []},
}
FACTS = PodFacts(POD, "127.9.0.2", "127.0.0.1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(C)", "$(C)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("cost: 5$", "cost: 5$"),
        ("", ""),
    ],
)
def test_references_expand_as_in_the_kubelet(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", "/local/d"),
        ("/data/x/y", "/local/d/x/y"),
        ("--dir=/data/x", "--dir=/local/d/x"),
        ("/data/sub/f", "/local/s/f"),
        ("/data:/data/sub", "/local/d:/local/s"),
        ("open('/data/f')", "open('/local/d/f')"),
        ('{"dir":"/data"}', '{"dir":"/local/d"}'),
        ("/database", "/database"),
        ("/data-old/x", "/data-old/x"),
        ("/data.txt", "/data.txt"),
        ("/other/data", "/other/data"),
        ("http://host/data", "http://host/data"),
        ("my/data", "my/data"),
        ("/dev/termination-log", "/local/log"),
        ("nothing here", "nothing here"),
    ],
)
def test_only_whole_paths_are_rewritten(text: str, expected: str) -> None:
    mounts = {"/data": "/local/d", "/data/sub/": "/local/s", "/dev/termination-log": "/local/log"}
    assert PathMap(mounts).rewrite(text) == expected


def test_a_rewritten_path_is_not_rewritten_again() -> None:
    paths = PathMap({"/a": "/b/a", "/b": "/c"})
    assert paths.rewrite("/a/f /b/f") == "/b/a/f /c/f"
    assert PathMap({}).rewrite("/a") == "/a"


def test_variables_see_those_before_them() -> None:
    container = {
        "env": [
            {"name": "LATE", "value": "$(FIRST)"},
            {"name": "FIRST", "value": "1"},
            {"name": "SECOND", "value": "$(FIRST)2"},
            {"name": "EMPTY"},
        ]
    }
    values = build_environment(container, FACTS, {})
    assert values == {"LATE": "$(FIRST)", "FIRST": "1", "SECOND": "12", "EMPTY": ""}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "train-1-0"),
        ("metadata.namespace", "vision"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['app.kubernetes.io/name']", "x"),
        ("metadata.annotations['gpujob.dev/gpus']", "CPU-1"),
        ("metadata.labels['absent']", ""),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "worker"),
        ("status.podIP", "127.9.0.2"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_downward_api(path: str, expected: str) -> None:
    container = {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]}
    assert build_environment(container, FACTS, {}) == {"A": expected}


def test_config_maps_and_secrets() -> None:
    container = {
        "envFrom": [
            {"prefix": "P_", "configMapRef": {"name": "all"}},
            {"secretRef": {"name": "absent", "optional": True}},
        ],
        "env": [
            {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {
                "name": "O",
                "valueFrom": {"configMapKeyRef": {"name": "no", "key": "k", "optional": True}},
            },
            {"name": "P_a", "value": "wins"},
        ],
    }
    wanted = {("ConfigMap", "all"), ("Secret", "absent"), ("Secret", "s"), ("ConfigMap", "no")}
    assert referenced_objects(container) == wanted
    objects = {
        ("ConfigMap", "all"): {"a": "1", "b": "2"},
        ("Secret", "s"): {"k": "v"},
        ("Secret", "absent"): None,
        ("ConfigMap", "no"): None,
    }
    values = build_environment(container, FACTS, objects)
    assert values == {"P_a": "wins", "P_b": "2", "S": "v"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"secretKeyRef": {"name": "s", "key": "k"}}, 'secret "s" not found'),
        ({"configMapKeyRef": {"name": "c", "key": "no"}}, "couldn't find key no in ConfigMap c"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resourceFieldRef is not supported"),
        ({"fieldRef": {"fieldPath": "status.phase"}}, "'status.phase' is not supported"),
    ],
)
def test_what_is_missing_is_named(source: Json, message: str) -> None:
    container = {"env": [{"name": "A", "valueFrom": source}]}
    with pytest.raises(ContainerConfigError, match=message):
        build_environment(container, FACTS, {("ConfigMap", "c"): {"k": "v"}})


def test_command_and_arguments_are_expanded_then_rewritten() -> None:
    container = {"command": ["run", "--out=$(OUT)"], "args": ["/data/in", "$$(OUT)"]}
    command = build_command(container, {"OUT": "/data/out"}, PathMap({"/data": "/local"}))
    assert command == ["run", "--out=/local/out", "/local/in", "$(OUT)"]
    with pytest.raises(ContainerConfigError, match="no command specified") as raised:
        build_command({"args": ["x"]}, {}, PathMap({}))
    assert raised.value.reason == "CreateContainerError"


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"containers": [{"readinessProbe": {"exec": {}}}]}, "spec.containers[0].readinessProbe"),
        ({"containers": [{}, {"lifecycle": {"preStop": {}}}]}, "spec.containers[1].lifecycle"),
        (
            {"initContainers": [{"restartPolicy": "Always"}], "containers": [{}]},
            "spec.initContainers[0].restartPolicy",
        ),
        (
            {"containers": [{}], "volumes": [{"name": "a", "nfs": {"server": "b"}}]},
            "spec.volumes[0].nfs",
        ),
    ],
)
def test_unsupported_features_are_named(spec: Json, named: str) -> None:
    problem = unsupported_feature({"spec": spec})
    assert problem is not None
    assert problem.startswith(named)


def test_an_ordinary_pod_is_supported() -> None:
    volumes = [{"name": "a", "emptyDir": {}}, {"name": "b", "projected": {"sources": []}}]
    assert unsupported_feature({"spec": {"containers": [{}], "volumes": volumes}}) is None
