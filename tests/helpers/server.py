"""A server in a thread, its client, and what it is asked."""

import contextlib
import io
import shutil
import threading
import time

import numpy as np
import uvicorn
from PIL import Image

from anyshot.serve.app import make_app

JPEG = {"Content-Type": "image/jpeg"}


def picture(channel, seed=0, size=(40, 50), form="PNG"):
    rng = np.random.default_rng([channel, seed])
    pixels = rng.integers(0, 90, (*size, 3))
    pixels[..., channel] += 120
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, form)
    return out.getvalue()


@contextlib.contextmanager
def serving(served):
    """A server in a thread; its address and its served."""
    running = uvicorn.Server(uvicorn.Config(make_app(served), port=0, log_level="error", ws="none", http="h11"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}", served
    running.should_exit = True
    thread.join()


def add(client, name, image, **headers):
    return client.post("/api/classes/examples", params={"name": name}, content=image, headers={**JPEG, **headers})


BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

QUIET = "--no-sandbox --disable-gpu --use-fake-ui-for-media-stream --use-fake-device-for-media-stream"
