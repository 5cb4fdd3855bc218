"""Shapes of ordinary scripts: they end as a run that nothing stopped, or are known beforehand."""

from pathlib import Path

import pytest

from tests.harness.unmodified_scripts import attempt, last_line
from tests.harness.worker_process import WorkerRun

pytestmark = pytest.mark.timeout(400)
# The first argument is the step after which the script stops itself.
BEGIN = """
import hashlib, os, random, signal, sys, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset, WeightedRandomSampler
torch.manual_seed(1); random.seed(1)
x = torch.randn(40, 4)
y = x.sum(1, keepdim=True).tanh()
class Drawing(Dataset):
    def __len__(self): return 40
    def __getitem__(self, n): return x[n] + 0.1 * torch.randn(4), y[n]
class Kept(Dataset):
    def __init__(self): self.kept = {}
    def __len__(self): return 40
    def __getitem__(self, n): return self.kept.setdefault(n, x[n]), y[n]
class Shuffled(Sampler):
    def __init__(self): self.epoch = 0
    def __len__(self): return 40
    def __iter__(self):
        order = list(range(40))
        random.Random(self.epoch).shuffle(order)
        self.epoch += 1
        return iter(order)
def digest():
    found = hashlib.sha256()
    for tensor in model.state_dict().values(): found.update(tensor.numpy().tobytes())
    return found.hexdigest()
def steps():
    global step
    optimizer.step(); optimizer.zero_grad()
    step += 1
    if step == int(sys.argv[1]): os.kill(os.getpid(), signal.SIGTERM)
data = TensorDataset(x, y)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
step = 0
"""
LEARN = "(model(a) - b).square().mean().backward(); steps()"
END = "\nprint(step, digest())\n"
LIVING = "DataLoader(DATA, batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)"


def script(code: str, **names: str) -> str:
    for name, value in {**names, "LEARN": LEARN}.items():
        code = code.replace(name, value)
    return BEGIN + code + END


def stopped(folder: Path, source: str, step: int, number: int = 1) -> WorkerRun:
    return attempt(folder, number, source, step)


def ends_as_undisturbed(folder: Path, source: str, *stops: int) -> None:
    whole = attempt(folder / "whole", 1, source, 0)
    assert whole.process.exitcode == 0, whole.errors
    for number, step in enumerate(stops, start=1):
        done = stopped(folder / "stopped", source, step, number)
        assert done.process.exitcode == 143, done.errors
        assert "Exception ignored" not in done.errors
        assert done.report["protection"] == "Exact"
    end = attempt(folder / "stopped", len(stops) + 1, source, 0)
    assert end.process.exitcode == 0, end.errors
    assert end.report["resumedFromStep"] is not None
    assert last_line(end) == last_line(whole)


EPOCHS = """
loader = LOADER
for epoch in range(3):
    for a, b in loader:
        LEARN
"""


@pytest.mark.parametrize("order", ["", ", generator=torch.Generator().manual_seed(3)"])
def test_worker_processes_that_live_on_begin_again(order: str, tmp_path: Path) -> None:
    """The seed that the first pass draws for them is not drawn once more by a later one."""
    loader = LIVING.replace("DATA", "data").replace(", num_workers", f"{order}, num_workers")
    ends_as_undisturbed(tmp_path, script(EPOCHS, LOADER=loader), 14)


@pytest.mark.parametrize(
    ("data", "reason"),
    [("Drawing()", "they draw random numbers"), ("Kept()", "changes the dataset")],
)
def test_what_worker_processes_keep_is_known_beforehand(
    data: str, reason: str, tmp_path: Path
) -> None:
    done = stopped(tmp_path, script(EPOCHS, LOADER=LIVING.replace("DATA", data)), 14)
    assert done.process.exitcode == 144
    assert done.report["protection"] == "FromBeginning"
    assert "persistent_workers=False" in done.report["protectionReason"]
    assert reason in done.report["protectionReason"]


def test_a_pass_of_an_own_sampler_that_is_read_by_hand_is_known_beforehand(tmp_path: Path) -> None:
    code = """
loader = DataLoader(data, batch_size=4, sampler=Shuffled())
batches = iter(loader)
for n in range(30):
    try: a, b = next(batches)
    except StopIteration:
        batches = iter(loader)
        a, b = next(batches)
    LEARN
"""
    done = stopped(tmp_path, script(code), 14)
    assert done.process.exitcode == 144
    assert "Shuffled of the script may draw" in done.report["protectionReason"]


def test_batches_that_are_left_of_an_epoch_count_for_the_next_one(tmp_path: Path) -> None:
    """With ten batches an epoch and three a step it begins in the middle of a step; the order of an
    own sampler has no other place.
    """
    code = """
loader = DataLoader(data, batch_size=4, sampler=Shuffled())
for epoch in range(6):
    for n, (a, b) in enumerate(loader):
        ((model(a) - b).square().mean() / 3).backward()
        if (n + 1) % 3 == 0:
            steps()
"""
    ends_as_undisturbed(tmp_path, script(code), 4)


LATER = """
loader = DataLoader(data, batch_size=4, shuffle=True)
for epoch in range(4):
    if epoch == 2: loader = LARGER
    for a, b in loader:
        LEARN
"""


def test_a_loader_of_a_later_epoch_is_made_again(tmp_path: Path) -> None:
    """Also in an attempt that begins with one that was made again."""
    source = script(LATER, LARGER="DataLoader(data, batch_size=8, shuffle=True)")
    ends_as_undisturbed(tmp_path, source, 6, 26, 29)


def test_a_loader_of_a_later_epoch_with_an_order_of_its_own_is_no_place(tmp_path: Path) -> None:
    """The checkpoint of before stays, and the run goes on from there."""
    order = "WeightedRandomSampler(torch.ones(40), 40)"
    source = script(LATER, LARGER=f"DataLoader(data, batch_size=8, sampler={order})")
    whole = attempt(tmp_path / "whole", 1, source, 0)
    folder = tmp_path / "stopped"
    assert stopped(folder, source, 6).process.exitcode == 143
    second = stopped(folder, source, 28, 2)
    assert second.process.exitcode == 144, second.errors
    assert "loader is a DataLoader of another turn" in second.report["protectionReason"]
    end = attempt(folder, 3, source, 0)
    assert end.report["resumedFromStep"] == 6
    assert last_line(end) == last_line(whole)


@pytest.mark.parametrize("stop", [26, 30], ids=["in an epoch", "at its end"])
def test_what_a_fold_draws_before_its_epochs_is_drawn_again(stop: int, tmp_path: Path) -> None:
    """At the end of an epoch nothing follows that could be compared."""
    code = """
for fold in range(2):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = WeightedRandomSampler(torch.rand(40) + 0.1, 40)
    loader = DataLoader(data, batch_size=4, sampler=order)
    for epoch in range(2):
        for a, b in loader:
            LEARN
"""
    ends_as_undisturbed(tmp_path, script(code), stop)


def test_a_loop_over_the_results_is_waited_out(tmp_path: Path) -> None:
    """Stopped in its last step, a script is at its end before it comes to a loop that trains."""
    code = """
while True:
    a, b = x[step:step + 4], y[step:step + 4]
    LEARN
    if step == 30: break
"""
    source = script(code)
    whole = attempt(tmp_path / "whole", 1, source, 0)
    done = stopped(tmp_path / "stopped", source, 30)
    assert done.process.exitcode == 0, done.errors
    assert last_line(done) == last_line(whole)


OWN_OPTIMIZERS = """
class Slow(torch.optim.SGD):
    '''Every third step goes half of the way back to slow weights.'''
    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.calls, self.norms = 0, []
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]
    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        self.norms.append(float(params[0].grad.norm()))
        super().step()
        self.calls += 1
        if self.calls % 3 == 0:
            for p, slow in zip(params, self.slow): p.copy_(slow.lerp_(p, 0.5))
class Around(torch.optim.Optimizer):
    '''Shares its groups with the optimizer that makes the steps, as sharpness-aware ones do.'''
    def __init__(self, params, **options):
        super().__init__(params, options)
        self.base = torch.optim.SGD(self.param_groups, **options)
        self.param_groups = self.base.param_groups
    def step(self, closure=None): self.base.step()
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.base.param_groups = self.param_groups
slow, around = Slow(model[0].parameters(), lr=0.05), Around(model[3].parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.ExponentialLR(around, 0.7)
loader = DataLoader(data, batch_size=4, shuffle=True)
for epoch in range(3):
    for a, b in loader:
        (model(a) - b).square().mean().backward()
        slow.step(); around.step(); slow.zero_grad(); around.zero_grad()
        step += 1
        if step == int(sys.argv[1]): os.kill(os.getpid(), signal.SIGTERM)
    schedule.step()
print(slow.calls, sum(slow.norms), around.base.param_groups[0]["lr"], end=" ")
"""


def test_what_optimizers_of_the_script_keep_comes_back(tmp_path: Path) -> None:
    ends_as_undisturbed(tmp_path, script(OWN_OPTIMIZERS), 14)


ROTATING = """
import json, shutil
os.chdir(os.path.dirname(__file__))
kept = []
loader = DataLoader(data, batch_size=4, shuffle=True)
for epoch in range(3):
    for a, b in loader:
        LEARN
        folder = f"checkpoint-{step}"
        os.mkdir(folder)
        torch.save(model.state_dict(), f"{folder}/model.pt")
        torch.save(model.state_dict(), f"{step}.pt")
        history = json.load(open("history.json")) if os.path.exists("history.json") else []
        with open("history.json", "w") as file: json.dump([*history, step], file)
        kept.append(step)
        if len(kept) > 2:
            old = kept.pop(0)
            shutil.rmtree(f"checkpoint-{old}")
            os.remove(f"{old}.pt")
print(history, kept, sorted(name for name in os.listdir() if name[0] in "123456789c"), end=" ")
"""


def test_what_is_written_and_removed_in_each_step_is_done_once_more(tmp_path: Path) -> None:
    """A stopped run makes two more steps after its save."""
    ends_as_undisturbed(tmp_path, script(ROTATING), 14)


STAGES = """
def main():
    global optimizer
    loader, best, values = DataLoader(data, batch_size=4, shuffle=True), None, []
    for epoch in range(2):
        for a, b in loader:
            loss = (model(a) - b).square().mean()
            loss.backward(); steps()
            values.append(loss.item())
        best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    print("first stage", loss.item(), values[-1], epoch)
    model.load_state_dict(best)
    head = nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.05)
    for epoch in range(2):
        for a, b in loader:
            (head(model(a)) - b).square().mean().backward(); steps()
main()
"""


def test_a_stage_whose_results_are_read_before_the_next_one(tmp_path: Path) -> None:
    """The loop of the first stage is left out on the way, and its variables are there."""
    ends_as_undisturbed(tmp_path, script(STAGES), 27)


def test_a_stage_in_a_module(tmp_path: Path) -> None:
    body = STAGES.replace("\n    ", "\n").replace("\ndef main():\nglobal optimizer", "")
    ends_as_undisturbed(tmp_path, script(body.replace("main()", "")), 27)


def test_a_function_that_trains_and_calls_itself_is_known_beforehand(tmp_path: Path) -> None:
    code = """
loader = DataLoader(data, batch_size=4, shuffle=True)
def train(left):
    for a, b in loader:
        loss = (model(a) - b).square().mean()
        loss.backward(); steps()
    value = loss.item()
    return [value, *train(left - 1)] if left else [value]
train(3)
"""
    stopped(tmp_path, script(code), 4)
    done = stopped(tmp_path, script(code), 15, 2)
    assert done.process.exitcode == 144
    assert "calls itself" in done.report["protectionReason"]


TEMPORARY = """
import tempfile
loader = DataLoader(data, batch_size=4, shuffle=True)
with tempfile.TemporaryDirectory() as folder:
    best = os.path.join(folder, "best.pt")
    torch.save(model.state_dict(), best)
    for epoch in range(3):
        for a, b in loader:
            LEARN
    model.load_state_dict(torch.load(best))
"""
ATOMIC = """
import tempfile
loader = DataLoader(data, batch_size=4, shuffle=True)
last = os.path.join(os.path.dirname(__file__), "last.pt")
for epoch in range(3):
    for a, b in loader:
        LEARN
        handle, name = tempfile.mkstemp(dir=os.path.dirname(last))
        os.close(handle)
        torch.save(model.state_dict(), name)
        os.replace(name, last)
"""


def test_a_temporary_folder_of_the_whole_run_is_known_beforehand(tmp_path: Path) -> None:
    done = stopped(tmp_path, script(TEMPORARY), 14)
    assert done.process.exitcode == 144
    assert done.report["protection"] == "FromBeginning"
    assert "is temporary" in done.report["protectionReason"]


def test_a_temporary_file_that_is_moved_to_its_place(tmp_path: Path) -> None:
    ends_as_undisturbed(tmp_path, script(ATOMIC), 14)


PRODUCER = """
import multiprocessing
def produce(rows):
    for n in range(40): rows.put([n % 40, (n + 7) % 40])
def main():
    context = multiprocessing.get_context("fork")
    rows = context.Queue(4)
    context.Process(target=produce, args=(rows,), daemon=True).start()
    for n in range(30):
        found = rows.get()
        a, b = x[found], y[found]
        LEARN
main()
"""
SKELETON = """
import copy
from torch.func import functional_call, stack_module_state, vmap
models = [nn.Linear(4, 1) for _ in range(3)]
weights, buffers = stack_module_state(models)
skeleton = copy.deepcopy(models[0]).to("meta")
def call(one, other, rows): return functional_call(skeleton, (one, other), (rows,))
optimizer = torch.optim.Adam(weights.values(), lr=0.01)
loader = DataLoader(data, batch_size=4, shuffle=True)
for epoch in range(3):
    for a, b in loader:
        found = vmap(call, in_dims=(0, 0, None))(weights, buffers, a)
        (found - b).square().mean().backward(); steps()
print(weights["weight"].sum().item(), end=" ")
"""


POOL = """
import concurrent.futures, time
seen = []
def work():
    while len(seen) < 400:
        seen.append(len(seen)); time.sleep(0.05)
def main():
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.submit(work)
    for n in range(30):
        a, b = x[n % 40:n % 40 + 4], y[n % 40:n % 40 + 4]
        LEARN
    seen.extend(range(400))
main()
"""
TIMER = """
import threading
seen = []
def main():
    timer = threading.Timer(600, lambda: seen.clear())
    timer.daemon = True
    timer.start()
    for n in range(30):
        a, b = x[n % 40:n % 40 + 4], y[n % 40:n % 40 + 4]
        LEARN
main()
"""


@pytest.mark.parametrize("source", [POOL, TIMER], ids=["pool", "timer"])
def test_a_thread_of_a_library_that_runs_the_scripts_functions_is_seen(
    tmp_path: Path, source: str
) -> None:
    done = stopped(tmp_path, script(source), 14)
    assert done.process.exitcode == 144
    assert "of the script" in done.report["protectionReason"]
    assert "beside it" in done.report["protectionReason"]


def test_a_process_that_was_started_before_is_known_beforehand(tmp_path: Path) -> None:
    done = stopped(tmp_path, script(PRODUCER), 14)
    assert done.process.exitcode == 144
    assert "runs beside it" in done.report["protectionReason"]


def test_a_model_without_memory(tmp_path: Path) -> None:
    ends_as_undisturbed(tmp_path, script(SKELETON), 14)
