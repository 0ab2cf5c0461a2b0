"""Headless Chromium on a copy of a page, with a script that looks at it and writes down what it found."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions",
)  # fmt: skip
DEADLINE = 150.0  # seconds for a page on a busy machine
# Seconds of the page's own clock, which stands still while something is loaded.
BUDGET = 6.0
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
_FOUND = re.compile(r'<pre id="found">(.*?)</pre>', re.DOTALL)
# A window is at least 500 pixels wide, a frame is not.
_FRAME = """<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark"><body style="margin: 0">
<script>addEventListener("message", (event) => {{
  const node = document.createElement("pre");
  node.id = "found";
  node.textContent = event.data;
  document.body.append(node);
}});</script>
<iframe src="{source}" style="width: {width}px; height: 900px; border: 0"></iframe></body>"""

# What stands out of the window, out of its own box, or on two lines where one is meant.
OVERFLOW = """
  document.querySelectorAll("details").forEach((node) => { node.open = true; });
  await settled();
  const faults = [], wide = document.documentElement.clientWidth;
  const say = (node, what) => faults.push(`${what}: ${node.tagName}.${node.getAttribute("class") || ""} ${node.textContent.slice(0, 60)}`);
  const scrolls = (node) => { for (let up = node.parentElement; up; up = up.parentElement) if (/auto|scroll/.test(getComputedStyle(up).overflowX)) return true; return false; };
  if (innerWidth !== WIDTH) faults.push(`the window is ${innerWidth} wide`);
  if (document.documentElement.scrollWidth > wide) faults.push(`the page is ${document.documentElement.scrollWidth} wide`);
  for (const node of document.querySelectorAll("body *")) {
    const box = node.getBoundingClientRect(), style = getComputedStyle(node);
    if (!box.width || style.visibility === "hidden" || node.closest("script")) continue;
    if (!scrolls(node) && (box.right > wide + 1 || box.left < -1)) say(node, "out of the window");
    const svg = node.ownerSVGElement;
    if (svg && node.tagName === "text") {
      const around = svg.getBoundingClientRect();
      if (box.left < around.left - 2 || box.right > around.right + 2) say(node, "out of its chart");
    } else if (!svg && style.display !== "inline" && style.overflowX === "visible" && node.clientWidth && node.scrollWidth > node.clientWidth + 1) say(node, "wider than its box");
  }
  for (const node of document.querySelectorAll(".figure")) if (node.getBoundingClientRect().height > 1.6 * parseFloat(getComputedStyle(node).fontSize)) say(node, "on two lines");
  for (const node of document.querySelectorAll(".figure")) { const range = document.createRange(); range.selectNodeContents(node); if (range.getBoundingClientRect().right > node.closest(".card").getBoundingClientRect().right - 4) say(node, "out of its card"); }
  return {faults, dark: getComputedStyle(document.body).backgroundColor};
"""  # noqa: E501


def found(page: Path, script: str, folder: Path, width: int = 1000, dark: bool = False, address: str = "") -> Any:
    """What `script` returns, the body of an async function that runs once the page is drawn.

    The copy lies beside the page, as its pieces do, and lacks the policy that would keep the script from running. It is
    shown in a frame of `width` pixels.
    """
    probe = f"""
      const WIDTH = {width};
      const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
      const settled = async () => {{
        await pause(100);
        for (let n = 0; n < 100 && [...document.querySelectorAll(".missing")].some((node) => node.textContent === "loading …"); n++) await pause(50);
      }};
      const type = (label, text) => {{
        const field = document.querySelector(`input[placeholder="${{label}}"]`);
        field.value = text;
        field.dispatchEvent(new Event("input"));
      }};
      (async () => {{ await settled(); {script} }})().catch((error) => ({{error: String(error && error.stack)}})).then((result) => {{
        parent.postMessage(JSON.stringify(result), "*");
      }});
    """  # noqa: E501
    text = _POLICY.sub("", page.read_text(encoding="utf-8"))
    copy, frame = page.with_name(f"probed-{page.name}"), page.with_name(f"framed-{page.name}")
    copy.write_text(text.replace("</body>", f"<script>{probe}</script></body>"), encoding="utf-8")
    frame.write_text(_FRAME.format(width=width, source=f"{copy.name}{address}"), encoding="utf-8")
    try:
        shown = dom(frame.as_uri(), folder, width, dark)
    finally:
        copy.unlink()
        frame.unlink()
    match = _FOUND.search(shown)
    assert match, f"the page was not drawn: {shown[-2000:]}"
    result = json.loads(html.unescape(match[1]))
    assert "error" not in result, result["error"]
    return result


def dom(address: str, folder: Path, width: int = 1000, dark: bool = False, budget: float | None = BUDGET) -> str:
    """The document as Chromium has it once its scripts rest, or without a budget once it is drawn."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "no chromium on PATH; on Debian and Ubuntu: apt-get install --yes --no-install-recommends chromium"
    profile = folder / "profile"
    clock = [f"--virtual-time-budget={int(1000 * budget)}"] if budget else []
    command = [
        program, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},900",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", *clock, "--dump-dom", address,
    ]  # fmt: skip
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True).stdout
    finally:
        shutil.rmtree(profile, ignore_errors=True)
