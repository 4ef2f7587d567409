"""One run of `optimize_model` in a process of its own, to run beside others or to be killed.

python -m tests.flows.runner MODEL [VERSION]    TEST_OPTIONS holds the options as JSON

It prints the run's final state as one JSON line.
"""

import json
import os
import sys

from flows.optimize import optimize_model


def main():
    options = json.loads(os.environ.get("TEST_OPTIONS", "{}"))
    version = sys.argv[2] if len(sys.argv) > 2 else None
    state = optimize_model(sys.argv[1], version, options=options, return_state=True)
    outcomes = state.result(raise_on_failure=False) if state.is_completed() else []
    facts = [outcome.model_dump(mode="json") for outcome in outcomes]
    print(json.dumps({"state": state.name, "message": state.message, "outcomes": facts}))


if __name__ == "__main__":
    main()
