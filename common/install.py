"""Command that installs an extra into the environment that runs hrx, from where hrx itself was installed.

hrx is not on PyPI, so `pip install 'hrx[ttm]'` alone fails in a fresh environment. An installer records the origin of a
package in `direct_url.json` (PEP 610): a clone, a git URL, or a wheel.
"""

import json
import shlex
import shutil
import sys
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

_RESERVED = ":/?#[]@!$&'()*+,;=%~"
"""Characters with a meaning in a URL."""


def install_command(extra: str, unpinned: str = "") -> str:
    """Return `pip install …` for an extra of hrx; `unpinned` is a requirement to install after it, alone.

    Names the interpreter where its `pip` is not the one that a shell would find.
    """
    found = shutil.which("pip")
    active = found and Path(found).parent == Path(sys.executable).parent
    pip = "pip" if active else f"{shlex.quote(sys.executable)} -m pip"
    command = f"{pip} install {_arguments(extra, _origin())}"
    return f"{command} && {pip} install --no-deps {shlex.quote(unpinned)}" if unpinned else command


def _origin() -> dict[str, Any]:
    """Return what the installer recorded about where hrx came from; empty where it recorded nothing."""
    # A source tree on the path has metadata too, without a record.
    for found in distributions(name="hrx"):
        with suppress(OSError, ValueError):
            if isinstance(origin := json.loads(found.read_text("direct_url.json") or ""), dict):
                return origin
    return {}


def _arguments(extra: str, origin: dict[str, Any]) -> str:
    """Return the arguments of `pip install` for an origin as PEP 610 describes it."""
    url = str(origin.get("url", ""))
    if url.startswith("file:"):
        path = Path(url2pathname(urlsplit(url).path))
        if (path.suffix == ".whl" and path.exists()) or (path / "pyproject.toml").exists():
            editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
            return editable + shlex.quote(f"{path}[{extra}]")
    elif version_control := origin.get("vcs_info"):
        # pip records the URL with its spaces and takes it without them only. The commit keeps the version of hrx.
        source = f"{version_control['vcs']}+{quote(url, safe=_RESERVED)}@{version_control['commit_id']}"
        return shlex.quote(f"hrx[{extra}] @ {source}")
    # pip takes the distribution that is installed here and adds what the extra needs.
    return shlex.quote(f"hrx[{extra}]")
