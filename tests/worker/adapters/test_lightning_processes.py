"""Lightning starts its other processes itself, within `fit`: all do the same, or nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpujob_worker.adapters.lightning import launch_refusal

pytestmark = [pytest.mark.timeout(400), pytest.mark.trainers]

SCRIPT = """
import sys, torch, warnings
warnings.simplefilter("ignore")
import pytorch_lightning as lightning
from torch import nn
torch.set_num_threads(1)
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__(); self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    def forward(self, x): return self.net(x)
    def training_step(self, batch, index):
        out = self(batch[0]) if sys.argv[1] == "itself" else self.net(batch[0])
        return nn.functional.cross_entropy(out, batch[1])
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters(), 1e-3)
if __name__ == "__main__":
    lightning.seed_everything(0); module = Module()
    data = torch.utils.data.TensorDataset(torch.randn(512, 32), torch.randint(4, (512,)))
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=14,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False)
    trainer.fit(module, torch.utils.data.DataLoader(data, 16, shuffle=True))
    fused = trainer.optimizers[0].param_groups[0]["fused"]
    values = torch.cat([p.detach().flatten() for p in module.parameters()]).tolist()
    print(f"rank {trainer.global_rank} {trainer.precision} {fused} {values}\\n", end="", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "called"), [("Auto", "itself"), ("bfloat16", "part")])
def test_replicas_of_lightning_stay_alike(precision: str, called: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    own = [sys.executable, "-m", "gpujob_worker", "--explain", "--tuning-seconds", "2", "--"]
    done = subprocess.run(
        [*own, "python", "train.py", called],
        cwd=tmp_path,
        env={
            **os.environ,
            "GPUJOB_SETTINGS": json.dumps({"precision": precision}),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 2) for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert sorted(line[1] for line in lines) == ["0", "1"]
    assert lines[0][2] == lines[1][2], "the replicas drifted apart"
    assert lines[0][2].startswith("32-true ")
    assert done.stderr.count("2 processes decided together") == 2
    assert "is left as it is" not in done.stderr
    if precision == "bfloat16":
        assert done.stderr.count("gpujob: precision applied: ") == 2
        why = "bf16-mixed: Lightning starts 2 processes, which cannot agree before they are there"
        assert done.stderr.count(f"lightning precision skipped: {why}") == 2


class Trainer:
    num_devices, num_nodes = 2, 1


def test_a_process_that_was_launched_follows_the_same_settings_as_the_others() -> None:
    launched = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    assert launch_refusal(Trainer(), launched) is None
    assert launch_refusal(object(), {}) is None
    assert "starts 2 processes" in (launch_refusal(Trainer(), {}) or "")
    # What Lightning itself gives its other processes.
    own = {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"}
    assert "starts 2 processes" in (launch_refusal(Trainer(), own) or "")
