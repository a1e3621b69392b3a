"""Runners with metrics that depend on the task of the search."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from chop.actions.search.metrics.base import Direction, Runner, RunnerContext
from chop.training.tasks import TASKS, TrainingTask, task_named

# of all tasks; a runner measures those of the task of its search
TASK_METRICS: dict[str, Direction] = {
    name: better for task in TASKS for name, better in task.directions.items()
}


class TaskRunner(Runner):
    """A runner that measures the metrics of the task, and the loss."""

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self.metrics = self.metrics_for(context.task)

    @classmethod
    def metrics_for(cls, task: str) -> Mapping[str, Direction]:
        return task_named(task).directions

    @cached_property
    def task(self) -> TrainingTask:
        return task_named(self.context.task)
