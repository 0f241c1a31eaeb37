"""Vendors installed in a directory on the import path, as pip leaves their wheels there."""

from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent

from hetero.plugin import hookspecs
from hetero.registry.entry_points import Entry
from tests.registry import hostile

_GOOD = """\
from hetero import plugin

VENDOR = plugin.Vendor(
    api=2,
    name="{name}",
    title="{name}",
    models=(plugin.Model(match="*", granularity=plugin.Fractional(), slots=4),),
    resource_names=(plugin.ResourceNames(count="example.com/{name}"),),
    visible=("{NAME}_VISIBLE_DEVICES",),
)

@plugin.hookimpl
def hetero_vendor():
    return VENDOR

@plugin.hookimpl
def hetero_enforce(directory):
    return plugin.Edits(env={{"{NAME}": str(directory)}})

@plugin.hookimpl
def hetero_observe(device):
    return plugin.Usage(memory=5)

@plugin.hookimpl
def hetero_discover():
    yield VENDOR.device(
        uuid="{name}-0",
        model="M",
        index=0,
        memory=8 << 30,
        enforcement=plugin.Enforcement.NONE,
        health="ok",
    )
"""


def good(name: str = "good") -> str:
    """Return the source of a vendor with one card, which works."""
    return _GOOD.format(name=name, NAME=name.upper().replace("-", "_"))


def install(site: Path, name: str, source: str) -> Entry:
    """Install a vendor as the distribution hetero-NAME; return its entry point."""
    module = f"hetero_{name}".replace("-", "_")
    (site / f"{module}.py").write_text(dedent(source))
    metadata = site / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: hetero-{name}\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(f"[{hookspecs.GROUP}]\n{name} = {module}\n")
    return Entry(name, module, f"hetero-{name} 1.0")


def install_hostile(
    site: Path, deeds: Iterable[str], hooks: Iterable[str]
) -> dict[tuple[str, str], Entry]:
    """Install a vendor for each deed at each hook, which does it there; by deed and hook."""
    source, ways = Path(hostile.__file__).read_text(), tuple(hooks)
    return {
        (deed, hook): install(site, f"hostile-{hook}-{deed}".replace("_", "-"), source)
        for deed in deeds
        for hook in ways
    }
