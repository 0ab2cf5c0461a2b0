"""Tasksets that have no counterpart: the variable REFUSED of this module's settings says which."""

from typing import Literal

import verifiers.v1 as vf


class Plain(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return 1.0


class Boxed(Plain):
    NEEDS_CONTAINER = True


class Rewriting(Plain):
    @vf.intercept
    def shorter(self, request: vf.Request) -> vf.Request | None:
        return None


class Config(vf.TasksetConfig):
    kind: Literal["box", "rewriting", "no prompt", "conversation", "image"] = "box"


class Refused(vf.Taskset[Plain, Config]):
    def load(self):
        kind = self.config.kind
        made = {"box": Boxed, "rewriting": Rewriting}.get(kind, Plain)
        url = vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url="data:image/png;base64,"))
        prompt = {
            "no prompt": None,
            "conversation": [
                vf.UserMessage(content="a"),
                vf.AssistantMessage(content="b"),
                vf.UserMessage(content="c"),
            ],
            "image": [vf.UserMessage(content=[url])],
        }.get(kind, "Do it.")
        yield made(vf.TaskData(prompt=prompt), self.config.task)


__all__ = ["Refused"]
