"""Kills `localllm batch`, its service or its engine at random moments, and lets the same command go on.

    uv run python -m tests.battery.kills.kill_batch [--kills 100] [--seed 1]

Told: how many answers each kill left. Fails where an answer is lost, changed or there twice, where a command that was
not killed ends without a cause, or where the last one leaves a request without its answer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from quantizer.system.process import python_command
from tests.battery.tally import finish
from tests.quantizer.gguf_files import tiny_llama

PER_KILL = 40  # requests
VICTIMS = ("command", "service", "engine")


def answers(path: Path) -> dict[str, str]:
    """Return the whole lines by custom id. Raises AssertionError for one that is there twice."""
    found: dict[str, str] = {}
    data = path.read_bytes() if path.exists() else b""
    for line in data[: data.rfind(b"\n") + 1].decode().splitlines():
        custom_id = json.loads(line)["custom_id"]
        assert custom_id not in found, f"{custom_id} is there twice"
        found[custom_id] = line
    return found


def kill(victim: str, command: subprocess.Popen[bytes], url: str) -> None:
    """Kill one of the three, by SIGKILL."""
    if victim == "command":
        command.kill()
        return
    status = httpx.get(f"{url}/api/localllm/status", trust_env=False).json()
    engine = psutil.Process(status["models"][0]["worker_pid"])
    (engine if victim == "engine" else engine.parent()).kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance, faults = random.Random(options.seed), list[str]()
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as free:
        root, port = Path(name), free.getsockname()[1]
        free.close()
        own = {"DATA_DIR": "data", "CACHE_DIR": "cache", "CONFIG": "config.toml", "MODEL": "tiny.gguf"}
        tiny_llama(root / "tiny.gguf")
        environment = {**os.environ, **{f"LOCALLLM_{key}": str(root / place) for key, place in own.items()}}
        environment |= {"LOCALLLM_ENGINE": "fake", "LOCALLLM_PORT": str(port)}
        n_requests = PER_KILL * (options.kills + 1)
        body = {"prompt": "a", "max_tokens": 20, "ignore_eos": True}
        lines = [{"custom_id": str(n), "url": "/v1/completions", "body": body} for n in range(n_requests)]
        (root / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        output, known = root / "in-answers.jsonl", dict[str, str]()
        command = python_command("app.cli.main", "batch", str(root / "in.jsonl"))
        for number in range(options.kills):
            victim, n_wanted = chance.choice(VICTIMS), len(known) + chance.randrange(1, 12)
            with subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            ) as running:
                while running.poll() is None and len(answers(output)) < n_wanted:
                    time.sleep(0.005)
                time.sleep(chance.uniform(0, 0.02))
                if running.poll() is None:
                    kill(victim, running, f"http://127.0.0.1:{port}")
                if victim == "engine":  # it is started again, and the command goes on
                    time.sleep(chance.uniform(0, 0.5))
                    running.kill()
                _, said = running.communicate()
            found = answers(output)
            print(f"kill {number} of the {victim}: {len(found)} answers")
            faults += [f"kill {number}: {each} is lost or changed" for each in known if found.get(each) != known[each]]
            if victim == "service" and b"Go on with:" not in said:
                faults.append(f"kill {number}: the command said {said.decode(errors='replace')!r}")
            known = found
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        ended = answers(output)
        faults += [f"the last command: {done.stderr}"] if done.returncode or len(ended) != n_requests else []
        faults += [f"{each} is lost or changed at the end" for each in known if ended.get(each) != known[each]]
        subprocess.run(python_command("app.cli.main", "stop"), env=environment, capture_output=True)
    for fault in faults:
        print(fault)
    finish(options.kills, len(faults), options.seed)


if __name__ == "__main__":
    main()
