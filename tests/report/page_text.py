"""The text of a report's page as its script draws it, with all that opens opened. Needs node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from patience import patience

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


def drawn(page: str, data: Any, folder: Path, further: str = "") -> str:
    """The text; the script and `data` are written into the folder. `further` code runs at the end of the script."""
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    before, end = script.rsplit("})();", 1)  # all of a page's script is one function
    (folder / "page.js").write_text(f"{before}{further}}})();{end}")
    (folder / "data.json").write_text(json.dumps(data))
    command = ["node", Path(__file__).with_name("page_dom.js"), folder / "page.js", folder / "data.json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=True).stdout
