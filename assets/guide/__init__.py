"""The guide: the small chat model that ships with localllm, and all that it was made from.

Nothing here is imported at run time: the app reads only the model file.
"""
