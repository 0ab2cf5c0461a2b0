"""Sums as a taskset of plain text: no tools and no state."""

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def digits(self, trace: vf.Trace) -> float:
        said = trace.last_reply
        return sum(one.isdigit() for one in said) / len(said) if said else 0.0


class SumTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for one in range(6):
            for other in range(5):
                yield SumTask(SumData(prompt=f"{one} + {other} =", answer=str(one + other)), self.config.task)


def solved(data: SumData) -> list:
    """The solution of a task."""
    return [data.answer]


__all__ = ["SumTaskset"]
