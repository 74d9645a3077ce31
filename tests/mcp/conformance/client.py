"""The conformance suite's clients: agents that use its servers. The suite starts `relay.py`, which has one run here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from agentflow import Agent, Approve, ToolUseBlock
from agentflow.mcp import MCPServer
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.messages import Pending

CALLS = {
    "initialize": None,
    "tools_call": ToolUseBlock("t1", "add_numbers", {"a": 5, "b": 3}),
    "elicitation-sep1034-client-defaults": ToolUseBlock("t1", "test_client_elicitation_defaults"),
    "sse-retry": ToolUseBlock("t1", "test_reconnection"),
}
REDIRECT = "http://localhost:3000/callback"
METADATA_URL = "https://conformance-test.local/client-metadata.json"


@dataclass(frozen=True)
class Scenario:
    """What the suite asks for: the address of its server, the scenario, and the secrets that belong to it."""

    url: str
    name: str
    given: dict[str, Any]


class Kept:
    """Tokens and the client's registration, in memory."""

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self.tokens: OAuthToken | None = None
        self.client = client

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Person:
    """Who agrees on the authorization server's page: the suite's sends back at once."""

    def __init__(self) -> None:
        self.answer: dict[str, list[str]] = {}

    async def open(self, address: str) -> None:
        async with httpx2.AsyncClient() as client:
            found = await client.get(address, follow_redirects=False)
        self.answer = parse_qs(urlsplit(found.headers["location"]).query)

    async def answered(self) -> AuthorizationCodeResult:
        answer = {name: values[0] for name, values in self.answer.items()}
        return AuthorizationCodeResult(code=answer["code"], state=answer.get("state"), iss=answer.get("iss"))


async def asserting(scenario: Scenario) -> IdentityAssertionOAuthProvider:
    """A person's login at the company represents an agreement: its server issues what the authorization server
    accepts.
    """
    given, where = scenario.given, urlsplit(scenario.url)
    about = f"{where.scheme}://{where.netloc}/.well-known/oauth-protected-resource{where.path}"
    async with httpx2.AsyncClient() as client:
        issuer = (await client.get(about)).json()["authorization_servers"][0]

    async def assertion(audience: str, resource: str) -> str:
        asked = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "subject_token": given["idp_id_token"],
            "client_id": given["idp_client_id"],
            "audience": audience,
            "resource": resource,
        }
        async with httpx2.AsyncClient() as client:
            return (await client.post(given["idp_token_endpoint"], data=asked)).json()["access_token"]

    client, secret = given["client_id"], given["client_secret"]
    return IdentityAssertionOAuthProvider(
        scenario.url, Kept(None), client, secret, issuer, assertion, token_endpoint_auth_method="client_secret_basic"
    )


async def auth(scenario: Scenario) -> httpx2.Auth:
    """The SDK's authentication for a scenario."""
    url, given = scenario.url, scenario.given
    if "idp_id_token" in given:
        return await asserting(scenario)
    if scenario.name == "auth/client-credentials-basic":
        return ClientCredentialsOAuthProvider(url, Kept(None), given["client_id"], given["client_secret"])
    if scenario.name == "auth/client-credentials-jwt":
        client = given["client_id"]
        signed = SignedJWTParameters(
            issuer=client,
            subject=client,
            signing_key=given["private_key_pem"],
            signing_algorithm=given.get("signing_algorithm", "ES256"),
        )
        return PrivateKeyJWTOAuthProvider(url, Kept(None), client, signed.create_assertion_provider())
    known = None
    if "client_secret" in given:
        known = OAuthClientInformationFull(
            client_id=given["client_id"],
            client_secret=given["client_secret"],
            redirect_uris=[REDIRECT],
            token_endpoint_auth_method="client_secret_basic",
        )
    about = OAuthClientMetadata(
        client_name="agentflow", redirect_uris=[REDIRECT], grant_types=["authorization_code", "refresh_token"]
    )
    person = Person()
    return OAuthClientProvider(url, about, Kept(known), person.open, person.answered, METADATA_URL)


async def agree(question: Pending) -> Approve:
    return Approve()


async def play(scenario: Scenario) -> str:
    """Run the agent of a scenario, and return its tool results."""
    protected = scenario.name.startswith("auth/")
    call = ToolUseBlock("t1", "test-tool") if protected else CALLS[scenario.name]
    login = await auth(scenario) if protected else None
    server = MCPServer.http(scenario.url, protocol="legacy", elicitation=agree, auth=login)
    async with Agent("a", ScriptedModel([*([call] if call else []), "Done."]), tools=[server]) as agent:
        await agent.call("Go")
        results = [result for message in agent.session().messages for result in message.tool_results]
    return "\n".join(f"{result.state} {result.text}" for result in results)
