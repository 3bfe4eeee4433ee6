"""What comes out of a run: the model, what it predicts, and how good it is."""

from __future__ import annotations

from dpmpi.model.model import Model
from dpmpi.model.privacy_statement import PrivacyStatement

__all__ = ["Model", "PrivacyStatement"]
