"""Fetch a model's configuration from the Hugging Face hub: that one small file, never weights or code."""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
from pathlib import Path

from autotune.errors import InputError

PATIENCE = 5.0
"""Seconds to wait for the hub before going on with what an earlier download left in the cache."""


def fetch_config(name: str) -> Path:
    """Return the local copy of `name`'s config.json, downloading it if the hub can be reached.

    Raises InputError when the model does not exist, is not open to this user, holds no config.json, or
    when there is neither a network nor an earlier copy.
    """
    # Imported here: it takes a third of a second, and most runs need no hub.
    from huggingface_hub import constants, errors, hf_hub_download

    online = not constants.HF_HUB_OFFLINE and _reachable(constants.ENDPOINT)
    try:
        return Path(hf_hub_download(name, "config.json", etag_timeout=PATIENCE, local_files_only=not online))
    except errors.HFValidationError:
        raise InputError(f"{name!r} is not a model's name on the hub, which is owner/name") from None
    except errors.GatedRepoError:
        raise InputError(
            f"model {name} is gated: accept its licence at {constants.ENDPOINT}/{name}, then log in with "
            "`hf auth login` (or set HF_TOKEN). A local config.json needs neither"
        ) from None
    except errors.RepositoryNotFoundError:
        raise InputError(
            f"there is no model {name} on {constants.ENDPOINT}, or it is private: check the spelling, or "
            "log in with `hf auth login` (or set HF_TOKEN)"
        ) from None
    except errors.LocalEntryNotFoundError:
        reason = (
            "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} does not answer"
        )
        raise InputError(f"model {name} is not on this machine, and {reason}") from None
    except errors.EntryNotFoundError:
        raise InputError(
            f"model {name} holds no config.json, so it is not in transformers' format; look for its variant "
            "whose name ends in -hf"
        ) from None
    except (errors.HfHubHTTPError, OSError) as error:
        raise InputError(f"cannot fetch the configuration of {name} from the hub: {error}") from None


def _reachable(endpoint: str) -> bool:
    """Tell quickly whether there is a network at all: the hub's own client retries for half a minute."""
    address = urllib.parse.urlsplit(endpoint)
    if urllib.request.getproxies().get(address.scheme):
        return True  # only the proxy can tell
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True
