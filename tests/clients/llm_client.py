"""OpenAI's and Anthropic's own libraries through Weir. Each case is a request: what the library returns must be what the model wrote. Prints what
it saw of each, as a line of JSON.

    llm_client.py URL cases JSON    one request after another
    llm_client.py URL crowd JSON    streams at the same time (OpenAI's asynchronous client)
"""

import asyncio
import importlib
import json

import httpx2

from common import arguments, same

parser = arguments("libraries of language models through Weir")
parser.add_argument("mode", choices=["cases", "crowd"])
parser.add_argument("work", type=json.loads)
options = parser.parse_args()
# Only what is needed, since loading one takes a second.
library = importlib.import_module("anthropic" if options.work[0]["call"] == "messages" else "openai")
# Never used up: a test that waits for ever says so itself.
TIMEOUT = 60
KEYS = {"api_key": "test", "max_retries": 0, "timeout": TIMEOUT}


class Seen:
    """What was seen of a request and its reply."""

    def __init__(self, name):
        self.name, self.sent, self.ratelimit = name, 0, ""
        self.texts, self.tool, self.finish, self.usage, self.error = [], False, None, {}, None

    def request(self, request):
        self.sent = len(request.read())

    def response(self, response):
        self.ratelimit = response.headers.get("ratelimit", "")

    def text(self, text):
        if text:
            self.texts.append(text)

    def uses(self, usage, *names):
        """Keeps the numbers that the library found under these names, as input and output."""
        for ours, name in zip(("input", "output"), names, strict=True):
            value = getattr(usage, name, None)
            if value is not None:
                self.usage[ours] = value

    def failed(self, error):
        response = getattr(error, "response", None)
        headers = {} if response is None else response.headers
        self.error = {
            "kind": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "retry_after": headers.get("retry-after"),
            "message": str(error),
        }

    def check(self, wanted):
        """Fails unless the library returned what was wanted."""
        found = {
            "text": "".join(self.texts),
            "tool": self.tool,
            "finish": self.finish,
            "error": self.error and self.error["kind"],
        }
        for what, value in wanted.items():
            # One of several, if it depends on how far the reply came.
            value = found[what] if isinstance(value, list) and found[what] in value else value
            same(f"{self.name}: {what}", found[what], value)

    def tell(self):
        told = {"name": self.name, "sent": self.sent, "ratelimit": self.ratelimit, "texts": len(self.texts)}
        print("seen " + json.dumps(told | {"usage": self.usage, "error": self.error}), flush=True)


# Each yields its stream after each event, so that a case can leave there.
def chat(client, case, seen):
    reply = client.chat.completions.create(**case)
    if not case.get("stream"):
        message = reply.choices[0].message
        seen.tool = bool(message.tool_calls)
        seen.text(message.tool_calls[0].function.arguments if seen.tool else message.content)
        seen.finish = reply.choices[0].finish_reason
        seen.uses(reply.usage, "prompt_tokens", "completion_tokens")
        return
    for chunk in reply:
        take_chunk(chunk, seen)
        yield reply


def take_chunk(chunk, seen):
    if chunk.usage:
        seen.uses(chunk.usage, "prompt_tokens", "completion_tokens")
    for choice in chunk.choices:
        seen.finish = choice.finish_reason or seen.finish
        seen.text(choice.delta.content)
        for call in choice.delta.tool_calls or []:
            seen.tool = True
            seen.text(call.function.arguments)


def responses(client, case, seen):
    reply = client.responses.create(**case)
    for event in reply if case.get("stream") else []:
        if event.type == "response.output_text.delta":
            seen.text(event.delta)
        if event.type in ("response.completed", "response.incomplete"):
            reply_ended(event.response, seen)
            same("the text of its deltas", event.response.output_text, "".join(seen.texts))
        yield reply
    if not case.get("stream"):
        seen.text(reply.output_text)
        reply_ended(reply, seen)


def reply_ended(response, seen):
    seen.finish = response.status
    seen.uses(response.usage, "input_tokens", "output_tokens")


def embeddings(client, case, seen):
    reply = client.embeddings.create(encoding_format="float", **case)
    same("its embedding", reply.data[0].embedding, [0.25, -0.5])
    seen.uses(reply.usage, "prompt_tokens", "completion_tokens")
    yield from ()


def messages(client, case, seen):
    reply = client.messages.create(**case)
    if not case.get("stream"):
        block = reply.content[0]
        seen.tool = block.type == "tool_use"
        seen.text(json.dumps(block.input) if seen.tool else block.text)
        seen.finish = reply.stop_reason
        seen.uses(reply.usage, "input_tokens", "output_tokens")
        return
    for event in reply:
        if event.type == "message_start":
            seen.uses(event.message.usage, "input_tokens", "output_tokens")
        elif event.type == "content_block_delta":
            seen.tool = event.delta.type == "input_json_delta"
            seen.text(event.delta.partial_json if seen.tool else event.delta.text)
        elif event.type == "message_delta":
            seen.finish = event.delta.stop_reason
            seen.uses(event.usage, "input_tokens", "output_tokens")
        yield reply


CALLS = {"chat": chat, "responses": responses, "embeddings": embeddings, "messages": messages}
ERRORS = (library.APIError, httpx2.HTTPError)


def run(case):
    seen = Seen(case["name"])
    hooks = {"request": [seen.request], "response": [seen.response]}
    with httpx2.Client(event_hooks=hooks, trust_env=False, verify=False, timeout=TIMEOUT) as connection:
        if case["call"] == "messages":
            client = library.Anthropic(base_url=options.url, http_client=connection, **KEYS)
        else:
            client = library.OpenAI(base_url=f"{options.url}/v1", http_client=connection, **KEYS)
        work = CALLS[case["call"]](client, case["arguments"] | {"extra_headers": case["headers"]}, seen)
        try:
            for stream in work:
                if len(seen.texts) == case["leave_after"]:
                    stream.close()
                    break
        except ERRORS as error:
            seen.failed(error)
        seen.check(case["wanted"])
    seen.tell()


async def join(client, member, begun, go):
    """A stream that goes on when all have begun or were refused. Those refused then try again, until
    they are told that the allowance is spent, and not in use."""
    for _ in range(300):
        seen = Seen(member["name"])
        try:
            reply = await client.chat.completions.create(**member["arguments"], extra_headers=member["headers"])
            async for chunk in reply:
                take_chunk(chunk, seen)
                if len(seen.texts) == 1:
                    begun()
                    await go.wait()
                if len(seen.texts) == member["leave_after"]:
                    await reply.close()
                    break
        except library.RateLimitError as error:
            seen.failed(error)
            begun()
            await go.wait()
            if "weir-held" in error.response.headers["ratelimit"]:
                await asyncio.sleep(0.1)
                continue
        seen.tell()
        return


async def crowd(members):
    waiting, go = len(members), asyncio.Event()

    def begun():
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            print("all have begun", flush=True)
            go.set()

    limits = httpx2.Limits(max_connections=len(members))
    async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=TIMEOUT, limits=limits) as connections:
        client = library.AsyncOpenAI(base_url=f"{options.url}/v1", http_client=connections, **KEYS)
        await asyncio.gather(*(join(client, member, begun, go) for member in members))


if options.mode == "crowd":
    asyncio.run(crowd(options.work))
else:
    for one in options.work:
        run(one)
