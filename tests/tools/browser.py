"""Chromium without a window, spoken to through the DevTools protocol over a pipe."""

import json
import os
import shutil
import subprocess
import tempfile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# It shows only pages that the tests made. In containers the sandbox and shared memory are often missing.
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
    "--disable-extensions --disable-background-networking --hide-scrollbars "
    "--remote-debugging-pipe"
).split()
HEIGHT = "Math.ceil(document.documentElement.getBoundingClientRect().height)"


class Browser:
    """One process with one page. Each call waits for its answer."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory(prefix="spillway-browser-", ignore_cleanup_errors=True)
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # The browser reads descriptor 3 and writes descriptor 4.
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                'exec "${@:3}" 3<&"$1" 4>&"$2"',
                "bash",
                str(commands),
                str(answers),
                CHROMIUM,
                *FLAGS,
                f"--user-data-dir={self._profile.name}",
                "about:blank",
            ],
            pass_fds=[commands, answers],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._received = b""
        self._number = 0
        self._session = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")

    def open(self, path):
        """Shows a file, and returns when it is loaded."""
        answer = self._call("Page.navigate", url=path.resolve().as_uri())
        if "errorText" in answer:
            raise RuntimeError(f"{path}: {answer['errorText']}")
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def show(self, width, scheme="light", media="screen"):
        """Lays the page out anew. The view is as high as the page, so that every place of it can be looked at."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media=media, features=features)
        self._resize(width, 1000)
        self._resize(width, max(1000, self.evaluate(HEIGHT)))

    def evaluate(self, expression):
        """The value of an expression of JavaScript in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def close(self):
        os.close(self._commands)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        self._profile.cleanup()

    def _resize(self, width, height):
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def _call(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _receive(self):
        while b"\0" not in self._received:
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)
