"""One command for every published figure. Nothing here is part of the product.

From a checkout in which nothing was installed, the packages are found where they lie.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("gpujob_api") is None:
    _root = Path(__file__).resolve().parents[1]
    sys.path += [str(_root / part / "src") for part in ("api", "worker")]
