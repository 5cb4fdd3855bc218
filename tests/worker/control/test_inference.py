"""A script that only answers is recognised by its calls, which are then measured and tuned."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.codec import FieldError
from gpujob_api.settings import Settings, Task
from tests.harness.worker_process import WorkerRun, run_alone, run_worker

pytestmark = pytest.mark.timeout(240)

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.5), nn.Linear(32, 4))
    def forward(self, v): return self.layers(v)
net = Net()
loader = DataLoader(TensorDataset(torch.randn(77, 8)), batch_size=4)
def train(steps=20):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    net.train()
    for _ in range(steps):
        optimizer.zero_grad(); net(torch.randn(4, 8)).square().mean().backward(); optimizer.step()
        with torch.no_grad(): net(torch.randn(4, 8))
def score():
    for (x,) in loader: print(net(x).sum(1).tolist())
"""
# 77 samples in batches of 4.
BATCHES = 20
PLAIN = {"compile": "Off", "precision": "float32", "dataLoading": "Off"}


def run(folder: Path, body: str, **settings: Any) -> WorkerRun:
    folder.mkdir(exist_ok=True)
    (folder / "score.py").write_text(HEAD + body)
    command = ["python", str(folder / "score.py")]
    code, done = run_worker(folder, command, settings={**PLAIN, **settings})
    assert code == 0, done.errors
    return done


def explained(done: WorkerRun) -> str:
    return "\n".join(done.report["explain"])


@pytest.mark.parametrize(
    "body",
    [
        "net.eval()\nwith torch.no_grad(): score()",
        "net.eval()\nwith torch.inference_mode(): score()",
        "net.eval(); score()",
        "with torch.no_grad(): score()",
        "net.eval(); torch.set_grad_enabled(False); score()",
    ],
)
def test_each_call_of_a_model_is_a_step(body: str, tmp_path: Path) -> None:
    done = run(tmp_path / "worker", body)
    _, plain = run_alone(tmp_path / "alone", [str(tmp_path / "worker" / "score.py")])
    assert done.output == plain.output
    report = done.report
    assert (report["task"], report["step"], report["phase"]) == ("Inference", BATCHES, "finished")
    assert "loss" not in report
    latency = report["current"]["latency"]
    assert 0 < latency["p50Milliseconds"] <= latency["p95Milliseconds"]
    assert latency["p95Milliseconds"] <= latency["p99Milliseconds"]
    assert latency["calls"] <= BATCHES
    assert "latency" in report["baseline"]
    assert report["current"]["samplesPerSecond"] > 0
    assert report["current"]["peakMemoryBytes"] > 0


def test_a_call_may_have_keywords_and_a_dict_of_outputs(tmp_path: Path) -> None:
    body = """
class Named(Net):
    def forward(self, *, batch): return {"logits": super().forward(batch["x"]), "name": "out"}
net = Named().eval()
with torch.inference_mode():
    for (x,) in loader: print(net(batch={"x": x})["logits"].sum(1).tolist())
"""
    done = run(tmp_path / "worker", body)
    _, plain = run_alone(tmp_path / "alone", [str(tmp_path / "worker" / "score.py")])
    assert done.output == plain.output
    assert done.report["step"] == BATCHES
    assert done.report["current"]["samplesPerSecond"] > 0


@pytest.mark.parametrize(
    ("body", "total"),
    [
        ("score()", BATCHES),
        ("net(torch.randn(1, 8)); score()", BATCHES + 1),
        ("score(); score()", 2 * BATCHES),
        # Two calls for each batch.
        ("for (x,) in loader: net(x); net(-x)", None),
        ("for _ in range(20): net(torch.randn(4, 8))", None),
    ],
)
def test_the_length_of_the_loader_is_the_number_of_steps(
    tmp_path: Path, body: str, total: int | None
) -> None:
    report = run(tmp_path, f"net.eval(); torch.set_grad_enabled(False)\n{body}").report
    assert report.get("stepsTotal") == total
    assert report["task"] == "Inference"
    assert total is None or report["step"] == total


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("settings", [PLAIN, {"compile": "Auto", "precision": "Auto"}])
def test_the_calls_of_a_quantized_model_are_steps(tmp_path: Path, settings: dict[str, Any]) -> None:
    """All of its weights are packed, so it has no parameters."""
    body = """
import warnings
warnings.simplefilter("ignore")
net = torch.ao.quantization.quantize_dynamic(net.eval(), {nn.Linear})
assert not list(net.parameters())
with torch.no_grad(): score()
"""
    done = run(tmp_path / "worker", body, **settings)
    _, plain = run_alone(tmp_path / "alone", [str(tmp_path / "worker" / "score.py")])
    assert done.output == plain.output
    assert (done.report["task"], done.report["step"]) == ("Inference", BATCHES)
    assert done.report["current"]["latency"]["calls"] > 0


@pytest.mark.parametrize(
    "body",
    [
        "train()",
        # Evaluations of a training: before its first step, and after its last one.
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.01)\n"
        "net.eval()\nwith torch.no_grad(): score()\ntrain()\nnet.eval(); score()",
        # A model that is called to determine a size.
        "net.eval()\nwith torch.no_grad(): net(torch.randn(1, 8)); net(torch.randn(1, 8))\ntrain()",
    ],
)
def test_evaluations_of_a_training_are_no_steps(body: str, tmp_path: Path) -> None:
    report = run(tmp_path, body).report
    assert "task" not in report
    assert report["step"] == 20
    assert "latency" not in report["current"]
    assert report["tuned"] is not None


def test_a_script_that_trains_after_all_is_tuned_as_a_training(tmp_path: Path) -> None:
    done = run(tmp_path, "net.eval()\nwith torch.no_grad(): score()\ntrain()")
    assert "task" not in done.report
    assert done.report["step"] == BATCHES + 20
    assert "task it trains; calls of a model are no steps from now on" in explained(done)
    assert "fused optimizer" in explained(done)
    assert "latency" not in done.report["baseline"]
    stated = run(
        tmp_path / "stated", "net.eval()\nwith torch.no_grad(): score()\ntrain()", task="Training"
    )
    assert stated.report["step"] == 20


@pytest.mark.parametrize(
    "body",
    [
        # Gradient descent by hand.
        "net.eval()\nfor (x,) in loader:\n    net(x).square().mean().backward()\n"
        "    with torch.no_grad():\n        for p in net.parameters(): p -= 0.01 * p.grad",
        # No module has parameters.
        "with torch.no_grad():\n    for (x,) in loader: nn.Tanh()(x)",
        # A model in training mode whose gradients nobody takes.
        "score()",
        "net.eval()\nwith torch.no_grad(): net(torch.randn(1, 8)); net(torch.randn(1, 8))",
    ],
)
def test_other_calls_are_no_steps(body: str, tmp_path: Path) -> None:
    assert run(tmp_path, body).report.get("step", 0) == 0


def test_too_few_calls_are_said_at_the_end(tmp_path: Path) -> None:
    few = "net.eval()\nwith torch.no_grad(): net(torch.randn(1, 8))"
    assert "too few calls of a model were made" in explained(run(tmp_path / "few", few))
    some = "net.eval()\nwith torch.no_grad():\n    for _ in range(5): net(torch.randn(1, 8))"
    done = run(tmp_path / "some", some)
    assert done.report["step"] == 5
    assert "the run ended after 3 of the 7 calls that are measured first" in explained(done)


def test_an_evaluation_after_a_training_does_not_replace_its_report(tmp_path: Path) -> None:
    """As in a shell script that trains and evaluates."""
    trained = run(tmp_path, "train()").report
    evaluated = run(tmp_path, "net.eval()\nwith torch.no_grad(): score()").report
    assert (evaluated["step"], evaluated["tuned"]) == (20, trained["tuned"])
    assert "task" not in evaluated


def test_the_stated_task_wins_over_an_optimizer(tmp_path: Path) -> None:
    body = "torch.optim.SGD(net.parameters(), lr=0.01)\nnet.eval()\nwith torch.no_grad(): score()"
    assert run(tmp_path / "auto", body).report.get("step", 0) == 0
    report = run(tmp_path / "stated", body, task="Inference").report
    assert (report["task"], report["step"]) == ("Inference", BATCHES)


def test_another_value_of_the_task_is_refused(tmp_path: Path) -> None:
    assert Settings.from_text('{"task": "Training"}').task is Task.TRAINING
    with pytest.raises(FieldError, match=r"task.*Auto, Training, Inference, Serving.*Sewing"):
        Settings.from_text('{"task": "Sewing"}')
    (tmp_path / "score.py").write_text(HEAD + "net.eval(); score()")
    command = ["python", str(tmp_path / "score.py")]
    _, done = run_worker(tmp_path, command, settings={"task": "Sewing"})
    assert "task" in done.errors
    assert "Serving" in done.errors


def test_nothing_is_watched_where_nothing_may_be(tmp_path: Path) -> None:
    assert run(tmp_path, "net.eval(); score()", mode="Off").report.get("step", 0) == 0


def test_two_models_that_take_turns_make_one_step(tmp_path: Path) -> None:
    body = """
head = nn.Linear(4, 2).eval(); net.eval()
with torch.inference_mode():
    for (x,) in loader: print(head(net(x)).tolist())
"""
    done = run(tmp_path / "worker", body)
    _, plain = run_alone(tmp_path / "alone", [str(tmp_path / "worker" / "score.py")])
    assert done.output == plain.output
    assert done.report["step"] == BATCHES


def test_a_model_of_a_later_loop_takes_over(tmp_path: Path) -> None:
    body = """
prompts = Net().eval(); net.eval()
with torch.no_grad():
    for _ in range(10): prompts(torch.randn(4, 8))
    for _ in range(10):
        for (x,) in loader: net(x)
"""
    # The other model's first 99 calls might still alternate with those of the first one.
    assert run(tmp_path, body).report["step"] == 10 + 10 * BATCHES - 99


def test_a_model_that_the_script_compiles_is_measured(tmp_path: Path) -> None:
    body = 'net = torch.compile(net.eval(), backend="eager")\nwith torch.no_grad(): score()'
    done = run(tmp_path, body)
    assert done.report["step"] == BATCHES
    assert "the script compiles its model itself" in explained(done)


def test_an_exported_model_has_nothing_of_the_watch(tmp_path: Path) -> None:
    body = """
net.eval()
graph = torch.export.export(net, (torch.randn(4, 8),))
scripted = torch.jit.trace(net, torch.randn(4, 8))
print(len(list(graph.graph.nodes)), scripted(torch.ones(4, 8)).sum().item())
"""
    done = run(tmp_path / "worker", body)
    _, plain = run_alone(tmp_path / "alone", [str(tmp_path / "worker" / "score.py")])
    assert done.output == plain.output


def test_an_error_of_the_script_is_its_own(tmp_path: Path) -> None:
    body = 'net.eval()\nfor (x,) in loader: net(x)\nraise ValueError("the last shard is missing")'
    (tmp_path / "score.py").write_text(HEAD + body)
    code, done = run_worker(tmp_path, ["python", str(tmp_path / "score.py")], settings=PLAIN)
    assert code == 1
    assert "the last shard is missing" in done.report["failure"]["message"]
    assert done.report["step"] == BATCHES


def test_the_written_report_has_the_latency(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text(HEAD + "net.eval(); score()")
    options = ("--report-directory", str(tmp_path / "report"))
    run_worker(tmp_path, ["python", str(tmp_path / "score.py")], settings=PLAIN, options=options)
    page = (tmp_path / "report" / "report.md").read_text()
    assert page.startswith(f"# {BATCHES} calls, attempt 1")
    assert "| latency p50 |" in page
    assert "| latency p99 |" in page
    data = json.loads((tmp_path / "report" / "report.json").read_text())
    assert data["report"]["task"] == "Inference"
