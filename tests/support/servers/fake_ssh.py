"""A stand-in for `ssh` whose box is a folder: `python fake_ssh.py FOLDER SSH_ARGUMENTS`.

FOLDER/home is the user's home there, and commands run as processes of this machine. FOLDER/commands has all
command lines that other users of a real box could see. The host `nowhere` does not answer.
"""

import os
import signal
import socket
import sys
import threading
from pathlib import Path


def main(folder: Path, words: list[str]) -> None:
    options: dict[str, str] = {}
    flags = []
    while words[0].startswith("-"):
        word = words.pop(0)
        if word in ("-S", "-p", "-o", "-O", "-L"):
            options[word] = words.pop(0)
        else:
            flags.append(word)
    host, command = words[0], " ".join(words[1:])
    connection = Path(options["-S"])
    if host.endswith("nowhere"):
        sys.stderr.write("ssh: Could not resolve hostname nowhere\n")
        sys.exit(255)
    if "-M" in flags:
        connection.touch()
    elif options.get("-O") == "forward":
        local, remote = (int(part) for part in options["-L"].split(":")[1::2])
        with connection.open("a") as file:
            file.write(f"{_relay(local, remote)}\n")
    elif options.get("-O") == "exit":
        for pid in connection.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        connection.unlink()
    elif "-O" not in options:
        with (folder / "commands").open("a") as file:
            file.write(f"{command}\n")
        _run(folder, command)


def _run(folder: Path, command: str) -> None:
    """Become the login shell, which knows nothing of the variables of this process."""
    home = folder / "home"
    os.chdir(home)
    path = os.pathsep.join([str(folder / "bin"), "/usr/local/bin", "/usr/bin", "/bin"])
    # not there: a developer's own systemd must not get units of tests
    runtime = str(folder / "no-runtime")
    variables = {"HOME": str(home), "PATH": path, "XDG_RUNTIME_DIR": runtime, "SSH_CONNECTION": "here"}
    os.execve("/bin/sh", ["sh", "-c", command], variables)


def _relay(local: int, remote: int) -> int:
    """Forward a port in a process of its own. Returns its pid."""
    server = socket.create_server(("127.0.0.1", local))
    if pid := os.fork():
        return pid
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    while True:
        near, _ = server.accept()
        far = socket.create_connection(("127.0.0.1", remote))
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # the other side is gone
        pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
