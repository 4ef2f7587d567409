"""The automation that tells people of runs that failed, through a notification block of Prefect.

Whom to tell, and how, is a block that an operator makes in Prefect (Slack, Teams, e-mail, a webhook):
`COLLAGE_NOTIFY_BLOCK` names it as TYPE/NAME. Rejected models are no failures of the pipeline: their state has
a name of its own, which no trigger here expects.
"""

from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.events import EventTrigger, Posture
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound

from collage.errors import OptionError
from collage.release_names import released
from flows.settings import FlowSettings

SUBJECT = "Collage: {{ flow_run.name }} {{ flow_run.state.name }}"
BODY = """{{ flow_run.state.message }}

{{ flow_run|ui_url }}
"""
NAME = "collage: tell of failed runs"
EVENTS = {"prefect.flow-run.Failed", "prefect.flow-run.Crashed", "prefect.flow-run.TimedOut"}


def ensure_notification(client: SyncPrefectClient, settings: FlowSettings) -> None:
    """Create the automation of this installation, renew it, or delete it where no block is named.

    Raises:
        OptionError: there is no such block.
    """
    name = released(NAME, settings.release)
    existing = client.read_automations_by_name(name)
    if settings.notify_block:
        block_id = find_block(client, settings.notify_block)
        deployment = client.read_deployment_by_name(settings.optimize_deployment)
        client.create_automation(failure_automation(name, deployment.id, block_id))
        print(f"automation  {name}: {settings.notify_block}")
    for automation in existing:
        client.delete_automation(automation.id)


def find_block(client: SyncPrefectClient, address: str) -> UUID:
    """Return the id of a block, named as TYPE/NAME. Raises OptionError if there is none."""
    kind, _, name = address.partition("/")
    try:
        return client.read_block_document_by_name(name, kind, include_secrets=False).id
    except ObjectNotFound:
        raise OptionError(
            f"Prefect has no block {name} of type {kind}, which COLLAGE_NOTIFY_BLOCK names; make it on the"
            " page Blocks of Prefect (a notification block, e.g. slack-webhook), or correct the name"
        ) from None


def failure_automation(name: str, deployment_id: UUID, block_id: UUID) -> AutomationCore:
    """Return the automation: each failed run of the deployment is one notification."""
    related: dict[str, str | list[str]] = {
        "prefect.resource.id": f"prefect.deployment.{deployment_id}",
        "prefect.resource.role": "deployment",
    }
    return AutomationCore(
        name=name,
        description="A run of Collage failed or crashed; rejected models are not told",
        trigger=EventTrigger(
            expect=EVENTS, match={"prefect.resource.id": "prefect.flow-run.*"}, match_related=related,
            posture=Posture.Reactive, threshold=1,
        ),
        actions=[SendNotification(block_document_id=block_id, subject=SUBJECT, body=BODY)],
    )  # fmt: skip
