"""A way to a server on which every request takes a little longer, as to a server on another machine.

python distance.py <port of a server> <seconds> <port of the way>
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def distant(port: int, seconds: float, way: int = 0) -> Iterator[int]:
    """The port of the long way to a port of this machine, any free one if `way` is 0. Answers come at once."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wait: float) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(wait)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(pump(reader, back, seconds), pump(there, writer, 0))

    async def cancel_all() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)  # this thread's own loop may be at work
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(connected, "127.0.0.1", way), loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(cancel_all(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def far_away(port: int, seconds: float, way: int) -> subprocess.Popen[bytes]:
    """The same in a process of its own, which runs until it is killed."""
    return subprocess.Popen([sys.executable, __file__, str(port), str(seconds), str(way)], stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    with distant(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])):
        signal.pause()
