"""What `nbcomm kernel` puts where Jupyter looks, and what it leaves alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from nbcomm import cli
from nbcomm.errors import SteeringError
from nbcomm.kernel import spec


def listed(prefix: Path) -> KernelSpecManager:
    return KernelSpecManager(kernel_dirs=[str(prefix / "share/jupyter/kernels")], ensure_native_kernel=False)


def test_it_is_installed_listed_replaced_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--prefix", str(tmp_path)]
    assert cli.main(["kernel", "install", *where]) == 0
    kernel = listed(tmp_path).get_kernel_spec("nbcomm")
    assert kernel.argv == [sys.executable, "-m", "nbcomm.kernel", "-f", "{connection_file}"]
    assert kernel.env == {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    assert (kernel.display_name, kernel.language) == ("PyTorch distributed (nbcomm)", "python")
    assert kernel.interrupt_mode == "signal"
    assert Path(kernel.resource_dir, "logo-svg.svg").read_text().startswith("<svg")
    assert cli.main(["kernel", "install", "-n", "8", "--device", "cpu", *where]) == 0
    kernel = listed(tmp_path).get_kernel_spec("nbcomm")
    assert kernel.argv[-4:] == ["-n", "8", "--device", "cpu"]
    assert kernel.display_name == "PyTorch distributed, 8 ranks (nbcomm)"
    assert "Installed in" in capsys.readouterr().out
    assert cli.main(["kernel", "remove", *where]) == 0
    assert f"Removed {kernel.resource_dir}." in capsys.readouterr().out
    assert not listed(tmp_path).find_kernel_specs()
    assert list((tmp_path / "share/jupyter/kernels").iterdir()) == []


def test_two_names_are_two_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share/jupyter"))
    for name, n in (("Two", "2"), ("eight", "8")):
        assert cli.main(["kernel", "install", "--prefix", str(tmp_path), "--name", name, "-n", n]) == 0
    assert set(listed(tmp_path).find_kernel_specs()) == {"two", "eight"}
    assert cli.main(["kernel", "remove", "--name", "TWO"]) == 0  # wherever Jupyter finds it
    assert set(listed(tmp_path).find_kernel_specs()) == {"eight"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["install", "-n", "0"], "at least 1 rank"),
        (["install", "--name", ".."], "'..' is not a valid kernel name"),
        (["install", "--name", "a b"], "'a b' is not a valid kernel name"),
        (["install", "--name", "theirs"], "is not nbcomm's"),
        (["remove", "--name", "theirs"], "is not nbcomm's"),
        (["remove", "--name", "nowhere"], "no kernel 'nowhere'"),
    ],
)
def test_a_refusal_is_a_sentence_and_changes_nothing(
    tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "share/jupyter/kernels/theirs/kernel.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text(json.dumps({"argv": ["other"], "display_name": "Other", "language": "python"}))
    assert cli.main(["kernel", *arguments, "--prefix", str(tmp_path)]) == 1
    assert said in capsys.readouterr().err
    assert [path.name for path in theirs.parents[1].iterdir()] == ["theirs"]
    assert "other" in theirs.read_text()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SteeringError, match="could not be written to"):
        spec.install(tmp_path / "file" / "kernels")


def test_where_kernels_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "mine"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert spec.kernels_of() == tmp_path / "share/jupyter/kernels", "a virtual environment has its own"
    assert spec.kernels_of(user=True) == tmp_path / "mine/kernels"
    assert spec.kernels_of(str(tmp_path / "it")) == tmp_path / "it/share/jupyter/kernels"
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    assert spec.kernels_of() == tmp_path / "mine/kernels"
    (tmp_path / "conda-meta").mkdir()
    assert spec.kernels_of() == tmp_path / "share/jupyter/kernels"


def test_an_action_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["kernel"])
    assert "ACTION" in capsys.readouterr().err
