"""A real Chromium, driven over its DevTools pipe: no driver, no socket and no further library.

What the page asks of any network, and what it complains about, is kept for the tests to look at.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60.0


def find() -> str | None:
    """The path of a Chromium, if this machine has one."""
    asked = os.environ.get("HRX_CHROMIUM")
    return asked or next((path for name in NAMES if (path := shutil.which(name))), None)


class PageError(Exception):
    """An expression that threw in the page."""


class Browser:
    """One browser with one tab. Pages are given as files."""

    def __init__(self, program: str):
        self.profile = tempfile.mkdtemp(prefix="hrx-chromium-")
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()

        def hand_over() -> None:
            # The pipe's protocol: commands are read from descriptor 3 and answered on descriptor 4.
            spare = [os.dup(to_child), os.dup(from_child)]
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=hand_over, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_child)
        os.close(from_child)
        self._held, self._number, self._session = b"", 0, None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        targets = self.command("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._write)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._read)
        shutil.rmtree(self.profile, ignore_errors=True)

    def command(self, method: str, **parameters: object) -> dict:
        """One command and its answer; events that come in between are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self) -> dict:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium did not answer within {PATIENCE:.0f} s")
            got = os.read(self._read, 1 << 20)
            if not got:
                raise ConnectionError("Chromium ended")
            self._held += got
        text, _, self._held = self._held.partition(b"\0")
        message = json.loads(text)
        self._keep(message.get("method", ""), message.get("params", {}))
        return message

    def _keep(self, method: str, event: dict) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"][:200])
        elif method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.complaints.append(event["entry"]["text"])

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False, hash_: str = "") -> None:
        """Opens a file at a width and a theme, and waits until its script is done."""
        self.requests.clear()
        self.complaints.clear()
        self.size(width, height)
        self.media(dark=dark)
        self.command("Page.navigate", url="about:blank")
        self.command("Page.navigate", url=page.resolve().as_uri() + hash_)
        self.wait("document.body && document.body.dataset.ready === 'yes'")

    def size(self, width: int, height: int) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def media(self, *, dark: bool = False, medium: str = "") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", media=medium, features=[scheme])

    def run(self, expression: str) -> object:
        """The value of an expression in the page; promises are waited for."""
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.run(f"Boolean({expression})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} did not come true: {self.complaints}")
            time.sleep(0.02)

    def press(self, key: str, *, shift: bool = False, times: int = 1) -> None:
        """A key as a person presses it."""
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
                 "Home": 36, "End": 35}  # fmt: skip
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        about = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0])), "modifiers": 8 if shift else 0}
        for _ in range(times):
            down = "keyDown" if text else "rawKeyDown"
            self.command("Input.dispatchKeyEvent", type=down, **about, **({"text": text} if text else {}))
            self.command("Input.dispatchKeyEvent", type="keyUp", **about)

    def mouse(self, kind: str, x: float, y: float, buttons: int = 0) -> None:
        button = "left" if kind != "mouseMoved" or buttons else "none"
        self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=1)

    def picture(self, path: Path, *, whole: bool = True) -> Path:
        """A screenshot, for people."""
        answer = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def pdf(self) -> bytes:
        return base64.b64decode(self.command("Page.printToPDF", printBackground=True)["data"])
