"""What a job's pod is, and what the worker in it does with the settings that it gets."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gpujob_api.gpujob import GPUJob
from gpujob_api.report import WorkerPhase
from gpujob_operator.decide.lifecycle.settings import settings_for
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.render.pod import worker_pod
from gpujob_worker.control.inference import CALLS_TO_RECOGNISE, Inference
from gpujob_worker.control.own_work import OwnWork
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.launch.resume_flags import adapt_resume
from gpujob_worker.resume.gradient_accumulation import SplitStep
from gpujob_worker.resume.training_job import Job
from gpujob_worker.run.environment import Environment, read_environment
from gpujob_worker.run.safety_net import SafetyNet
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.data_loader_policy import LoaderPolicy
from gpujob_worker.tune.tuner import Tuner
from tests.harness.blocks import Model, root_and_call
from tests.harness.builders import placed

STEPS = 6


def pod(job: GPUJob) -> Any:
    job = placed(job)
    configuration = Configuration(report_url="http://operator:8080/report")
    return worker_pod(CreatePod(job, 0, settings_for(job, None)), configuration)


def environment(job: GPUJob) -> Environment:
    """As the worker reads it from the variables of its pod."""
    (worker,) = (one for one in pod(job)["spec"]["containers"] if one["name"] == "worker")
    return read_environment({e["name"]: e["value"] for e in worker["env"] if "value" in e})


def _session(job: GPUJob, folder: str | None = None) -> Session:
    there = environment(job)
    directory = Path(folder) if folder is not None else None
    return Session(Environment(there.settings, checkpoint_directory=directory))


def optimizes(job: GPUJob) -> object:
    return _session(job).optimizes


def watches_calls(job: GPUJob) -> object:
    """Whether calls of a model without an optimizer are steps."""
    session = _session(job)
    model = TrainedModel(session, ScriptFacts())
    watch = Inference(
        session,
        model,
        SafetyNet(session.log),
        OwnWork(),
        call_failed=print,
        stepped=lambda: None,
        trained=lambda: None,
        adopt=print,
    )
    watch.start()
    net = torch.nn.Linear(4, 1).eval()
    for _ in range(CALLS_TO_RECOGNISE):
        net(torch.ones(1, 4))
    watch.stop()
    return watch.recognised


def _tuner(session: Session) -> Tuner:
    return Tuner(session.environment.settings, session.features, session.log, 0.0)


def precision(job: GPUJob) -> object:
    session = _session(job)
    _tuner(session).speed_items(*root_and_call(Model())).choose("precision")
    return session.log.lines


def activation_checkpointing(job: GPUJob) -> object:
    session = _session(job)
    return _tuner(session).activation_checkpointing(*root_and_call(Model()), "")


def compilation(job: GPUJob) -> object:
    """Why nothing is compiled: it would take long, and the command line says no."""
    session = _session(job)
    session.switch_off(["compile"])
    _tuner(session).compile(*root_and_call(Model()))
    return session.log.lines


def data_loading(job: GPUJob) -> object:
    session = _session(job)
    LoaderPolicy(session).decide(Applied())
    return session.log.lines


def split_step(job: GPUJob) -> object:
    """The sizes of the pieces in which a batch of 8 goes through, and what is said of it."""
    session, model = _session(job), torch.nn.Linear(4, 1)
    optimizer, rows = torch.optim.SGD(model.parameters()), list[int]()

    def loss_of(piece: Any) -> torch.Tensor:
        rows.append(len(piece))
        return model(piece).mean()

    SplitStep(session, model, optimizer, "mean", None).step(torch.ones(8, 4), loss_of)
    return rows, session.log.lines


def _training(session: Session) -> Job:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters())
    return Job(session, {"model": model}, None, SplitStep(session, model, optimizer, "mean", None))


def checkpoints(job: GPUJob) -> object:
    """The steps of which checkpoints are left when every step was saved."""
    with tempfile.TemporaryDirectory() as folder:
        session = _session(job, folder)
        settings = replace(session.environment.settings, checkpoint_interval_seconds=0)
        session = Session(replace(session.environment, settings=settings))
        session.state.enter(WorkerPhase.TRAINING)
        training = _training(session)
        for _ in range(STEPS):
            session.meter.steps += 1
            training.safe_point()
            assert training._checkpointer.wait(60.0)
        return sorted(path.name for path in Path(folder).glob("step-*"))


def interval_seconds(job: GPUJob) -> object:
    """How long training goes on before the first checkpoint is due."""
    with tempfile.TemporaryDirectory() as folder:
        return _training(_session(job, folder))._checkpointer._interval_seconds()


def resume_arguments(job: GPUJob) -> object:
    """The arguments with which a script is started that has saved in `saved/last.pt`."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "saved" / "last.pt"
        saved.parent.mkdir()
        torch.save({}, saved)
        session = _session(job)
        settings, said = session.environment.settings, session.log
        given = adapt_resume("train.py", ["--lr", "1"], settings, Path(folder), said)
        return [text.replace(folder, "") for text in given]
