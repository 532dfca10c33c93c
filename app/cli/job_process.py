"""A verb as a job of the service: `python -m app.cli.job_process VERB ...`.

Progress and failure go to stdout as lines of JSON. A line on stdin interrupts the verb like Ctrl-C; the end of stdin
means that the service is gone, and this process exits at once. Partial files survive that, and the verb resumes.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading

from app.cli.main import INTERRUPTED, main
from app.cli.output.format import JobEvents


def _heed_service() -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def heed() -> None:
        while os.read(0, 4096):  # not through sys.stdin: its lock would hang the interpreter's end
            if sys.platform == "win32":
                _thread.interrupt_main()  # a blocking system call is interrupted only afterwards
            else:
                signal.pthread_kill(main_thread, signal.SIGINT)
        os._exit(1)

    threading.Thread(target=heed, name="service-watch", daemon=True).start()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the service ignores it
    try:
        _heed_service()
        main(sys.argv[1:], JobEvents())
    except KeyboardInterrupt:  # it came before `main` could take it, or while that returned
        sys.exit(INTERRUPTED)
