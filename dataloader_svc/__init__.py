"""dataloader-svc: an elastic, multimodal data-loading service. See docs/architecture.md."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("dataloader-svc")
except PackageNotFoundError:  # a source tree on PYTHONPATH, never installed
    __version__ = "0.0.0"

__all__ = ["__version__"]
