"""What a library's code changes while a script trains comes back, or is refused beforehand."""

import importlib
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from tests.harness.made_again import MadeAgain
from tests.harness.unmodified_scripts import attempt, last_line

# Installed as packages are; the first forward pass decides what kind of problem it is.
LIBRARY = """
import _struct, collections, torch
class Config:
    def __init__(self, labels): self.num_labels, self.problem_type, self.seen = labels, None, {}
class Handle(_struct.Struct):
    '''Keeps what only C code can read.'''
class Body(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.inner = config, torch.nn.Linear(2, config.num_labels)
    def forward(self, x): return self.inner(x)
class Classifier(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.body, self.calls = config, Body(config), []
        self.handle, self.scale, self.table = None, torch.ones(2), Handle("i")
    def forward(self, x):
        if self.config.problem_type is None:
            self.config.problem_type = "regression" if self.config.num_labels == 1 else "single"
        self.config.seen[len(x)] = self.config.seen.get(len(x), 0) + 1
        self.calls.append(len(x))
        self.scale = self.scale * 0.5
        return self.body(x * self.scale)
class Opens(Classifier):
    def forward(self, x):
        self.handle = self.handle or Handle("i")
        return super().forward(x)
class Collects(Classifier):
    def forward(self, x):
        self.calls.append(Handle("i"))
        return self.body(x)
class Streams(Classifier):
    def forward(self, x):
        self.handle = (one for one in range(3))
        next(self.handle)
        return self.body(x)
class Averages(torch.optim.SGD):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.history, self.table = collections.deque(maxlen=3), Handle("i")
    def step(self, closure=None):
        self.history.append(len(self.history))
        return super().step(closure)
class Rows(torch.utils.data.Dataset):
    def __init__(self): self.x, self.reads, self.transform = torch.ones(20_000, 2), {}, None
    def __len__(self): return 6
    def __getitem__(self, n):
        self.reads[n] = self.reads.get(n, 0) + 1
        return self.x[n] if self.transform is None else self.transform(self.x[n])
class Twice:
    def __call__(self, x): return 2 * x
class Collator:
    def __init__(self): self.warned = {}
    def __call__(self, rows):
        self.warned["padding"] = True
        return torch.stack(rows)
"""
MODEL = "model = installed.CLASS(installed.Config(1))"
STEPS = "for _ in range(2): model(torch.ones(3, 2)).sum().backward()"
LOADER = (
    "loader = torch.utils.data.DataLoader(installed.Rows(), 2, collate_fn=installed.Collator())"
)
EQUAL = {
    "an object of a model": (MODEL, STEPS, "vars(model.config)"),
    "an object of a part": (
        "model = torch.nn.Sequential(installed.Body(installed.Config(1)))",
        "model[0].config.problem_type = 'single'",
        "vars(model[0].config)",
    ),
    "what two parts share": (MODEL, STEPS, "model.config is model.body.config"),
    "a list of a model": (MODEL, STEPS, "model.calls"),
    "a tensor of a model": (MODEL, STEPS, "model.scale"),
    "an attribute that is gone": (MODEL, "del model.calls", "hasattr(model, 'calls')"),
    "what a script keeps in torch's own": (
        "model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.LSTM(2, 2))",
        "model.notes = {'best': 3}",
        "model.notes",
    ),
    "beside a function that only the script can make": (
        """
            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer, self.act = torch.nn.Linear(2, 1), lambda x: x.relu()
            model = torch.nn.Sequential(Net())
            model.scaled, model.notes = (lambda x: 2 * x), []
        """,
        "model.notes.append(1)",
        "(model.notes, model.scaled(3), model[0].act(torch.ones(1)))",
    ),
    "of a model without parameters": (
        "loss = installed.Classifier.__new__(installed.Classifier)\n"
        "torch.nn.Module.__init__(loss)\nloss.config = installed.Config(1)",
        "loss.config.problem_type = 'single'",
        "vars(loss.config)",
    ),
    "of an optimizer": (
        "w = torch.nn.Parameter(torch.ones(2))\no = installed.Averages([w], lr=0.1)",
        "for _ in range(4): o.step()",
        "o.history",
    ),
    "of a data set": (LOADER, "list(loader)", "loader.dataset.reads"),
    "another transform of a data set": (
        LOADER,
        "loader.dataset.transform = installed.Twice()",
        "type(loader.dataset.transform).__name__",
    ),
    "of a function that puts rows together": (LOADER, "list(loader)", "loader.collate_fn.warned"),
    "of a script's data set in a part of it": (
        """
            class Own(torch.utils.data.Dataset):
                def __init__(self): self.noise = 0.1
                def __len__(self): return 6
                def __getitem__(self, n): return n
            loader = torch.utils.data.DataLoader(torch.utils.data.Subset(Own(), [0, 1]))
        """,
        "loader.dataset.dataset.noise = 0.4",
        "loader.dataset.dataset.noise",
    ),
    "of a function of the script that puts rows together": (
        """
            def collating():
                count = 0
                def collate(rows):
                    nonlocal count
                    count += 1
                    return len(rows), count
                return collate
            loader = torch.utils.data.DataLoader(installed.Rows(), 2, collate_fn=collating())
        """,
        "list(loader)",
        "next(iter(loader))",
    ),
    "what is opened when it is needed": (
        MODEL.replace("CLASS", "Opens"), STEPS, "vars(model.config)"
    ),
}  # fmt: skip
SCRIPT = """
import os, signal, sys
sys.path.insert(0, FOLDER)
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
def make():
    IMPORT
def main():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = DataLoader(TensorDataset(torch.randint(0, 9, (12, 2)), torch.rand(12, 1)), batch_size=4)
    step = 0
    for epoch in range(2):
        for x, y in rows:
            optimizer.zero_grad()
            LOSS.backward()
            optimizer.step()
            step += 1
            if step == int(sys.argv[1]): os.kill(os.getpid(), signal.SIGTERM)
    print(model.config.problem_type, step)
main()
"""
STANDIN = {
    "IMPORT": "import installed; return installed.Classifier(installed.Config(1))",
    "LOSS": "(model(x.float()) - y).square().mean()",
}
TRANSFORMERS = {
    "IMPORT": "from transformers import BertConfig, BertForSequenceClassification; return"
    " BertForSequenceClassification(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1,"
    " num_attention_heads=2, intermediate_size=8, num_labels=1))",
    "LOSS": "model(x, labels=y).loss",
}


def install(folder: Path) -> Path:
    packages = folder / "site-packages"
    packages.mkdir(parents=True)
    (packages / "installed.py").write_text(LIBRARY)
    return packages


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(install(tmp_path)))
    monkeypatch.delitem(sys.modules, "installed", raising=False)
    return importlib.import_module("installed")


def script_of(folder: Path, patch: pytest.MonkeyPatch, before: str) -> MadeAgain:
    text = textwrap.dedent(before).replace("CLASS", "Classifier")
    return MadeAgain(folder, patch, f"import installed\n{text}")


@pytest.mark.parametrize("name", EQUAL)
def test_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: ModuleType, name: str
) -> None:
    before, trains, compared = EQUAL[name]
    trained, again = script_of(tmp_path, monkeypatch, before).come_back(trains)
    values: list[Any] = [eval(compared, variables) for variables in (trained, again)]
    assert repr(values[0]) == repr(values[1])


def test_what_only_its_library_can_go_on_with_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: ModuleType
) -> None:
    script = script_of(tmp_path, monkeypatch, MODEL.replace("CLASS", "Streams"))
    trained = script.begin()
    script.see(trained)
    script.run(STEPS, trained)
    with pytest.raises(UnsavableError, match=r"Streams\.handle"):
        script.read(trained)


def test_handles_that_were_collected_refuse_the_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: ModuleType
) -> None:
    script = script_of(tmp_path, monkeypatch, MODEL.replace("CLASS", "Collects"))
    with pytest.raises(MismatchError, match=r"Collects\.calls\[0\] was a installed\.Handle"):
        script.come_back(STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(STANDIN, id="standin"),
        pytest.param(TRANSFORMERS, id="transformers", marks=pytest.mark.trainers),
    ],
)
def test_a_resume_after_the_last_forward_pass_writes_what_the_first_one_decided(
    tmp_path: Path, made: dict[str, str]
) -> None:
    source = SCRIPT.replace("FOLDER", repr(str(install(tmp_path))))
    for name, text in made.items():
        source = source.replace(name, text)
    stopped = attempt(tmp_path / "script", 1, source, 6)
    assert stopped.process.exitcode == 143, stopped.errors
    assert stopped.report["protection"] == "Exact"
    end = attempt(tmp_path / "script", 2, source, 0)
    assert last_line(end) == "regression 6", end.errors
    assert end.report["resumedFromStep"] == 6
