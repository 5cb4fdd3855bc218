"""All settings that can be injected, in the order in which they are tried."""

from importlib import import_module

import torch

from gpujob_api.settings import TunedSettings
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.setting import Setting, Target
from gpujob_worker.tune.settings import NAMES


def _load(name: str) -> Setting:
    setting = import_module(f"gpujob_worker.tune.settings.{name}").SETTING
    assert isinstance(setting, Setting)
    assert name == setting.NAME
    return setting


SETTINGS: tuple[Setting, ...] = tuple(sorted(map(_load, NAMES), key=lambda s: (s.ORDER, s.NAME)))
# Fields of `TunedSettings` that each process decides for itself.
OWN = tuple(field for setting in SETTINGS if setting.OWN for field in setting.FIELDS)


def setting_called(name: str) -> Setting:
    return next(setting for setting in SETTINGS if name == setting.NAME)


def tuned(applied: Applied) -> TunedSettings:
    """Returns the choices, for reports and for the next run."""
    values = {name: value for s in SETTINGS for name, value in s.tuned(applied).items()}
    return TunedSettings(**values)


def keep_only(applied: Applied, agreed: TunedSettings) -> None:
    """Drops choices that are not in `agreed`; adds nothing."""
    for setting in SETTINGS:
        setting.keep_only(applied, agreed)


def apply_settings(
    root: Root | None, optimizer: torch.optim.Optimizer | None, applied: Applied
) -> None:
    """Makes the next step run with `applied`; `Applied()` is the script's own settings."""
    if root is not None:
        root.plan = applied.plan
    target = Target(root, optimizer)
    for setting in SETTINGS:
        setting.put(target, applied)
