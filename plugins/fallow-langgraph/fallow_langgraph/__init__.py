"""fallow for LangGraph's long-term memory on PostgreSQL (docs/langgraph.md)."""

from fallow_langgraph.provider import LangGraphProvider

__all__ = ["LangGraphProvider"]
