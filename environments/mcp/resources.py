"""A server's resources as two tools. These do not depend on the resources, so that resources may come and go."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..tools.toolset import to_document

TOOL_NAMES = LIST_TOOL, READ_TOOL = "list_resources", "read_resource"
_NO_PARAMETERS = {"type": "object", "properties": {}}
_URI_PARAMETERS = {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]}
DOCUMENTS: tuple[Mapping[str, Any], ...] = (
    to_document(LIST_TOOL, "List the resources that can be read.", _NO_PARAMETERS),
    to_document(READ_TOOL, "Read a resource.", _URI_PARAMETERS),
)
# Pages of a list.
_MAX_PAGES = 100


async def list_resources(client: Any) -> dict[str, Any]:
    """The resources, and if there are any, the templates of their addresses. Raises MCPError."""
    from mcp import MCPError  # only workers have the SDK

    resource_entries = [_to_entry(item, uri=str(item.uri)) for item in await pages(client.list_resources, "resources")]
    try:
        templates = await pages(client.list_resource_templates, "resource_templates")
    except MCPError:
        templates = []  # a server may have resources and no list of templates
    extras = {"templates": [_to_entry(item, uri_template=item.uri_template) for item in templates]} if templates else {}
    return {"resources": resource_entries, **extras}


async def read_resource(client: Any, uri: str) -> str:
    """The text of a resource. Raises MCPError."""
    return "\n".join(map(to_text, (await client.read_resource(uri)).contents))


async def pages(fetch_page: Callable[..., Awaitable[Any]], list_name: str) -> list[Any]:
    """All entries of a list that a server gives page by page."""
    entries, cursor = [], None
    for _ in range(_MAX_PAGES):
        page = await fetch_page(cursor=cursor)
        entries += vars(page)[list_name]
        if not (cursor := page.next_cursor):
            break
    return entries


def to_text(content: Any) -> str:
    """The text of a resource's content; for other content, its kind."""
    text = vars(content).get("text")
    return text if text is not None else f"[{content.mime_type or 'bytes'}]"


def _to_entry(item: Any, **address: str) -> dict[str, str]:
    return address | {"name": item.name} | ({"description": item.description} if item.description else {})
