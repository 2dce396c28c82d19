"""Start the server."""

import secrets
import socket
from pathlib import Path

import torch

from anyshot.classify.files import check_destination, is_classifier
from anyshot.classify.images import ImageClassifier, load_classifier
from anyshot.errors import BadInput, as_bad_input
from anyshot.models.registry import BUILTIN, Registry

LOCAL = ("127.0.0.1", "localhost", "::1")


def open_classifier(model: str, registry: Registry = BUILTIN) -> ImageClassifier:
    """Return a saved classifier, or one without classes on a backbone (a trained model's folder, timm:NAME, ...)."""
    folder = Path(model)
    if not is_classifier(folder):
        return ImageClassifier(model, registry=registry)
    classifier = load_classifier(folder, registry)
    if not isinstance(classifier, ImageClassifier):
        raise BadInput(f"{folder} is a classifier of features, and the page takes pictures: fit one of pictures.")
    return classifier


def serve(
    model: str, host: str = "127.0.0.1", port: int = 8000, save: Path | None = None, registry: Registry = BUILTIN
) -> None:
    """Serve a classifier on a local web page and over HTTP until interrupted.

    Args:
        model: Folder of a classifier, or a backbone.
        host: Address to listen on; beyond loopback clients need the token of the printed address.
        port: Port to listen on; 0 for any free one.
        save: Folder that the page's Save button writes to.
        registry: Heads and backbones by name.
    """
    with as_bad_input(ImportError, "serving needs the packages of an extra: pip install 'anyshot[serve]'."):
        import uvicorn

        from anyshot.serve.app import LOOPBACK, make_app
        from anyshot.serve.state import ServedClassifier
    torch.set_num_threads(1)  # Requests run in parallel; threads inside one would only wait for each other.
    if not 0 <= port < 1 << 16:
        raise BadInput(f"a port is a number from 0 to 65535, not {port}.")
    if save is not None:
        check_destination(save)
    token = "" if host in LOCAL else secrets.token_urlsafe(16)
    app = make_app(
        ServedClassifier(open_classifier(model, registry), save), LOOPBACK if host in LOCAL else ("*",), token
    )
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or "no such address"
            raise BadInput(f"{host}:{port} is not available ({why}): choose another --port or --host.") from None
        if token:
            print(f"Everyone who has the address with its token and can reach {host} can change this classifier.")
        address = f"[{host}]" if ":" in host else host
        more = f"/?token={token}" if token else ""
        print(f"Open http://{address}:{listener.getsockname()[1]}{more} (Ctrl-C ends it).", flush=True)
        config = uvicorn.Config(app, http="h11", ws="none", log_level="error")
        uvicorn.Server(config).run([listener])
