"""The settings that can be injected, a module each; `registry` has them.

Their names are known without importing them, and so without torch.
"""

import pkgutil

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
# What `--no-NAME` turns off: beside the settings, checkpoints of scripts that know nothing of them,
# and what trainers are told in their own arguments.
FEATURES = (*NAMES, "resume", "trainers")
