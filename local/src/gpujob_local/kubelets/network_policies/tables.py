"""Turns wanted and existing chains into the input of iptables-restore. Pure.

The table is mangle. It comes after a Service's address was replaced by a pod's, and before
kube-proxy's rules, so that no order of start matters.
"""

import re

from gpujob_local.kubelets.network_policies.rules import EGRESS, FIRST_CHAIN, INGRESS, Chains

TABLE = "mangle"
# Packets of a node's own programs, such as a kubelet's probes, pass neither.
HOOKS = ("FORWARD", "INPUT")
_OURS = re.compile(rf"^:((?:{EGRESS.rules}|{INGRESS.rules})-\S+)", re.MULTILINE)


def restore_text(wanted: Chains, saved: str) -> str:
    """Returns all changes in one step. `saved` is the output of iptables-save for the table."""
    stale = sorted(set(_OURS.findall(saved)) - set(wanted))
    lines = [f"*{TABLE}"]
    # A chain named in this way is emptied, or made.
    lines += [f":{name} - [0:0]" for name in [*wanted, *stale]]
    lines += [f"-A {name} {rule}" for name, rules in wanted.items() for rule in rules]
    lines += [f"-X {name}" for name in stale]
    jumps = [f"{hook} -j {FIRST_CHAIN}" for hook in HOOKS]
    lines += [f"-I {jump}" for jump in jumps if f"-A {jump}" not in saved.splitlines()]
    return "\n".join([*lines, "COMMIT", ""])
