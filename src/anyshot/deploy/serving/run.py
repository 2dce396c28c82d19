"""Start the server."""

import socket
from pathlib import Path

import torch

from anyshot.deploy.image_classifier import ImageClassifier
from anyshot.errors import BadInput
from anyshot.models.registry import PACKAGE, Registry

LOCAL = ("127.0.0.1", "localhost", "::1")


def open_classifier(model: str, registry: Registry = PACKAGE) -> ImageClassifier:
    """A saved classifier, or a backbone that has no classes yet: a trained model's folder, or timm:NAME."""
    folder = Path(model)
    if (folder / "backbone.json").is_file():
        return ImageClassifier.load(folder, registry=registry)
    if (folder / "config.json").is_file():
        raise BadInput(f"{folder} is a classifier of features, and the page takes pictures: fit one of pictures.")
    return ImageClassifier(model, registry=registry)


def serve(
    model: str, host: str = "127.0.0.1", port: int = 8000, save: Path | None = None, registry: Registry = PACKAGE
) -> None:
    """Serve until interrupted."""
    try:
        import uvicorn

        from anyshot.deploy.serving.app import LOOPBACK, Shelf, make_app
    except ImportError:
        raise BadInput("serving needs the packages of an extra: pip install 'anyshot[serve]'.") from None
    torch.set_num_threads(1)  # requests run side by side; threads inside one would only wait for each other
    app = make_app(Shelf(open_classifier(model, registry), save), LOOPBACK if host in LOCAL else ("*",))
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise BadInput(f"{host}:{port} cannot be used ({error.strerror}): choose another --port.") from None
        if host not in LOCAL:
            print(f"Everyone who can reach {host} can use and change this classifier.")
        address = f"[{host}]" if ":" in host else host
        print(f"Open http://{address}:{listener.getsockname()[1]} (Ctrl-C ends it).", flush=True)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", timeout_keep_alive=30, h11_max_incomplete_event_size=65536)
        )
        server.run([listener])
