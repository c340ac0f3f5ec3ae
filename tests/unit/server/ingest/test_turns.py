"""A line that takes long gives way to the others, and goes on later where it was."""

import asyncio
from collections.abc import Callable

from tests.unit.server.ingest.test_websocket import Scene, frame


class Slow(Scene):
    """Each message takes four milliseconds, of a clock of its own."""

    def take(self, data: bytes, *, text: bool) -> None:
        super().take(data, text=text)
        self.now_s += 0.004


def slow() -> Slow:
    scene = Slow()
    scene.now_s = 0.0
    scene.turns.clock = scene.turns.used = lambda: scene.now_s
    return scene


def test_a_line_that_takes_long_gives_way_and_goes_on_where_it_was() -> None:
    async def played(data: bytes, rest: bytes) -> Slow:
        scene = slow()
        scene.line.data_received(data)
        assert (len(scene.said), scene.wire.reading, scene.turns.pausing) == (2, False, 1)
        scene.line.pause()
        scene.line.resume()
        assert not scene.wire.reading  # its turn has not come
        while scene.turns.pausing:
            await asyncio.sleep(0.01)
        assert scene.wire.reading
        scene.line.data_received(rest)
        return scene

    frames = b"".join(frame(number) for number in range(1, 6))
    scene = asyncio.run(played(frames[:-2], frames[-2:]))
    assert [len(data) for _, data in scene.said] == [1, 2, 3, 4, 5]


def test_a_line_that_breaks_or_is_dismissed_while_it_gives_way_is_over() -> None:
    async def played(end: Callable[[Slow], None], then: bytes = b"") -> Slow:
        scene = slow()
        scene.line.data_received(frame(1) * 5 + frame(200)[:20])
        end(scene)
        if then:
            scene.line.data_received(then)
        await asyncio.sleep(0.1)
        return scene

    close = frame(2, first=0x88, payload=b"\x03\xe8")
    lost = asyncio.run(played(lambda scene: scene.line.connection_lost(None)))
    assert (len(lost.said), lost.over, lost.turns.pausing) == (2, 1, 0)
    left = asyncio.run(played(lambda scene: scene.line.dismiss(b"no", 1008), frame(200)[20:] + close))
    assert (len(left.said), left.over, left.turns.pausing, left.wire.closed) == (2, 1, 0, True)


def test_a_line_is_not_charged_for_time_in_which_the_loop_waits_for_a_core_or_the_judge() -> None:
    scene = slow()
    scene.turns.used = lambda: 0.0
    scene.line.data_received(frame(1) * 5)
    assert (len(scene.said), scene.wire.reading, scene.turns.pausing) == (5, True, 0)
