"""Asks llama.cpp which type each tensor gets; run as a child process, for llama_cpp must stay out of the tests'.

Usage: python llama_oracle.py MODEL.gguf < JSON {name: ftype id}; prints JSON {name: {tensor: type name}}.
"""

from __future__ import annotations

import json
import re
import sys

from llama_cpp import llama_cpp

LINE = re.compile(r"^\[ *\d+/ *\d+\] (\S+) +- \[[^]]*\], type = *(\S+), size = .*?(?:\((\S+)\))?$")


def main() -> None:
    log: list[str] = []

    @llama_cpp.llama_log_callback
    def keep(_level: int, text: bytes, _user: object) -> None:
        log.append(text.decode("utf-8", "replace"))

    llama_cpp.llama_log_set(keep, None)
    answers = {name: ask(sys.argv[1], ftype, log) for name, ftype in json.load(sys.stdin).items()}
    print(json.dumps(answers))


def ask(path: str, ftype: int, log: list[str]) -> dict[str, str]:
    """Tensor name to upper-case type name under one file type, from a dry run's log."""
    log.clear()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.dry_run, params.allow_requantize = ftype, 1, True, True
    status = llama_cpp.llama_model_quantize(path.encode(), b"unused", params)
    if status != 0:
        return {"error": "".join(log[-3:])}
    matches = (LINE.match(line) for line in "".join(log).splitlines())
    return {match[1]: (match[3] or match[2]).upper() for match in matches if match}


if __name__ == "__main__":
    main()
