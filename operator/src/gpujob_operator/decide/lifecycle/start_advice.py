"""Advice for users whose pods Kubernetes does not let start, found by Kubernetes' messages."""

import re

# The first word of a command, which has blanks in it.
_BLANKS = re.compile(r'exec: "[^"]*\s[^"]*"')
_RIGHT = (
    "the operator's own account lacks this right: compare its roles with those of the chart "
    "(files/operator-rules.yaml, operator.watchNamespaces)"
)
_SECRETS = (
    "kubectl get secrets,configmaps in the job's namespace: create it, or create the job again "
    "with another one"
)
_KEY = (
    "add the key to it (kubectl edit), or create the job again with a key in the template that it "
    "has"
)
_PULLS = (
    "the registry limits how much is pulled: wait until it allows more, or create the job again "
    "with imagePullSecrets of an account in the template, or with an image of your own registry"
)
_PLATFORM = (
    "the image is not built for the node's CPU (kubectl get nodes -L kubernetes.io/arch): build it "
    "for this platform as well, or create the job again with kubernetes.io/arch in the template's "
    "nodeSelector"
)
_IMAGE = (
    "check the image's name and tag, that the node reaches its registry, and the template's "
    "imagePullSecrets; to change the template, create the job again"
)
_USER = (
    "create the job again with runAsUser set to a number other than 0 in the template's "
    "securityContext (1000, say), or name the user by such a number in the image"
)
# The first row whose words all occur is used.
_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("cannot create resource",), _RIGHT),
    (("cannot get resource",), _RIGHT),
    (
        ("failed quota", "must specify"),
        "a ResourceQuota limits it: create the job again with it in the template's containers "
        "(resources), or let a LimitRange of the namespace give defaults",
    ),
    (
        ("exceeded quota", "count/pods"),
        "count/pods counts ended pods as well, which finished jobs keep for their logs: delete "
        "such jobs (or set ttlSecondsAfterFinished), or have the ResourceQuota raised",
    ),
    (
        ("exceeded quota",),
        "let other pods of the namespace end (kubectl get pods: it counts those of no GPUJob as "
        "well), have the ResourceQuota raised (kubectl describe resourcequota), or create the job "
        "again with smaller requests in the template",
    ),
    (
        ("usage per",),
        "a LimitRange of the namespace requires this (kubectl describe limitrange): create the job "
        "again with such resources in the template",
    ),
    (
        ("violates podsecurity",),
        "create the job again with another securityContext in the template, or change the level "
        "that the namespace enforces (its label pod-security.kubernetes.io/enforce)",
    ),
    (
        ("runtimeclass", "not found"),
        "kubectl get runtimeclass lists those that exist; the name is the template's "
        "runtimeClassName (create the job again to change it), else configuration.runtimeClassName "
        "of the chart",
    ),
    (
        ("serviceaccount", "not found"),
        "create the service account, or create the job again with another serviceAccountName in "
        "the template (kubectl get serviceaccounts)",
    ),
    (
        ("no priorityclass with name",),
        "create the class, or create the job again with another priorityClassName in the template "
        "(kubectl get priorityclasses); spec.priority needs no class",
    ),
    (
        ("limit to request ratio",),
        "a LimitRange of the namespace requires this (kubectl describe limitrange): create the job "
        "again with requests closer to the limits in the template",
    ),
    (
        ("topologyaffinityerror",),
        "the node's Topology Manager finds no such CPUs and devices close to each other: create "
        "the job again with smaller requests or with a nodeSelector in the template",
    ),
    (
        ("admission webhook",),
        "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations has whose it is",
    ),
    (
        ("failed calling webhook",),
        "no pod is taken until this webhook answers: look at the pods of its service, which "
        "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations -o wide names",
    ),
    (
        ("validatingadmissionpolicy", "denied request"),
        "create the job again with a template that meets this policy, or have it changed (kubectl "
        "get validatingadmissionpolicies,validatingadmissionpolicybindings)",
    ),
    (
        ("allocate failed", "unhealthy devices"),
        "look at the device plugin's pod on this node (kubectl get pods -A -o wide): it reports no "
        "healthy device, or none yet after the node was started",
    ),
    (
        ('persistentvolumeclaim "', "not found"),
        "create the claim in the job's namespace, or create the job again with another one "
        "(spec.checkpoint.volumeClaimName, the template's volumes)",
    ),
    (
        ("unbound immediate persistentvolumeclaims",),
        "kubectl describe persistentvolumeclaim says what the claim waits for: a storage class "
        "that makes volumes, or a volume of its size and access mode",
    ),
    (
        ("storageclass", "not found"),
        "create the storage class, or create the claim again with one that exists (kubectl get "
        "storageclass)",
    ),
    (('secret "', "not found"), _SECRETS),
    (('configmap "', "not found"), _SECRETS),
    (("couldn't find key",), _KEY),
    (("references non-existent", "key"), _KEY),
    (("image will run as root",), _USER),
    (("image has non-numeric user",), _USER),
    (
        ("errimageneverpull",),
        "put the image onto the node, or create the job again with another imagePullPolicy in the "
        "template",
    ),
    (
        ("no space left on device",),
        "the node's disk is full (kubectl describe node has DiskPressure): remove what is not "
        "needed there, such as images, or give the node a larger disk",
    ),
    (("no match for platform in manifest",), _PLATFORM),
    (("no matching manifest for",), _PLATFORM),
    (("no image found in image index for architecture",), _PLATFORM),
    (("toomanyrequests",), _PULLS),
    (("imagepull", "429 too many requests"), _PULLS),
    (("errimagepull",), _IMAGE),
    (("imagepullbackoff",), _IMAGE),
    (("registryunavailable",), _IMAGE),
    (
        ("invalidimagename",),
        "create the job again with a valid name of the image in the template",
    ),
)


def with_advice(text: str, reason: str = "") -> str:
    """Returns the text, followed by advice if there is any.

    `reason` is a pod's reason that the text does not contain.
    """
    words = f"{reason} {text}".lower()
    for wanted, advice in _ADVICE:
        if all(word in words for word in wanted):
            return f"{text}; {advice}"
    return text


def with_command_advice(text: str) -> str:
    """Returns the text of a command that could not be started, with advice if the whole command
    was written as one word.
    """
    if _BLANKS.search(text) is None:
        return text
    return f"{text}; write the command as a list of words, such as [python, train.py]"
