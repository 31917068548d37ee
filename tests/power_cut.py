"""A machine whose power is cut after each call of the system, and what its disk holds then."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from killing import MORE_CALLS

from tformer_cli.storage.atomic import MARK


class Disk:
    """What an unplugged disk would hold of a folder, by what its programs have synced.

    A file system may be as lazy as it likes: then the names in a folder are those of its last
    fsync. Or it may be eager: then all names are there. What a file holds is in both cases what it
    held at its own last fsync; of one that was never synced, nothing.
    """

    def __init__(self, root: Path) -> None:
        """Begin with a folder that is on the disk as it is."""
        self.root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        # An inode that is open has a number that no other gets.
        self._open: dict[int, int] = {}
        for folder, _, files in os.walk(root):
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                handle = os.open(path, os.O_RDONLY)
                self.sync(handle)
                os.close(handle)

    def sync(self, handle: int) -> None:
        """Do as fsync does."""
        inode = self._known(os.open(f"/proc/self/fd/{handle}", os.O_RDONLY))
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            self._names[inode] = {
                name: (
                    self._known(os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=handle)),
                    os.path.isdir(f"/proc/self/fd/{handle}/{name}"),
                )
                for name in os.listdir(handle)
            }
        else:
            self._contents[inode] = Path(f"/proc/self/fd/{handle}").read_bytes()

    def lazy(self, to: Path) -> None:
        """Write what is there after a power cut if only what was synced is."""
        self._write(self.root.stat().st_ino, to)

    def eager(self, to: Path) -> None:
        """Write what is there after a power cut if all names are."""
        for folder, folders, files in os.walk(self.root):
            copy = to / Path(folder).relative_to(self.root)
            copy.mkdir(exist_ok=True)
            for name in files:
                inode = os.stat(os.path.join(folder, name)).st_ino
                (copy / name).write_bytes(self._contents.get(inode, b""))
            assert not any(os.path.islink(os.path.join(folder, name)) for name in folders + files)

    def close(self) -> None:
        """Let go of everything."""
        for handle in self._open.values():
            os.close(handle)

    def _known(self, handle: int) -> int:
        inode = os.fstat(handle).st_ino
        if self._open.setdefault(inode, handle) != handle:
            os.close(handle)
        return inode

    def _write(self, inode: int, to: Path) -> None:
        to.mkdir(exist_ok=True)
        for name, (child, is_folder) in self._names.get(inode, {}).items():
            if is_folder:
                self._write(child, to / name)
            else:
                (to / name).write_bytes(self._contents.get(child, b""))


def _state(folder: Path) -> object:
    """Return what is in a folder, staging directories by names without what is random in them."""
    return frozenset(
        (
            re.sub(rf"(?<={re.escape(MARK)})\w+", "", str(path.relative_to(folder))),
            None if path.is_dir() else path.read_bytes(),
        )
        for path in folder.rglob("*")
    )


def cut_at_every_call(
    deed: Callable[[], object],
    root: Path,
    check: Callable[[Path], object],
    monkeypatch: pytest.MonkeyPatch,
) -> list[object]:
    """Do it, and look at what a power cut leaves of a folder after each call of the system.

    Args:
        deed: writes into the folder.
        root: the folder; what is in it before is on the disk.
        check: is given a folder as a power cut would leave it, to be changed at will.
        monkeypatch: of pytest.

    Returns:
        What the check returns at the very end, for a lazy file system and an eager one.
    """
    disk, scratch = Disk(root), root.with_name(f"{root.name} after a power cut")
    known: dict[object, object] = {}

    def checked() -> list[object]:
        results = []
        for leave in (disk.lazy, disk.eager):
            scratch.mkdir()
            leave(scratch)
            state = _state(scratch)
            if state not in known:
                known[state] = check(scratch)
            results.append(known[state])
            shutil.rmtree(scratch)
        return results

    is_watched = True

    def watched(call: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **options: object) -> object:
            nonlocal is_watched
            result = call(*arguments, **options)
            if is_watched:
                is_watched = False
                if call is fsync:
                    disk.sync(arguments[0])
                checked()
                is_watched = True
            return result

        return called

    fsync = os.fsync
    with monkeypatch.context() as patched:
        for name in MORE_CALLS:
            patched.setattr(os, name, watched(getattr(os, name)))
        deed()
    results = checked()
    disk.close()
    return results
