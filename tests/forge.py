"""Commands in processes of their own that start in milliseconds: forks of one that has imported everything, and that a test may kill."""

import importlib
import json
import os
import resource
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path


class Forge:
    """Talks to the process that forks."""

    def __init__(self, process):
        self.process = process

    def start(self, arguments, output, *, largest=None, environment=None, first=None):
        """Begin `mixsage ARGUMENTS` and give its process id; what it says goes into the file ``output``.

        With ``largest``, no file can grow beyond so many bytes. ``first`` is a function to be called before, as ("module:name", argument).
        """
        return self._ask(
            {
                "arguments": list(map(str, arguments)),
                "output": str(output),
                "largest": largest,
                "environment": environment or {},
                "first": first,
            }
        )

    def wait(self, pid):
        """Its exit status, or minus the signal that it died of; and the seconds that it had a processor."""
        return self._ask({"wait": pid})

    def run(self, arguments, output, **options):
        """Begin it, and wait."""
        return self.wait(self.start(arguments, output, **options))

    def start_two(self, arguments, output, first=None):
        """Begin it in two processes that work together, as Fabric starts them."""
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0", "WORLD_SIZE": "2"}
        return [self.start(arguments, output, environment={**common, "LOCAL_RANK": str(rank)}, first=first) for rank in range(2)]

    @staticmethod
    def seconds(pid):
        """The seconds that a running process has had a processor: how far it is, however busy the machine."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _ask(self, question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def forge():
    """A process that forks, for as long as the context lasts."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield Forge(process)
        finally:
            process.stdin.close()


def serve():
    """Fork for every question; what a process imports before it forks must start no threads."""
    from mixsage import cli

    cli._import_fabric()
    for name in ("tensorboard.compat", "torchvision.utils", "tyro", "torch.nn.parallel", "mixsage.training"):
        importlib.import_module(name)
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            _, status, used = os.wait4(question["wait"], 0)
            answer = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        else:
            answer = os.fork()
            if not answer:
                become(cli, **question)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def become(cli, arguments, output, largest, environment, first):
    """The command, in this fork."""
    status = 1
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.argv[1:] = arguments
        os.environ |= environment
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        if first is not None:
            module, _, name = first[0].partition(":")
            getattr(importlib.import_module(module), name)(first[1])
        status = cli.main(arguments)
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # noqa: BLE001  # it ends here: the fork must not go on as the process that forks
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
