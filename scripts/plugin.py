"""Builds kubectl-gpujob as one file that needs Python alone: `python scripts/plugin.py FILE`.

It has all commands. `simulate`, `why --places` and the decision of `submit --dry-run` need NumPy on
the machine as well.
"""

import importlib.util
import shutil
import sys
import tempfile
import tomllib
import zipapp
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Our packages, and what of others the commands import. The C parts of these are optional.
SOURCES = ("api/src/gpujob_api", "cli/src/kubectl_gpujob", "operator/src/gpujob_operator")
LIBRARIES = ("cachetools", "sortedcontainers", "yaml")
# Parts of the operator that the commands do not import.
LEFT_OUT = ("act", "agent", "client", "handlers", "leadership", "port", "render", "telemetry")

_MAIN = "import sys\n\nfrom kubectl_gpujob.__main__ import main\n\nsys.exit(main())\n"


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="plugin-") as name:
        folder = Path(name)
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyi")
        for source in SOURCES:
            shutil.copytree(ROOT / source, folder / Path(source).name, ignore=ignored)
        for part in LEFT_OUT:
            shutil.rmtree(folder / "gpujob_operator" / part)
        for library in LIBRARIES:
            found = importlib.util.find_spec(library)
            if found is None or found.origin is None:
                raise SystemExit(f"plugin: {library} is not installed: make setup")
            shutil.copytree(Path(found.origin).parent, folder / library, ignore=ignored)
        _name_version(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / "__main__.py").write_text(_MAIN)
        zipapp.create_archive(folder, target, "/usr/bin/env python3", compressed=True)
    sys.stdout.write(f"{target}: {target.stat().st_size / 2**20:.1f} MiB\n")


def _name_version(folder: Path) -> None:
    """Adds the metadata by which `--version` knows the version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
