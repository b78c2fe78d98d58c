/**
 * Writes objects to a kube-apiserver. Reads lines, each an array of objects, and prints a line for each when the server
 * has all of them. The first line says that the server is ready. Arguments: its URL and a token.
 */
import { Agent, request } from 'node:https';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Manifest } from '../test/e2e/manifests.ts';

interface Metadata {
  readonly name: string;
  readonly namespace?: string;
}

const [server = '', token = ''] = process.argv.slice(2);
const AT_ONCE = 32;
const READY_MS = 120_000;
const PATHS: Readonly<Record<string, string>> = {
  Service: '/api/v1/namespaces/default/services',
  EndpointSlice: '/apis/discovery.k8s.io/v1/namespaces/default/endpointslices',
  Node: '/api/v1/nodes',
};
const agent = new Agent({ keepAlive: true, maxSockets: AT_ONCE, rejectUnauthorized: false });

function send(method: string, path: string, body?: object): Promise<[number, string]> {
  return new Promise((resolve, reject) => {
    const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
    const sent = request(`${server}${path}`, { method, agent, headers }, (response) => {
      let text = '';
      response.on('data', (chunk) => {
        text += String(chunk);
      });
      response.on('end', () => resolve([response.statusCode ?? 0, text]));
    });
    sent.on('error', reject);
    sent.end(body && JSON.stringify(body));
  });
}

async function put(object: Manifest): Promise<void> {
  const { kind, metadata, ...rest } = object as { kind: string; metadata: Metadata };
  // The server assigns the other fields.
  const { uid, creationTimestamp, managedFields, generation, ownerReferences, ...kept } =
    metadata as Metadata & Record<string, unknown>;
  const body = { kind, ...rest, metadata: kept };
  const path = PATHS[kind];
  if (path === undefined) throw new TypeError(`no path for ${kind}`);
  let [status, text] = await send('POST', path, body);
  if (status === 409) [status, text] = await send('PUT', `${path}/${metadata.name}`, body);
  if (kind === 'Node' && status < 300) {
    [status, text] = await send('PUT', `${path}/${metadata.name}/status`, body);
  }
  if (status >= 300) throw new Error(`${kind} ${metadata.name}: ${status} ${text}`);
}

async function putAll(objects: readonly Manifest[]): Promise<void> {
  const left = objects.values();
  const work = async () => {
    for (const object of left) await put(object);
  };
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, objects.length) }, work));
}

async function isReady(): Promise<boolean> {
  try {
    // Slices need the namespace, which the server makes after it is ready.
    const answers = await Promise.all(
      ['/readyz', '/api/v1/namespaces/default'].map((path) => send('GET', path)),
    );
    return answers.every(([status]) => status === 200);
  } catch {
    return false;
  }
}

const deadline = performance.now() + READY_MS;
while (!(await isReady())) {
  if (performance.now() > deadline) throw new Error('the API server is not ready');
  await sleep(200);
}
console.log('done');
for await (const line of createInterface({ input: process.stdin })) {
  try {
    await putAll(JSON.parse(line) as Manifest[]);
    console.log('done');
  } catch (error) {
    console.log(String(error));
  }
}
process.exit();
