"""The private directory of a world."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from nbcomm.errors import StartError
from nbcomm.world_dir import LARGEST_FILE, NUMBERS, WorldDir, private_file, tail, telling_of_room
from nbcomm.world_info import LinkInfo


@pytest.fixture(autouse=True)
def short_temporary_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Give each test a parent directory of its own, short enough for sockets, once pytest has made its own."""
    with tempfile.TemporaryDirectory(prefix="nb") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
        for home in WorldDir.all():
            home.remove()  # part of it is in shared memory


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_can_enter_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        home = WorldDir.create()
        home.write_link(LinkInfo("ipc://x", "a", "b", "c"))
    finally:
        os.umask(before)
    assert [_mode(path) for path in (home.path.parent, home.path, home.profile)] == [0o700] * 3
    assert _mode(home.link_file) == 0o600
    assert home.read_link() == LinkInfo("ipc://x", "a", "b", "c")


def test_one_process_holds_a_world_until_it_lets_go() -> None:
    home = WorldDir.create()
    assert home.hold()
    assert home.holder() == os.getpid()
    other = WorldDir(home.path)
    assert not other.hold()
    home.let_go()
    home.let_go()  # twice is no error
    assert other.hold()
    other.let_go()


@pytest.mark.ranks
def test_a_claim_ends_with_its_process_and_not_with_a_fork_of_it() -> None:
    home = WorldDir.create()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, b"y" if home.hold() else b"n")
        signal.pause()
    assert os.read(reading, 1) == b"y"
    assert not home.hold()
    assert home.holder() == pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert home.hold()
    child = os.fork()
    if child == 0:
        os.write(writing, b"c")  # it has let go of what it inherited
        signal.pause()
    assert os.read(reading, 1) == b"c"
    home.let_go()
    try:
        assert WorldDir(home.path).hold()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_each_notebook_has_a_larger_session_id_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    home = WorldDir.create()
    first = home.next_session_id()
    monkeypatch.setattr("time.time_ns", lambda: 5)  # it was set back
    second = home.next_session_id()
    assert second > first
    (home.path / "session_id").write_text("nonsense")
    assert home.next_session_id() == 5


def test_no_notebook_has_a_number_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon takes an order with a number that it knows for one that it has obeyed."""
    home = WorldDir.create()
    present = time.time_ns()
    firsts = []
    for now in (present, present - 10**12, present, present + 5, 5):  # the clock is set back, and forth
        monkeypatch.setattr("time.time_ns", lambda now=now: now)
        firsts.append(home.next_session_id())
    assert all(later - earlier >= NUMBERS for earlier, later in itertools.pairwise(firsts))
    assert NUMBERS > 10 * 365 * 86400 * 1000, "a thousand orders a second, for ten years"
    assert firsts[0] + 1_000_000 * NUMBERS < 1 << 63, "as many notebooks, and no number is too large for a message"


def test_a_session_id_is_had_without_room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    home = WorldDir.create()
    first = home.next_session_id()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nbcomm.world_dir.private_file", full)
    assert home.next_session_id() > first


def test_who_holds_a_world_is_written_without_further_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    home = WorldDir.create()
    (home.path / "holder").write_text("4194303")
    monkeypatch.setattr(os, "ftruncate", full)
    assert home.hold()
    assert home.holder() == os.getpid()
    home.let_go()


def test_a_file_that_cannot_be_written_to_its_end_is_as_before_and_takes_no_room(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"before")

    def write() -> None:
        with private_file(file) as half:
            half.write(b"half a fi")
            half.flush()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left") as caught:
        write()
    assert caught.value.filename == os.fspath(file)
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


def test_the_lease_is_a_minute_until_it_is_written_down() -> None:
    home = WorldDir.create()
    assert home.read_lease() == 60.0
    home.write_lease(3.5)
    assert home.read_lease() == 3.5


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_without_room_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    home = WorldDir.create()

    def full(descriptor: int, *_: object) -> None:
        os.close(descriptor)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(StartError) as caught, telling_of_room():
        home.check_room()
    assert str(caught.value) == (
        f"There is no room for the files of a world in {tempfile.gettempdir()} ({os.strerror(number)}); free some "
        "space, or set TMPDIR to a directory on another disk before you start Jupyter."
    )


def test_where_there_is_no_room_is_told_for_each_file(tmp_path: Path) -> None:
    home = WorldDir.create()
    for file, place in ((home.world_file, tempfile.gettempdir()), (tmp_path / "token", tmp_path)):
        with pytest.raises(StartError, match=f"in {place} \\(No space"), telling_of_room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(file))


def test_where_no_directory_for_temporary_files_is_left_worlds_are_found_and_none_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = WorldDir.create("first")
    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())

    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "gettempdir", none)
        assert [found.path for found in WorldDir.all()] == [home.path]
        assert WorldDir.named("first").path == home.path
        with pytest.raises(StartError, match=r"found in \['/tmp', '/var/tmp'\]: each is full, or cannot be"):
            WorldDir.create("second")


def test_what_is_no_want_of_room_is_told_as_it_is() -> None:
    with pytest.raises(FileNotFoundError), telling_of_room():
        Path("/nowhere/at/all").read_text()


def test_a_page_of_the_board_is_not_larger_than_what_is_asked_for() -> None:
    from nbcomm.board_pages import PAGE

    assert PAGE <= LARGEST_FILE


def test_looking_for_room_leaves_nothing() -> None:
    home = WorldDir.create()
    before = sorted(home.path.rglob("*"))
    home.check_room()
    assert sorted(home.path.rglob("*")) == before


def test_each_world_has_its_own_and_removing_leaves_nothing() -> None:
    first, second = WorldDir.create(), WorldDir.create()
    assert first.id != second.id
    first.remove()
    assert second.path.exists()
    second.remove()
    second.remove()
    assert not second.path.parent.exists()


def test_a_world_may_begin_while_another_ends() -> None:
    def come_and_go() -> None:
        for _ in range(200):
            WorldDir.create().remove()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(come_and_go) for _ in range(4)]:
            done.result(60)
    assert not list(Path(tempfile.gettempdir()).glob("nbcomm-*"))


def test_a_directory_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(WorldDir.create().bulk)  # only the parent matters
    mine = os.getuid()
    parent = Path(tempfile.gettempdir()) / f"nbcomm-{mine}"
    parent.rename(parent.with_name(f"nbcomm-{mine + 1}"))
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    with pytest.raises(StartError, match="another user"):
        WorldDir.create()


def test_a_planted_link_is_refused(tmp_path: Path) -> None:
    (Path(tempfile.gettempdir()) / f"nbcomm-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(StartError, match="another user"):
        WorldDir.create()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_refused() -> None:
    (Path(tempfile.gettempdir()) / f"nbcomm-{os.getuid()}").touch()
    with pytest.raises(StartError, match="remove it"):
        WorldDir.create()


def test_a_path_too_long_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(StartError, match="shorter path"):
        WorldDir.create()


def test_a_private_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with suppress(OSError), private_file(target) as file:
        file.write(b"half")
        raise OSError("no space")
    assert not target.exists()
    with private_file(target) as file:
        file.write(b"whole")
    assert (target.read_bytes(), _mode(target)) == (b"whole", 0o600)


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_text("\n".join(str(i) for i in range(100)) + "\n\n")
    assert tail(log, 3) == "97\n98\n99"


def test_a_huge_log_is_read_from_its_end_and_a_huge_line_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n" + "x" * (1 << 20) + "\nlast\n")
    cut, last = tail(log, 2).splitlines()
    assert (len(cut), last) == (4096, "last")
    assert tail(log, 1) == "last"


def test_a_path_that_is_too_long_is_told_with_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python looks at TMPDIR once: to set it in a running kernel changes nothing."""
    (long := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(StartError, match="set TMPDIR to a shorter path, such as /tmp, before you start Jupyter"):
        WorldDir.create()


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="nb", dir="/tmp") as folder:
        yield Path(folder)


def test_worlds_are_found_where_the_usual_directory_is_full(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, other = short / "usual", short / "other"
    for place in (usual, other):
        place.mkdir()
    monkeypatch.setenv("TMPDIR", str(usual))
    monkeypatch.setattr(tempfile, "tempdir", str(usual))
    first = WorldDir.create("first")
    monkeypatch.setattr(tempfile, "tempdir", str(other))  # as Python chooses it in a process that begins now
    second = WorldDir.create("second")
    try:
        assert [home.path for home in WorldDir.all()] == [first.path, second.path]
        assert WorldDir.named("first").path == first.path
        assert WorldDir.named("second").path == second.path
        assert WorldDir.named("none").path == other / first.path.parent.name / "none"
    finally:
        first.remove()
        second.remove()
