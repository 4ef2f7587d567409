"""Explain why no plan covers a function: the node, its operator, and a reason for each option."""

from collage.errors import SearchError
from collage.graph.index_set import IndexSet
from collage.search.problem import UNKNOWN, Costs, Option
from collage.search.state_space import StateSpace

_NODES_SHOWN = 8


def no_cover(space: StateSpace, costs: Costs) -> SearchError:
    """Return the error for a space without a cover of all nodes."""
    return SearchError(describe_failure(space, costs))


def describe_failure(space: StateSpace, costs: Costs) -> str:
    """Name the first uncovered node, with the reason for each option of this node."""
    problem = space.problem
    covered: IndexSet = 0
    for option in space.options:
        covered |= option.nodes
    missing = (~covered & (covered + 1)).bit_length() - 1
    dead_end = missing == len(problem.graph)
    index = max(space.starts) if dead_end else missing
    node = problem.graph.nodes[index]
    containing = [option for option in problem.ordered if option.nodes >> index & 1]
    lines = [f"no plan covers node {index} '{node.name}' ({node.op})"]
    if not containing:
        lines[0] += ": no backend offers a candidate with it"
    elif dead_end:
        lines[0] += ": its usable candidates overlap others or depend on each other in a cycle"
        lines[0] += ", or their backends cannot share a process" if problem.conflicts else ""
    else:
        lines[0] += f": none of its {len(containing)} candidates is usable"
    reasons = [
        f"  {option.backend}, {_nodes(option)}: {_reason(costs, option)}" for option in containing
    ]
    if not space.complete:
        lines.append("  (there were too many combinations of candidates: not all were tried)")
    distinct = list(dict.fromkeys(reasons))
    lines += distinct[:_NODES_SHOWN]
    if len(distinct) > _NODES_SHOWN:
        lines.append(f"  and {len(distinct) - _NODES_SHOWN} more")
    return "\n".join(lines)


def _nodes(option: Option) -> str:
    return "1 node" if option.size == 1 else f"{option.size} nodes"


def _reason(costs: Costs, option: Option) -> str:
    cost = costs.get(option.key, UNKNOWN)
    if cost.is_unknown:
        return "not measured"
    return cost.reason if cost.is_invalid else "valid, but fits no plan"
