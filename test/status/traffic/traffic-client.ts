/** Starts the traffic process on the node of a lab, and reads its resources. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import type { FlowLine, TopList } from '../../../status/api/traffic.ts';
import type { Manifest } from '../../e2e/manifests.ts';
import { type Lab, waitFor } from '../../lab/lab.ts';
import type { TrafficProcessOptions, TrafficProcessState } from './traffic-process.ts';

const PROCESS = fileURLToPath(new URL('./traffic-process.ts', import.meta.url));

/** Lines of `GET /api/v1/flows`, as they arrive. */
export interface FlowStream {
  readonly lines: readonly FlowLine[];
  close(): void;
}

export class TrafficClient {
  readonly #directory = mkdtempSync(join(tmpdir(), 'portwide-traffic-'));
  readonly #socket = join(this.#directory, 'socket');
  readonly #manifests = join(this.#directory, 'objects.json');
  #process: ReturnType<Lab['node']['spawn']> | undefined;

  /** Starts the process and waits until it listens. */
  async start(
    lab: Lab,
    objects: readonly Manifest[],
    options: Pick<TrafficProcessOptions, 'modeTraffic' | 'policyLogGroup'>,
  ): Promise<void> {
    rmSync(this.#socket, { force: true });
    writeFileSync(this.#manifests, JSON.stringify(objects));
    const { ipv4, ipv6 } = lab.node;
    const full: TrafficProcessOptions = {
      ...options,
      socket: this.#socket,
      manifests: this.#manifests,
      nodeAddresses: [ipv4, ipv6],
    };
    this.#process = lab.node.spawn(process.execPath, [PROCESS, JSON.stringify(full)]);
    this.#process.catch(() => {});
    this.#process.stderr?.pipe(process.stderr);
    await waitFor('the traffic process listens', () => this.state());
  }

  /** Replaces the objects. */
  async apply(objects: readonly Manifest[]): Promise<void> {
    writeFileSync(this.#manifests, JSON.stringify(objects));
    await this.get('/test/objects');
  }

  state(): Promise<TrafficProcessState> {
    return this.get('/test/state') as Promise<TrafficProcessState>;
  }

  top(query: string): Promise<TopList> {
    return this.get(`/api/v1/top?${query}`) as Promise<TopList>;
  }

  get(path: string): Promise<unknown> {
    return new Promise((resolve, reject) => {
      request({ socketPath: this.#socket, path }, (response) => {
        let text = '';
        response.setEncoding('utf8');
        response.on('data', (chunk: string) => {
          text += chunk;
        });
        response.on('end', () => resolve(JSON.parse(text)));
      })
        .on('error', reject)
        .end();
    });
  }

  /** Opens a stream and waits for its first line. */
  async flows(query: string): Promise<FlowStream> {
    const lines: FlowLine[] = [];
    const sent = request({ socketPath: this.#socket, path: `/api/v1/flows?${query}` });
    sent.on('error', () => {});
    sent.on('response', (response) => {
      response.on('error', () => {});
      createInterface(response)
        .on('line', (line) => lines.push(JSON.parse(line) as FlowLine))
        .on('error', () => {});
    });
    sent.end();
    await waitFor('the stream starts', () => lines.some(({ event }) => event === 'started'));
    return { lines, close: () => sent.destroy() };
  }

  signal(name: 'SIGSTOP' | 'SIGCONT'): void {
    this.#process?.kill(name);
  }

  /** Ends the process without a chance to clean up. */
  async kill(): Promise<void> {
    this.#process?.kill('SIGKILL');
    await this.#process?.catch(() => {});
    this.#process = undefined;
  }

  async destroy(): Promise<void> {
    await this.kill();
    rmSync(this.#directory, { recursive: true, force: true });
  }
}
