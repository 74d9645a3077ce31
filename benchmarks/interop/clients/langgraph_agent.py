"""langgraph: graphs of a model node and a tool node, on both wires, whole and streamed."""

from cases import ANTHROPIC, MODEL, OPENAI, case, same, versions
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel

versions("langgraph", "langchain-openai", "langchain-anthropic")


class Point(BaseModel):
    x: int
    y: str


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def graph(model):
    bound = model.bind_tools([add])

    async def ask(state: MessagesState):
        return {"messages": [await bound.ainvoke(state["messages"])]}

    made = StateGraph(MessagesState)
    made.add_node("model", ask)
    made.add_node("tools", ToolNode([add]))
    made.add_edge(START, "model")
    made.add_conditional_edges("model", tools_condition)
    made.add_edge("tools", "model")
    return made.compile()


MODELS = {
    "openai": lambda: ChatOpenAI(model="gpt-4o", base_url=OPENAI, api_key="k", max_retries=0),
    "anthropic": lambda: ChatAnthropic(
        model=MODEL,
        base_url=ANTHROPIC,
        api_key="k",
        max_retries=0,
        max_tokens=4000,
        thinking={"type": "enabled", "budget_tokens": 1024},
    ),
}
for wire, model in MODELS.items():

    @case(f"{wire}: a tool loop, and a second turn")
    async def _(model=model):
        made = graph(model())
        state = await made.ainvoke({"messages": [("user", "add")]})
        same(state["messages"][-1].text, "sum 3,7")
        state = await made.ainvoke({"messages": [*state["messages"], ("user", "hello")]})
        same(state["messages"][-1].text, "Hello world")

    @case(f"{wire}: streamed messages")
    async def _(model=model):
        text = ""
        async for message, _told in graph(model()).astream({"messages": [("user", "hello")]}, stream_mode="messages"):
            text += message.text
        same(text, "Hello world")


@case("openai: a typed answer")
async def _():
    form = MODELS["openai"]().with_structured_output(Point, method="json_schema")
    same(await form.ainvoke("as json"), Point(x=1, y="b"))
