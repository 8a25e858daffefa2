"""Slurm on this machine: a controller and a node, on loopback, in a folder of their own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from actograph.stack.ports import free_port
from tests.support.servers import Unavailable, kept

START_SECONDS = 60.0
_CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
CryptoType=crypto/none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=300
InactiveLimit=0
KillWait=5
MinJobAge=600
SchedulerParameters=batch_sched_delay=0,sched_interval=1,requeue_delay=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


class Slurm:
    """`sbatch`, `squeue`, `scancel` and `scontrol` of a cluster of one node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def create(self) -> None:
        """Start and wait until the node takes jobs. Raises Unavailable."""
        missing = [name for name in ("slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
        if missing or os.geteuid() != 0:
            raise Unavailable("Slurm needs root and Debian's package slurm-wlm")
        for name in ("spool", "state"):
            (self._folder / name).mkdir()
        conf = self._folder / "slurm.conf"
        conf.write_text(
            _CONF.format(
                host=socket.gethostname().partition(".")[0],
                folder=self._folder,
                cpus=os.cpu_count(),
                controller_port=free_port("127.0.0.1"),
                node_port=free_port("127.0.0.1"),
            )
        )
        (self._folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        for program in (["slurmctld", "-D", "-i"], ["slurmd", "-D"]):
            with (self._folder / f"{program[0]}.out").open("wb") as log:
                self._processes.append(
                    subprocess.Popen(
                        kept(program, signal.SIGTERM), env=self.environment, stdout=log, stderr=log
                    )
                )
        deadline = time.monotonic() + START_SECONDS
        while "idle" not in self.run("sinfo", "--noheader", "--format=%T", check=False):
            ended = [one.args for one in self._processes if one.poll() is not None]
            if ended or time.monotonic() > deadline:
                said = "".join(path.read_text(errors="replace")[-800:] for path in self._folder.glob("*.log"))
                said += "".join(
                    path.read_text(errors="replace")[-400:] for path in self._folder.glob("*.out")
                )
                self.remove()
                raise Unavailable(f"Slurm did not start: {said}")
            time.sleep(0.2)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self._folder / "slurm.conf")}

    def run(self, *command: str, check: bool = True, environment: Mapping[str, str] | None = None) -> str:
        """Output of a command of Slurm."""
        done = subprocess.run(
            command,
            env=self.environment | dict(environment or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{command}: {done.stderr}")
        return done.stdout.strip()

    def states(self, job: str) -> dict[str, str]:
        """State of each task of an array, by its number; also of ended ones."""
        found = {}
        for line in self.run(
            "squeue", "--noheader", "--states=all", "--array", "--format=%i %T", f"--job={job}"
        ).splitlines():
            task, state = line.split()
            found[task.rpartition("_")[2]] = state
        return found

    def remove(self) -> None:
        """End jobs and processes."""
        if all(one.poll() is None for one in self._processes):
            self.run("scancel", "--user=root", "--signal=KILL", "--full", check=False)
            self.run("scancel", "--user=root", check=False)
        for process in reversed(self._processes):
            process.terminate()
            process.wait()
        self._processes.clear()
