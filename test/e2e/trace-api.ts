/** Traces of an agent, by its status API. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import type {
  LivePath,
  LiveTraceLine,
  LiveTraceSummary,
  TraceAnswer,
} from '../../status/api/trace.ts';
import { waitFor } from '../lab/lab.ts';
import { mediaTypes, validator } from '../status/validator.ts';

const validate = validator();

const MEDIA_TYPES = mediaTypes();

/** Reads the status API of an agent on its Unix socket. */
export class TraceApi {
  readonly #path: string;

  constructor(path: string) {
    this.#path = path;
  }

  async get<T>(path: string, query: Readonly<Record<string, string | number>>) {
    const response = await this.open(path, query);
    let text = '';
    for await (const chunk of response) text += String(chunk);
    return { status: response.statusCode, body: JSON.parse(text) as T };
  }

  async trace(query: Readonly<Record<string, string | number>>) {
    const { status, body } = await this.get<TraceAnswer>('/api/v1/trace', query);
    assert.equal(status, 200, JSON.stringify(body));
    return body.paths;
  }

  /** Starts a live trace. Resolves when it is armed. */
  async live(query: Readonly<Record<string, string | number>>): Promise<Live> {
    const response = await this.open('/api/v1/trace/live', { seconds: 20, ...query });
    const lines: LiveTraceLine[] = [];
    let rest = '';
    response.on('data', (chunk) => {
      const parts = (rest + String(chunk)).split('\n');
      rest = parts.pop() ?? '';
      for (const part of parts) {
        const line = JSON.parse(part) as LiveTraceLine;
        validate('LiveTraceLine', line);
        lines.push(line);
      }
    });
    const ended = new Promise<void>((resolve) => response.on('close', resolve));
    // The connection breaks when the agent is killed.
    response.on('error', () => {});
    await waitFor('the trace is armed', () => lines.length > 0 || response.complete);
    assert.equal(response.statusCode, 200, rest);
    return { lines, ended, close: () => void response.destroy() };
  }

  async open(path: string, query: Readonly<Record<string, string | number>>) {
    const search = new URLSearchParams(
      Object.entries(query).map(([name, value]): [string, string] => [name, String(value)]),
    );
    // No connection for several requests: the server closes idle ones.
    const sent = request({ socketPath: this.#path, path: `${path}?${search}`, agent: false });
    sent.end();
    const [response] = (await once(sent, 'response')) as [IncomingMessage];
    const type = MEDIA_TYPES.get(path)?.[response.statusCode === 200 ? 'ok' : 'error'];
    assert.equal(response.headers['content-type'], type);
    return response;
  }
}

export interface Live {
  readonly lines: readonly LiveTraceLine[];
  readonly ended: Promise<unknown>;
  close(): void;
}

export const summaryOf = ({ lines }: Live) =>
  lines.find((line): line is LiveTraceSummary => line.event === 'summary');

/** Waits for the summary of a trace of one second, and returns it. */
export async function summary(live: Live): Promise<LiveTraceSummary> {
  await live.ended;
  const found = summaryOf(live);
  assert.ok(found, JSON.stringify(live.lines.at(-1)));
  return found;
}

export function only(paths: readonly LivePath[]): LivePath {
  const [path] = paths;
  assert.ok(path, 'no packet was traced');
  return path;
}
