"""Headless Chromium over the DevTools protocol: opens pages, runs JavaScript, presses keys, notes what goes wrong."""

import asyncio
import base64
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

START_TIMEOUT_S = 60.0


def chromium() -> str:
    """The browser's path. Skips the test if there is none."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not found:
        pytest.skip("chromium is not installed; install Debian's package chromium, or set CHROMIUM to its path")
    return found


class Tab:
    """One tab. problems: errors and warnings of the console, uncaught exceptions, blocked loads. requests: every URL
    that the page asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._socket, self._numbers, self._session = socket, itertools.count(1), ""
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._waiting.pop(told["id"]).set_result(told)
            elif told["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif told["method"] == "Network.requestWillBeSent":
                self.requests.append(told["params"]["request"]["url"])
            elif told["method"] == "Runtime.exceptionThrown":
                self.problems.append(str(told["params"]["exceptionDetails"]))
            elif told["method"] == "Runtime.consoleAPICalled" and told["params"]["type"] in ("error", "warning"):
                self.problems.append(str(told["params"]["args"]))
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] in ("error", "warning"):
                self.problems.append(str(told["params"]["entry"]))

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        sent = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(sent | ({"sessionId": self._session} if self._session else {}))
        async with asyncio.timeout(START_TIMEOUT_S):
            told = await self._waiting[number] if number in self._waiting else None
        assert told is not None
        assert "error" not in told, told
        return told["result"]

    async def attach(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def open(self, page: Path, *, dark: bool = False, size: tuple[int, int] = (1280, 900)) -> None:
        """Load the file and forget what earlier pages did."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=scheme)
        width, height = size
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        self.problems.clear()
        self.requests.clear()
        self._loaded.clear()
        await self.call("Page.navigate", url=page.as_uri())
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._loaded.wait()

    async def run(self, code: str) -> Any:
        """The value of a JavaScript expression, in the page."""
        told = await self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not await self.run(condition):
            assert time.monotonic() < deadline, condition
            await asyncio.sleep(0.02)

    async def press(self, key: str) -> None:
        """A key, such as ArrowRight or Tab, from the keyboard."""
        codes = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "End": 35, "Home": 36, "Escape": 27, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key],
                **(text if kind == "keyDown" else {}),
            )  # fmt: skip

    async def point(self, x: float, y: float) -> None:
        """Move the mouse."""
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def screenshot(self) -> bytes:
        """What is seen, as PNG."""
        shot = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(shot["data"])

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.wait([self._reader])


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Tab]:
    """A tab of a new browser; folder: an empty one, for its files."""
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
    process = await asyncio.create_subprocess_exec(
        chromium(), *flags, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port, path = (await _address(folder / "DevToolsActivePort")).split()
        limit = 64 * 2**20
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=limit) as socket,
        ):
            tab = Tab(socket)
            await tab.attach()
            yield tab
            await tab.close()
    finally:
        process.kill()
        await process.wait()


async def _address(file: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        text = await asyncio.to_thread(lambda: file.read_text() if file.exists() else "")
        # The path, in the second line, ends the file. It may be written in two steps.
        if "/devtools/browser/" in text:
            return text
        await asyncio.sleep(0.05)
    raise AssertionError("chromium did not open its debugging port")
