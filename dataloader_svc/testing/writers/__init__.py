"""Writers of formats, one module each: importing this package registers them in `testing.data.WRITERS`."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
