"""The settings that can be injected, one module each; `registry` lists them.

Their names are available without importing them, and therefore without torch.
"""

import pkgutil

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
# The names for `--no-NAME`: the settings, checkpoints of unmodified scripts, and settings passed to
# trainers in their own arguments.
FEATURES = (*NAMES, "resume", "trainers")
