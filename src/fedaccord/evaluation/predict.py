"""Run a model over many samples without gradients."""

from __future__ import annotations

from fedaccord.models.predicting import CHUNK as CHUNK
from fedaccord.models.predicting import predict_logits as predict_logits
