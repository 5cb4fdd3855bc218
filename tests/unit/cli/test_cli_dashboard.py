"""`kubectl gpujob dashboard` starts the dashboard's own program with the same options."""

import argparse
import importlib.util
from pathlib import Path

import pytest

from gpujob_dashboard.__main__ import main, options_of
from kubectl_gpujob.grammar import parser_of, verb_named
from kubectl_gpujob.verbs import dashboard
from tests.harness.cli_jobs import MemoryCluster, run_command


def parsed(*words: str) -> argparse.Namespace:
    return parser_of(verb_named("dashboard"), dashboard).parse_args(list(words))


def test_the_options_are_passed_on() -> None:
    options = parsed("--port", "80", "--no-open", "-n", "a", "--context", "c", "--kubeconfig", "f")
    found = options_of(dashboard.words(options))
    assert (found.port, found.no_open, found.namespace) == (80, True, "a")
    assert (found.context, found.kubeconfig) == ("c", Path("f"))
    assert not found.in_cluster
    assert dashboard.words(parsed()) == ["--port=0"]


def test_a_plugin_without_the_packages_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.util.find_spec

    def found(name: str) -> object:
        return None if name == "jinja2" else known(name)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    ran = run_command(MemoryCluster(), "dashboard")
    assert ran.exit_code == 1
    assert "needs jinja2" in str(ran.exception)
    assert "pip install 'gpujob[dashboard]'" in str(ran.exception)


def test_nobody_but_this_machine_is_served_without_signing_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        options_of(["--address", "0.0.0.0"])
    assert "must be a loopback address" in " ".join(capsys.readouterr().err.split())
    assert options_of(["--address", "0.0.0.0", "--in-cluster"]).in_cluster


def test_outside_of_a_pod_in_cluster_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["--in-cluster"]) == 1
    assert "this is no pod" in capsys.readouterr().err


def test_a_kubeconfig_that_is_not_there_is_an_error_with_kubectls_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--kubeconfig", str(tmp_path / "none"), "-n", "team"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
