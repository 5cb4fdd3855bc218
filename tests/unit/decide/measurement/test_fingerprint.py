"""What two jobs may differ in and be the same workload, and what else they take to be measured."""

import dataclasses
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJobSpec
from gpujob_api.optimize import BatchSize, Optimize, PerStep
from gpujob_api.settings import OptimizeMode, Precision, Task, Toggle
from gpujob_operator.decide.measurement.fingerprint import workload_of
from tests.harness.builders import make_job
from tests.harness.repository import ROOT

JOB_CRD = ROOT / "crds" / "gpujob.dev_gpujobs.yaml"
DIGEST = "sha256:" + "a" * 64
TRAIN = ("python", "train.py", "--model", "resnet50", "--batch-size", "32")


def spec(
    *words: str, image: str = "image:1", env: dict[str, str] | None = None, **fields: Any
) -> GPUJobSpec:
    worker: dict[str, Any] = {"name": "worker", "image": image, "command": list(words)}
    worker["env"] = [{"name": name, "value": value} for name, value in (env or {}).items()]
    return make_job(template={"spec": {"containers": [worker]}}, **fields).spec


ASKED = (
    Optimize(mode=OptimizeMode.OFF),
    Optimize(mode=OptimizeMode.RECOMMEND),
    Optimize(precision=Precision.FLOAT32),
    Optimize(precision=Precision.BFLOAT16),
    Optimize(batch_size=BatchSize(total=32)),
    Optimize(batch_size=BatchSize(per_step=PerStep(8))),
    Optimize(batch_size=BatchSize(per_step=PerStep(16))),
    Optimize(activation_checkpointing=Toggle.ON),
    Optimize(activation_checkpointing=Toggle.OFF),
    Optimize(compile=Toggle.OFF),
    Optimize(data_loading=Toggle.OFF),
    Optimize(task=Task.INFERENCE),
)
SAME: list[tuple[GPUJobSpec, GPUJobSpec]] = [
    (spec(*TRAIN, "--lr", "0.1"), spec(*TRAIN, "--lr", "0.003")),
    (spec(*TRAIN, "--lr", "0.1"), spec(*TRAIN)),
    (spec(*TRAIN, "--lr", "-1e-3"), spec(*TRAIN)),
    (spec(*TRAIN, "--learning_rate=1e-4"), spec(*TRAIN)),
    (spec(*TRAIN, "-lr", "1"), spec(*TRAIN)),
    (spec(*TRAIN, "--betas", "0.9", "0.99"), spec(*TRAIN, "--betas", "0.8", "0.95")),
    (spec(*TRAIN, "--epochs", "3"), spec(*TRAIN, "--epochs=90")),
    (spec(*TRAIN, "--max_steps", "3"), spec(*TRAIN)),
    (spec(*TRAIN, "optimizer.lr=0.1", "trainer.max_epochs=3"), spec(*TRAIN)),
    (spec(*TRAIN, "++run.name=a", "seed=3"), spec(*TRAIN)),
    (spec(*TRAIN, "--run-name", "a", "--output_dir", "/out/a"), spec(*TRAIN)),
    (spec("sh", "-c", "python a.py --lr 1"), spec("sh", "-c", "python a.py --lr 2")),
    (spec("/bin/bash", "-ec", "python a.py --seed=1"), spec("/bin/bash", "-ec", "python a.py")),
    (spec(*TRAIN, env={"LR": "1", "WANDB_RUN_ID": "x", "EPOCHS": "3"}), spec(*TRAIN)),
    (spec(*TRAIN, env={"RUN_NAME": "a"}), spec(*TRAIN, env={"RUN_NAME": "b"})),
    (
        spec(*TRAIN, image=f"registry/team/image:7@{DIGEST}"),
        spec(*TRAIN, image=f"mirror/image:8@{DIGEST}"),
    ),
    (
        spec("old.py", image="a:1", env={"X": "1"}, workload="resnet"),
        spec("new.py", "--layers", "9", image="b:2", workload="resnet"),
    ),
]
DIFFERENT: list[tuple[GPUJobSpec, GPUJobSpec]] = [
    (spec(*TRAIN, "--layers", "3"), spec(*TRAIN, "--layers", "4")),
    (spec("train.py", "--batch-size", "32"), spec("train.py", "--batch-size", "64")),
    (spec("train.py", "model.name=gpt2"), spec("train.py", "model.name=gpt2-xl")),
    (spec("train.py", "--model-name", "a"), spec("train.py", "--model-name", "b")),
    (spec("train.py", "--dropout", "0"), spec("train.py", "--dropout", "0.1")),
    (spec("train.py", "--momentum", "0"), spec("train.py", "--momentum", "0.9")),
    (spec("train.py", "--lr", "0.1", "a.yaml"), spec("train.py", "--lr", "0.1", "b.yaml")),
    (spec("sh", "-c", "python a.py --depth 1"), spec("sh", "-c", "python a.py --depth 2")),
    (spec("python", "-c", "lr = 1"), spec("python", "-c", "lr = 2")),
    (spec(*TRAIN, env={"HIDDEN": "64"}), spec(*TRAIN, env={"HIDDEN": "128"})),
    (spec(*TRAIN, image="image:1"), spec(*TRAIN, image="image:2")),
    (spec(*TRAIN, image=f"image@{DIGEST}"), spec(*TRAIN, image=f"image@{DIGEST[:-1]}b")),
    (spec(*TRAIN, workload="a"), spec(*TRAIN, workload="b")),
    (spec(*TRAIN, workload="a"), spec(*TRAIN, workload="a", workers=2)),
    (spec(*TRAIN), spec(*TRAIN, gpus_per_worker=2)),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_differs_between_runs_leaves_the_workload_the_same(
    one: GPUJobSpec, other: GPUJobSpec
) -> None:
    assert workload_of(one).fingerprint == workload_of(other).fingerprint


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_a_step_takes_makes_another_workload(one: GPUJobSpec, other: GPUJobSpec) -> None:
    assert workload_of(one).fingerprint != workload_of(other).fingerprint


@pytest.mark.parametrize("workload", [None, "named"])
def test_what_the_spec_asks_for_makes_another_workload(workload: str | None) -> None:
    """float32 where bfloat16 was measured takes twice the memory."""
    specs = [spec(*TRAIN, workload=workload, optimize=asked) for asked in (Optimize(), *ASKED)]
    assert len({workload_of(one).fingerprint for one in specs}) == len(specs)


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("workers", spec(*TRAIN, workload="named", workers=2)),
        ("gpusPerWorker", spec(*TRAIN, workload="named", gpus_per_worker=2)),
        ("optimize", spec(*TRAIN, workload="named", optimize=ASKED[0])),
    ],
)
def test_the_crd_names_the_fields_that_separate_workloads_of_one_name(
    field: str, other: GPUJobSpec
) -> None:
    assert workload_of(other) != workload_of(spec(*TRAIN, workload="named"))
    (version,) = yaml.safe_load(JOB_CRD.read_text(encoding="utf-8"))["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert re.search(rf"\b{field}\b", properties["workload"]["description"])


def test_every_field_that_can_be_asked_for_is_among_them() -> None:
    def changed(one: Any, plain: Any, path: str) -> set[str]:
        names = (entry.name for entry in dataclasses.fields(plain))
        pairs = [(path + name, getattr(one, name), getattr(plain, name)) for name in names]
        nested = [changed(a, b, f"{name}.") for name, a, b in pairs if dataclasses.is_dataclass(b)]
        flat = {name for name, a, b in pairs if a != b and not dataclasses.is_dataclass(b)}
        return flat.union(*nested)

    found = set[str]().union(*(changed(one, Optimize(), "") for one in ASKED))
    names = {entry.name for entry in dataclasses.fields(Optimize)} - {"batch_size"}
    names |= {f"batch_size.{entry.name}" for entry in dataclasses.fields(BatchSize)}
    assert found == names


def test_a_workload_that_leaves_everything_to_the_operator_keeps_its_profile() -> None:
    """These names stand in clusters: with another one, each workload would be measured anew."""
    auto = Optimize(batch_size=BatchSize(per_step=PerStep(None)))
    assert workload_of(spec(*TRAIN)).fingerprint == "326e2883ddcb2d7a"
    assert workload_of(spec(*TRAIN, optimize=auto)).fingerprint == "326e2883ddcb2d7a"
    batch = Optimize(batch_size=BatchSize(total=32))
    assert workload_of(spec(*TRAIN, optimize=batch)).fingerprint == "d6aacbeabb959732"


@pytest.mark.parametrize(
    ("words", "length"),
    [
        (TRAIN, ""),
        ((*TRAIN, "--lr", "1", "--epochs", "3"), "--epochs 3"),
        ((*TRAIN, "trainer.max_steps=9", "--seed", "1"), "trainer.max_steps=9"),
        (("sh", "-c", "python a.py --max-iters 5 --out x"), "--max-iters 5"),
    ],
)
def test_the_length_of_a_run_is_told_apart(words: tuple[str, ...], length: str) -> None:
    """Runs of one workload take as long as their own number of steps, see `WorkloadKeys`."""
    assert workload_of(spec(*words)).run_length == length


def test_a_length_in_the_environment_counts_too() -> None:
    assert workload_of(spec(*TRAIN, env={"EPOCHS": "3", "LR": "1"})).run_length == "EPOCHS=3"


@given(
    st.permutations([("--lr", "0.1"), ("--seed", "4"), ("--run-name=x",), ("--epochs", "2")]),
    st.integers(2, len(TRAIN) // 2),
)
def test_where_an_option_stands_and_how_many_there_are_matters_nothing(
    more: list[tuple[str, ...]], at: int
) -> None:
    words = [word for option in more for word in option]
    assert (
        workload_of(spec(*TRAIN[: 2 * at], *words, *TRAIN[2 * at :])).fingerprint
        == workload_of(spec(*TRAIN)).fingerprint
    )


@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_command_has_a_workload(words: list[str]) -> None:
    assert len(workload_of(spec(*words)).fingerprint) == 16
    assert workload_of(spec("sh", "-c", *words)).run_length is not None
