// Calls a service over gRPC. Node from 22.18 on runs it as it is, after `npm install` in this folder:
//   node grpc.ts 127.0.0.1:50051 "my card has not arrived"

import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const PROTO = `${import.meta.dirname}/../../protos/scoring/v1/scoring.proto`;

type Label = { name: string; score: number };
type Answer = { results: { labels: Label[] }[]; path: string; release: string };

const kept = loadSync(PROTO, { keepCase: true, enums: String, longs: Number, defaults: true });
const { ScoringService } = (grpc.loadPackageDefinition(kept) as any).scoring.v1;

// One for the whole program: it keeps its connection.
export function connect(address: string): grpc.Client & Record<string, any> {
  return new ScoringService(address, grpc.credentials.createInsecure());
}

// The deadline goes with the call: the service refuses at once what it cannot answer in time.
export function score(client: ReturnType<typeof connect>, text: string, timeoutMs: number): Promise<Answer> {
  const request = { texts: [text], timeout_ms: timeoutMs };
  return new Promise((resolve, reject) => {
    client.Score(request, { deadline: Date.now() + timeoutMs }, (error: grpc.ServiceError | null, answer: Answer) =>
      error ? reject(error) : resolve(answer),
    );
  });
}

// When to come back after a refusal, in milliseconds; undefined where that is no help.
export function retryAfterMs(error: grpc.ServiceError): number | undefined {
  const [hint] = error.metadata.get("retry-after-ms");
  return error.code === grpc.status.RESOURCE_EXHAUSTED && hint ? Number(hint) : undefined;
}

async function main(address: string, text: string): Promise<void> {
  const client = connect(address);
  const { results, path } = await score(client, text, 2000);
  for (const label of results[0].labels) console.log(`${label.name} ${label.score.toFixed(3)}`);
  console.log(`path ${path}`);

  try {
    await score(client, "", 2000);
  } catch (refused) {
    const { code, details } = refused as grpc.ServiceError;
    console.log(`${grpc.status[code]}: ${details}; retry after ${retryAfterMs(refused as grpc.ServiceError)} ms`);
  }
  client.close();
}

const [address = "127.0.0.1:50051", text = "my card has not arrived"] = process.argv.slice(2);
await main(address, text);
