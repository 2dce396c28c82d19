"""Files of a saved classifier, for tests that change them as a stranger would."""

import json

from anyshot.classify import files

version_of = files.find_current_version


def path_of(folder, name):
    """Return the path of a file of a saved classifier."""
    return folder / name if name == files.CONFIG else version_of(folder) / name


def sign_folder(folder):
    """Set the fingerprints of a folder whose files were changed on purpose, as anyone can."""
    config = json.loads((folder / files.CONFIG).read_text(encoding="utf-8"))
    version = next(folder.glob("version-*"))
    config["files"] = {path.name: files._hash_file(path) for path in version.iterdir()}
    config["fingerprint"] = files._hash_config(config)
    (folder / files.CONFIG).write_text(json.dumps(config), encoding="utf-8")
    version.rename(folder / f"version-{config['fingerprint'][:16]}")
