"""Settings that can be injected: what is said of one in its module is all there is to say."""

import subprocess
import sys
from dataclasses import fields, replace

import pytest
import torch

from gpujob_api.settings import AttentionKernel, Precision, TunedSettings
from gpujob_worker.inject.call_settings import CallSetting
from gpujob_worker.inject.process_flags import ConvolutionAutotuning, Tf32
from gpujob_worker.inject.wrapped_module import RootPlan
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.registry import SETTINGS, keep_only, tuned
from gpujob_worker.tune.setting import Setting
from gpujob_worker.tune.settings import FEATURES, NAMES
from gpujob_worker.tune.settings.attention import AttentionChoice
from gpujob_worker.tune.settings.channels_last import ChannelsLast

FULL = Applied(
    RootPlan(
        rows_per_step=4,
        autocast=torch.bfloat16,
        activations_on_host=True,
        compiled=print,
        any_size=True,
        cuda_graphs=True,
        settings=(
            ChannelsLast(((3, 8, 8),)),
            AttentionChoice(AttentionKernel.MATH),
            ConvolutionAutotuning(),
        ),
    ),
    activation_checkpointing=True,
    fused=True,
    optimizers_judged=3,
    optimizer_offload=True,
    loader_workers=2,
    expandable_segments=True,
)


def test_each_module_has_one_setting_and_each_field_one_owner() -> None:
    assert sorted(setting.NAME for setting in SETTINGS) == list(NAMES)
    owned = [field for setting in SETTINGS for field in setting.FIELDS]
    assert sorted(owned) == sorted(field.name for field in fields(TunedSettings))
    for setting in SETTINGS:
        assert set(setting.tuned(Applied())) == set(setting.FIELDS)
    assert tuned(Applied()) == TunedSettings()
    assert len({setting.ORDER for setting in SETTINGS}) == len(SETTINGS)


def test_a_setting_for_memory_survives_a_return_to_memory_only() -> None:
    """A roll-back under a memory limit keeps exactly the settings that say they are for memory."""
    kept = FULL.memory_only()
    for setting in SETTINGS:
        if setting.NAME != "data_loader":
            assert setting.chosen(kept) == setting.FOR_MEMORY, setting.NAME


def test_names_are_known_without_torch() -> None:
    """The command line needs them before it is known whether the script imports torch at all."""
    code = (
        "import sys; from gpujob_worker.tune.settings import FEATURES\n"
        "import gpujob_worker.__main__; print(*FEATURES, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*FEATURES, "False"]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.NAME)
def test_what_is_dropped_is_gone_and_all_else_stays(setting: Setting) -> None:
    applied = replace(FULL)
    before, plain = tuned(applied), tuned(Applied())
    setting.drop(applied)
    after = tuned(applied)
    for field in fields(TunedSettings):
        expected = getattr(plain if field.name in setting.FIELDS else before, field.name)
        assert getattr(after, field.name) == expected, field.name
    assert not setting.chosen(Applied())


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.NAME)
def test_only_what_all_processes_have_is_kept(setting: Setting) -> None:
    applied = replace(FULL)
    without = replace(FULL)
    setting.drop(without)
    keep_only(applied, tuned(without))
    assert tuned(applied) == tuned(without)


def test_a_plan_has_one_setting_of_a_kind() -> None:
    plan = RootPlan().having(AttentionChoice(AttentionKernel.MATH)).having(Tf32())
    changed = plan.having(AttentionChoice(AttentionKernel.FLASH))
    assert changed.setting(AttentionChoice) == AttentionChoice(AttentionKernel.FLASH)
    assert len(changed.settings) == 2
    assert changed.without(AttentionChoice) == RootPlan().having(Tf32())
    assert changed.without(CallSetting) == RootPlan() == changed.memory_only()
    assert plan != changed


def test_words_for_people_are_those_of_the_fields() -> None:
    assert TunedSettings().in_words() == {}
    known = TunedSettings(
        Precision.BFLOAT16,
        batch_per_step=8,
        fused_optimizer=True,
        optimizers_judged=2,
        cuda_graphs=True,
    )
    assert known.in_words() == {
        "precision": "bfloat16",
        "batch_per_step": "8 samples at once",
        "fused_optimizer": "fused optimizer",
        "optimizers_judged": "in up to 2 optimizers",
        "cuda_graphs": "CUDA graphs",
    }
