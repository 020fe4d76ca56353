"""A refused day waits for a person: `judge` asks, `approve` waits for the answer, `commit` carries it out."""

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.branch import BaseBranchOperator
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Param
from airflow.sdk.execution_time.hitl import HITLUser

from batch_job.launch import spark_submit
from dags.links import picture_address, report_address
from dags.operators import Step, fail

#: Key of the XCom in which `judge` leaves the question.
QUESTION = "question"
APPROVE, REJECT = "Approve", "Reject"
#: The plot in words, for readers who do not see it.
PICTURE = "Shares of the labels, of this day and of the day before"
#: The form beside them: params of the task `approve`. The comment may stay empty, which a browser sends as null.
ANSWER = {
    "comment": Param(None, type=["null", "string"], title="Comment", description="Why. It is kept with the scores.")
}


class Judge(BaseBranchOperator, Step):  # type: ignore[misc]  # Airflow has no types here
    """Goes on where the day is committed, asks a person where one may accept what a gate refused, and fails where not.
    `asks`, `goes_on`: the tasks to go on with."""

    def __init__(self, *, asks: str, goes_on: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asks, self.goes_on = asks, goes_on

    def choose_branch(self, context: Any) -> str | Iterable[str]:
        code, line = self.run_step()
        if code == spark_submit.WAITING:
            context["ti"].xcom_push(key=QUESTION, value=json.loads(line))
            return self.asks
        if code:
            fail(self, code, line)
        return self.goes_on


class Approve(HITLOperator, Step):  # type: ignore[misc]  # Airflow has no types here
    """Waits, without a worker slot, until one of the approvers has answered. Returns the answer of who approves; fails
    with the verdict where one rejects, or where none answers in time. `judge`: the task that asks."""

    template_fields = Step.template_fields

    def __init__(self, *, judge: str, **kwargs: Any) -> None:
        super().__init__(
            subject="",
            options=[APPROVE, REJECT],
            assigned_users=[HITLUser(id=name, name=name) for name in spark_submit.approvers()],
            response_timeout=timedelta(seconds=spark_submit.approval_seconds()),
            # A retry must not ask a person again: the task after it has the retries.
            retries=0,
            **kwargs,
        )
        self.judge = judge

    def execute(self, context: Any) -> None:
        question = context["ti"].xcom_pull(task_ids=self.judge, key=QUESTION)
        report = f"[The report in Airflow]({report_address(self, context['run_id'])})"
        # Airflow shows no picture that is part of the text. A browser gets this one with the user's own cookie.
        picture = f"![{PICTURE}]({picture_address(self, context['run_id'])})" if question.get("picture") else ""
        self.subject = question["subject"]
        self.body = "\n\n".join(filter(None, (question["body"], picture, report)))
        super().execute(context)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> dict[str, str]:
        if event.get("error_type") == "timeout":
            self._reject("--expired")
        answer = super().execute_complete(context, event)
        by, comment = answer["responded_by_user"]["name"], answer["params_input"].get("comment") or ""
        if answer["chosen_options"] != [APPROVE]:
            self._reject(f"--by={by}", f"--comment={comment}")
        return {"by": by, "comment": comment}

    def _reject(self, *answer: str) -> None:
        _, line = self.run_step(*answer, step="reject")
        fail(self, spark_submit.REFUSED, line)


class Commit(Step):
    """Commits the scores that a person has accepted. `judge`, `approve`: the tasks that asked and that waited."""

    def __init__(self, *, judge: str, approve: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.judge, self.approve = judge, approve

    def execute(self, context: Any) -> None:
        ti = context["ti"]
        gates = ti.xcom_pull(task_ids=self.judge, key=QUESTION)["gates"]
        answer = ti.xcom_pull(task_ids=self.approve)
        accepted = [f"--accept={gate}" for gate in gates]
        code, line = self.run_step(*accepted, f"--by={answer['by']}", f"--comment={answer['comment']}")
        if code:
            fail(self, code, line)
