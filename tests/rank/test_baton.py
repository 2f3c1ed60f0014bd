"""A task that waits for a baton goes on at once, and can be cancelled as any other."""

from __future__ import annotations

import asyncio

import pytest

from nbcomm.rank.baton import Baton


async def _until(baton: Baton, heard: list[str]) -> None:
    try:
        await baton
    except asyncio.CancelledError:
        heard.append("cancelled")
        raise
    heard.append("passed on")


def test_the_waiting_task_goes_on_before_passing_on_returns() -> None:
    async def play() -> list[str]:
        heard: list[str] = []
        baton = Baton()
        task = asyncio.ensure_future(_until(baton, heard))
        await asyncio.sleep(0)

        def pass_on() -> None:
            heard.append("before")
            baton.pass_on()
            heard.append("behind")

        asyncio.get_running_loop().call_soon(pass_on)
        await task
        return heard

    assert asyncio.run(play()) == ["before", "passed on", "behind"]


def test_the_task_is_the_current_one_while_it_goes_on() -> None:
    async def play() -> bool:
        baton = Baton()

        async def wait() -> object:
            await baton
            return asyncio.current_task()

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(baton.pass_on)
        return await task is task

    assert asyncio.run(play())


def test_nobody_waits() -> None:
    async def play() -> None:
        baton = Baton()
        assert not baton.pass_on()
        assert not baton.done()

    asyncio.run(play())


@pytest.mark.parametrize("passed", [False, True], ids=["", "passed on meanwhile"])
def test_a_cancelled_task_hears_of_it(passed: bool) -> None:
    async def play() -> list[str]:
        heard: list[str] = []
        baton = Baton()
        task = asyncio.ensure_future(_until(baton, heard))
        await asyncio.sleep(0)
        task.cancel()
        if passed:
            asyncio.get_running_loop().call_soon(baton.pass_on)
        with pytest.raises(asyncio.CancelledError):
            await task
        return heard

    assert asyncio.run(play()) == ["cancelled"]
