"""Kubernetes' own words get behind them what people can do."""

import pytest

from gpujob_operator.decide.lifecycle.start_advice import with_advice


# The texts are those of Kubernetes 1.36 and containerd 2.4.
@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            'pods is forbidden: User "system:serviceaccount:gpujob-system:gpujob-operator" cannot '
            'create resource "pods" in API group "" in the namespace "team"',
            "files/operator-rules.yaml",
        ),
        (
            'pods "a-1-0" is forbidden: User "system:serviceaccount:gpujob-system:gpujob-operator" '
            'cannot get resource "pods" in API group "" in the namespace "team"',
            "files/operator-rules.yaml",
        ),
        (
            'pods "a-1-0" is forbidden: exceeded quota: small, requested: pods=1, used: pods=0, '
            "limited: pods=0",
            "smaller requests",
        ),
        (
            'pods "a-1-0" is forbidden: exceeded quota: q, requested: count/pods=1, used: '
            "count/pods=9, limited: count/pods=9",
            "ttlSecondsAfterFinished",
        ),
        (
            'pods "a-1-0" is forbidden: failed quota: q: must specify limits.cpu for: worker',
            "resources",
        ),
        (
            'pods "a-1-0" is forbidden: minimum memory usage per Container is 1Gi, but request is '
            "100Mi",
            "LimitRange",
        ),
        (
            'pods "a-1-0" is forbidden: maximum cpu usage per Pod is 1, but limit is 2',
            "kubectl describe limitrange",
        ),
        (
            'pods "a-1-0" is forbidden: violates PodSecurity "restricted:latest": privileged',
            "pod-security.kubernetes.io/enforce",
        ),
        (
            'pods "a-1-0" is forbidden: pod rejected: RuntimeClass "kata" not found',
            "kubectl get runtimeclass",
        ),
        (
            'pods "a-1-0" is forbidden: error looking up service account team/x: serviceaccount '
            '"x" not found',
            "kubectl get serviceaccounts",
        ),
        (
            'pods "a-1-0" is forbidden: no PriorityClass with name x was found',
            "kubectl get priorityclasses",
        ),
        (
            'pods "a-1-0" is forbidden: cpu max limit to request ratio per Container is 1, but '
            "provided ratio is 2.000000",
            "requests closer to the limits",
        ),
        (
            "pod a-1-0 was not started on n0: TopologyAffinityError: Pod was rejected: Resources "
            "cannot be allocated with Topology locality",
            "with a nodeSelector",
        ),
        (
            'admission webhook "v.example.org" denied the request: no',
            "kubectl get validatingwebhookconfigurations",
        ),
        ('0/2 nodes are available: persistentvolumeclaim "nowhere" not found', "create the claim"),
        (
            "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
            "kubectl describe persistentvolumeclaim",
        ),
        ('storageclass.storage.k8s.io "fast" not found', "kubectl get storageclass"),
        ('CreateContainerConfigError: secret "s" not found', "kubectl get secrets"),
        ('CreateContainerConfigError: configmap "c" not found', "kubectl get secrets,configmaps"),
        (
            "container has runAsNonRoot and image will run as root (pod: ...)",
            "runAsUser set to a number",
        ),
        (
            "container has runAsNonRoot and image has non-numeric user (mambauser), cannot verify",
            "by such a number in the image",
        ),
        ("couldn't find key token in Secret team/hf", "add the key"),
        ("couldn't find key rate in ConfigMap team/lr", "add the key"),
        (
            'MountVolume.SetUp failed for volume "v" : references non-existent secret key: token',
            "add the key",
        ),
        (
            'Internal error occurred: failed calling webhook "v.example.org": failed to call '
            'webhook: Post "https://v.example.org:443/x": connection refused',
            "the pods of its service",
        ),
        (
            "pods \"a-1-0\" is forbidden: ValidatingAdmissionPolicy 'team' with binding 'team' "
            "denied request: no label team",
            "kubectl get validatingadmissionpolicies,",
        ),
        (
            "UnexpectedAdmissionError: Pod was rejected: Allocate failed due to no healthy devices "
            "present; cannot allocate unhealthy devices rdma/hca, which is unexpected",
            "the device plugin's pod",
        ),
        (
            'ErrImagePull: failed to pull and unpack image "x": failed to extract layer: write '
            "/var/lib/containerd/x: no space left on device",
            "the node's disk is full",
        ),
        (
            'ErrImagePull: failed to pull and unpack image "x": no match for platform in manifest: '
            "not found",
            "kubernetes.io/arch",
        ),
        ("ErrImagePull: no matching manifest for linux/arm64 in the list", "kubernetes.io/arch"),
        (
            "ErrImagePull: no image found in image index for architecture arm64",
            "kubernetes.io/arch",
        ),
        (
            "ErrImagePull: 429 Too Many Requests - Server message: toomanyrequests: You have "
            "reached your unauthenticated pull rate limit",
            "the registry limits",
        ),
        ("ErrImagePull: unexpected status: 429 Too Many Requests", "the registry limits"),
        ('Back-off pulling image "x": ErrImagePull: not found', "imagePullSecrets"),
        ("ErrImageNeverPull: Container image x is not present", "imagePullPolicy"),
        ("InvalidImageName: Failed to apply default image tag", "a valid name of the image"),
    ],
)
def test_what_to_do_follows_the_words(text: str, advice: str) -> None:
    found = with_advice(text)
    assert found.startswith(f"{text}; ")
    assert advice in found.removeprefix(text)


def test_the_reason_counts_where_the_text_does_not_name_it() -> None:
    text = "failed to resolve image"
    assert "imagePullSecrets" in with_advice(text, "ErrImagePull")
    assert with_advice(text) == text


def test_other_words_stay_as_they_are() -> None:
    text = "0/2 nodes are available: 2 Insufficient cpu"
    assert with_advice(text) == text


def test_the_name_of_a_job_is_no_kind() -> None:
    text = 'pods "secret-llm-1-0" not found'
    assert with_advice(text) == text
