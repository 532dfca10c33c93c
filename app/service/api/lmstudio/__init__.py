"""LM Studio's dialect: /api/v0, /api/v1 and the websockets of its SDKs."""
