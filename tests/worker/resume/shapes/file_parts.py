"""What scripts write: logs, metrics, weights, and checkpoints of their own."""

from tests.worker.resume.shapes.script import Part, Script


def csv_append(script: Script) -> None:
    script.appends.add("log.csv")
    script.epoch_end += [
        'with open("log.csv", "a", newline="") as file:',
        "    csv.writer(file).writerow([epoch, $step, loss.item()])",
    ]


def csv_handle(script: Script) -> None:
    script.setup += [
        '$steps_file = open("steps.csv", "w", newline="")',
        "$writer = csv.writer($steps_file)",
        '$writer.writerow(["step", "loss"])',
    ]
    script.batch_end.append("$writer.writerow([$step, loss.item()])")
    if script.chance(0.5):
        script.epoch_end.append("$steps_file.flush()")
    if script.chance(0.7):
        script.finish.append("$steps_file.close()")


def text_around(script: Script) -> None:
    """One handle, open in a `with` around the whole training."""
    script.around = 'with open("run.txt", "w") as $out:'
    script.epoch_end.append('$out.write(f"{epoch} {$step} {loss.item()}\\n")')


def json_lines(script: Script) -> None:
    script.appends.add("log.jsonl")
    script.epoch_end += [
        'with open("log.jsonl", "a") as file:',
        '    file.write(json.dumps({"epoch": epoch, "step": $step, "loss": loss.item()}) + "\\n")',
    ]


def numpy_file(script: Script) -> None:
    script.epoch_end.append('np.save(f"pred-{epoch}.npy", pred.detach().numpy())')


def logging_file(script: Script) -> None:
    script.appends.add("train.log")
    script.top.append('log = logging.getLogger("train")')
    script.data += [
        "log.setLevel(logging.INFO)",
        'log.addHandler(logging.FileHandler("train.log"))',
        'log.info("begins")',
    ]
    script.epoch_end.append('log.info("epoch %d step %d loss %.6f", epoch, $step, loss.item())')


def json_history(script: Script) -> None:
    """One file that is written anew after each epoch."""
    script.setup.append('$record = {"epochs": []}')
    script.epoch_end += [
        '$record["epochs"].append({"epoch": epoch, "loss": loss.item()})',
        'with open("history.json", "w") as file:',
        "    json.dump($record, file)",
    ]


def weights_each_epoch(script: Script) -> None:
    script.epoch_end.append(f'torch.save(dict({script.tensors}), f"weights-{{epoch}}.pt")')


def last_checkpoint(script: Script) -> None:
    """A checkpoint of the script's own, from which it goes on if there is one."""
    if not script.is_module or script.parameters == "$masters":
        return
    script.resumes_itself = script.one_of("last.pt", {"resumes": 1, "is written": 1}) == "resumes"
    script.epoch_end += [
        'torch.save({"model": $model.state_dict(), "optimizer": $optimizer.state_dict(),',
        '            "epoch": epoch, "step": $step}, "last.pt")',
    ]
    if script.resumes_itself:
        script.setup += [
            'if os.path.exists("last.pt"):',
            '    saved = torch.load("last.pt")',
            '    $model.load_state_dict(saved["model"])',
            '    $optimizer.load_state_dict(saved["optimizer"])',
            '    $start, $step = saved["epoch"] + 1, saved["step"]',
            '    print("goes on from", $start)',
        ]


PARTS: dict[str, tuple[float, Part]] = {
    "csv append": (0.15, csv_append),
    "csv handle": (0.12, csv_handle),
    "text around": (0.06, text_around),
    "json lines": (0.12, json_lines),
    "numpy file": (0.1, numpy_file),
    "logging file": (0.12, logging_file),
    "json history": (0.12, json_history),
    "weights each epoch": (0.15, weights_each_epoch),
    "last checkpoint": (0.12, last_checkpoint),
}
