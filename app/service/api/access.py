"""What every surface needs from the application it is mounted in."""

from __future__ import annotations

from starlette.requests import Request

from app.service.models import ModelManager

__all__ = ["models_of"]


def models_of(request: Request) -> ModelManager:
    """Return the service's models."""
    models = request.app.state.models
    assert isinstance(models, ModelManager)
    return models
