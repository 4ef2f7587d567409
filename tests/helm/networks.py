"""What NetworkPolicies allow, as Kubernetes defines it: no test cluster here enforces them.

A pod that no policy selects may do all. One that policies select, in a direction that one of them names,
may do what any of their rules allows and nothing else: a rule without peers means every peer, one without
ports every port. `connections` returns those rules; None is a direction without limits.
"""

import ipaddress
import json
from dataclasses import dataclass

DIRECTIONS = {"Ingress": "from", "Egress": "to"}
ANYWHERE = "anywhere"


@dataclass(frozen=True, order=True)
class Connection:
    """One peer (`ANYWHERE`, or it as JSON) and one port ("TCP 443"; "all" for a rule without ports)."""

    peer: str
    port: str

    def leads_to(self, address, port):
        """Tell whether this lets an address outside of the cluster's pods be reached."""
        if self.port not in ("all", f"TCP {port}"):
            return False
        if self.peer == ANYWHERE:
            return True
        block = json.loads(self.peer).get("ipBlock")
        if not block:
            return False
        server = ipaddress.ip_address(address)
        inside = server in ipaddress.ip_network(block["cidr"])
        return inside and not any(
            server in ipaddress.ip_network(excluded) for excluded in block.get("except", ())
        )


def policies(manifests):
    return [manifest for manifest in manifests if manifest["kind"] == "NetworkPolicy"]


def selects(selector, labels):
    """Tell whether a label selector fits; Kubernetes' own answer is compared in test_api_server."""
    named = selector.get("matchLabels", {})
    if any(labels.get(name) != value for name, value in named.items()):
        return False
    return all(_fits(requirement, labels) for requirement in selector.get("matchExpressions", ()))


def query(selector):
    """Write the selector as the API server's list requests take it."""
    parts = [f"{name}={value}" for name, value in selector.get("matchLabels", {}).items()]
    for requirement in selector.get("matchExpressions", ()):
        assert requirement["operator"] == "In", requirement
        parts.append(f"{requirement['key']} in ({','.join(requirement['values'])})")
    return ",".join(parts)


def connections(actual, labels, direction):
    """Return what pods with `labels` may do in a direction, None where nothing limits them."""
    mine = [
        policy["spec"]
        for policy in actual
        if direction in policy["spec"]["policyTypes"]
        and selects(policy["spec"]["podSelector"], labels)
    ]
    if not mine:
        return None
    rules = [rule for spec in mine for rule in spec.get(direction.lower(), ())]
    return {
        Connection(peer, port)
        for rule in rules
        for peer in _peers(rule.get(DIRECTIONS[direction]))
        for port in _ports(rule.get("ports"))
    }


def _fits(expression, labels):
    value, values = labels.get(expression["key"]), expression.get("values", ())
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


def _peers(peers):
    return [json.dumps(peer, sort_keys=True) for peer in peers or ()] or [ANYWHERE]


def _ports(ports):
    return [f"{port.get('protocol', 'TCP')} {port['port']}" for port in ports or ()] or ["all"]
