"""An upstream with eight workers: each takes 50 ms for a request, first come, first served."""

import asyncio
import sys

WORKERS = 8
SERVICE_S = 0.05
REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def main(port):
    free = asyncio.Semaphore(WORKERS)

    async def serve(reader, writer):
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                async with free:
                    await asyncio.sleep(SERVICE_S)
                writer.write(REPLY)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


asyncio.run(main(int(sys.argv[1])))
