// Calls a service over HTTP with `fetch`. Node from 22.18 on runs it as it is:
//   node fetch.ts http://127.0.0.1:8080 "my card has not arrived"

type Label = { name: string; score: number };
type Answer = { results: { labels: Label[] }[]; path: string; release: string };
type Deferred = { request_id: string; state: string; ticket?: string; response?: Answer };

class Refused extends Error {
  code: string;
  retryAfterMs: number;

  constructor(said: { code: string; error: string; retry_after_ms?: number }) {
    super(`${said.code}: ${said.error}`);
    this.code = said.code;
    this.retryAfterMs = said.retry_after_ms ?? 0;
  }
}

async function post<Reply>(url: string, body: object, timeoutMs: number): Promise<Reply> {
  const answer = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    // The service stops working for a caller that has left.
    signal: AbortSignal.timeout(timeoutMs),
  });
  const said = await answer.json();
  if (!answer.ok) throw new Refused(said);
  return said;
}

// Asks once more, where a refusal says that it is worth it within the caller's time.
export async function score(service: string, text: string, timeoutMs: number): Promise<Answer> {
  const ends = Date.now() + timeoutMs;
  const ask = (ms: number) => post<Answer>(`${service}/v1/score`, { texts: [text], timeout_ms: ms }, ms);
  try {
    return await ask(timeoutMs);
  } catch (refused) {
    const left = ends - Date.now() - (refused instanceof Refused ? refused.retryAfterMs : 0);
    if (!(refused instanceof Refused) || refused.code !== "RESOURCE_EXHAUSTED" || left <= 0) throw refused;
    await new Promise((resolve) => setTimeout(resolve, refused.retryAfterMs));
    return await ask(left);
  }
}

// The ends of submitted requests, as server-sent events tell them.
export async function* watch(service: string, submitted: Deferred[]): AsyncGenerator<Deferred> {
  const tickets = submitted.map((it) => it.ticket ?? "");
  const answer = await fetch(`${service}/v1/watch`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      request_ids: submitted.map((it) => it.request_id),
      // A service that other hosts can call wants them, unless it knows its callers by their tokens.
      tickets: tickets.some(Boolean) ? tickets : [],
    }),
  });
  if (!answer.ok || !answer.body) throw new Error(await answer.text());
  let read = "";
  for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
    read += part;
    const events = read.split("\n\n");
    read = events.pop() ?? "";
    for (const event of events) {
      const [, kind, data] = /^event: (\w+)\ndata: (.*)$/.exec(event) ?? [];
      if (kind === "result") yield JSON.parse(data);
      if (kind === "failure") throw new Error(data);
    }
  }
}

async function main(service: string, text: string): Promise<void> {
  const { results, path } = await score(service, text, 2000);
  for (const label of results[0].labels) console.log(`${label.name} ${label.score.toFixed(3)}`);
  console.log(`path ${path}`);

  const request = { request_id: `example-${process.pid}`, texts: [text] };
  const submitted = await post<Deferred>(`${service}/v1/submit`, { request }, 2000);
  for await (const ended of watch(service, [submitted])) console.log(`${ended.request_id} ${ended.state}`);
}

const [service = "http://127.0.0.1:8080", text = "my card has not arrived"] = process.argv.slice(2);
await main(service, text);
